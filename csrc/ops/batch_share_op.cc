// EplBatchShare: one of several equal shares of a batch.
#include <cstdint>
#include <cstring>
#include <string>

#include "op_helpers.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplBatchShare")
    .Input("batch: T")
    .Output("share: T")
    .Attr("T: {numbertype, bool, string}")
    .Attr("index: int >= 0")
    .Attr("num_shares: int >= 1")
    .Attr("what: string")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle batch, share;
      int num_shares;
      TF_RETURN_IF_ERROR(c->GetAttr("num_shares", &num_shares));
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &batch));
      tf::shape_inference::DimensionHandle rows = c->Dim(batch, 0);
      // A batch that does not divide is reported by the kernel, which has the words for it.
      if (c->ValueKnown(rows) && c->Value(rows) % num_shares == 0) {
        rows = c->MakeDim(c->Value(rows) / num_shares);
      } else {
        rows = c->UnknownDim();
      }
      TF_RETURN_IF_ERROR(c->ReplaceDim(batch, 0, rows, &share));
      c->set_output(0, share);
      return tf::Status();
    })
    .Doc(R"doc(
Gives out share number `index` of a batch that is divided into `num_shares` equal shares on dimension 0.

batch: [n, ...]; n must be a multiple of num_shares.
share: [n / num_shares, ...], rows index * n / num_shares onwards.
what: what error messages call the batch, such as the name of a placeholder.
)doc");

// Eigen maps buffers with aligned loads as wide as TensorFlow was built for; this covers the widest.
const std::uintptr_t kAlignment = 64;

class BatchShareOp : public tf::OpKernel {
 public:
  explicit BatchShareOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("num_shares", &num_shares_));
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
    OP_REQUIRES(context, index_ < num_shares_,
                tf::errors::InvalidArgument("EplBatchShare '", name(), "': index ", index_, " of ", num_shares_,
                                            " shares; it must be below the number of shares."));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& batch = context->input(0);
    OP_REQUIRES(context, batch.dims() > 0,
                tf::errors::InvalidArgument("'", what_, "' is a scalar, but it is to be divided over ", num_shares_,
                                            " devices on its first dimension."));
    const tf::int64 rows = batch.dim_size(0);
    OP_REQUIRES(context, rows % num_shares_ == 0, DoesNotDivide(rows));
    const tf::int64 share_rows = rows / num_shares_;
    tf::Tensor share = batch.Slice(index_ * share_rows, (index_ + 1) * share_rows);
    if (share.NumElements() == 0 || IsAligned(share)) {
      context->set_output(0, share);
      return;
    }
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, share.shape(), &output));
    if (share.dtype() == tf::DT_STRING) {
      const auto from = share.unaligned_flat<tf::tstring>();
      auto to = output->flat<tf::tstring>();
      for (tf::int64 i = 0; i < from.size(); ++i) to(i) = from(i);
    } else {
      std::memcpy(Bytes(*output), Bytes(share), share.tensor_data().size());
    }
  }

 private:
  static bool IsAligned(const tf::Tensor& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.tensor_data().data()) % kAlignment == 0;
  }

  tf::Status DoesNotDivide(tf::int64 rows) const {
    std::string divisors;
    for (tf::int64 divisor = 1; divisor <= rows && divisor <= 4096; ++divisor) {
      if (rows % divisor == 0) divisors += (divisors.empty() ? "" : ", ") + std::to_string(divisor);
    }
    return tf::errors::InvalidArgument("'", what_, "' has batch size ", rows, ", which does not divide over ",
                                       num_shares_, " devices (", rows, " = ", rows / num_shares_, " * ", num_shares_,
                                       " + ", rows % num_shares_, "). Use a multiple of ", num_shares_, ", or one of ",
                                       divisors, " devices.");
  }

  int index_, num_shares_;
  std::string what_;
};

REGISTER_KERNEL_BUILDER(Name("EplBatchShare").Device(tf::DEVICE_CPU), BatchShareOp);

}  // namespace
}  // namespace epl_ops
