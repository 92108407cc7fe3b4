// EplBatchShare: one of several shares of a batch.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "op_helpers.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"
#include "tensorflow/core/lib/strings/strcat.h"
#include "tensorflow/core/platform/tstring.h"

namespace epl_ops {
namespace {

tf::int64 Sum(const std::vector<tf::int64>& weights, size_t count) {
  return std::accumulate(weights.begin(), weights.begin() + count, tf::int64{0});
}

REGISTER_OP("EplBatchShare")
    .Input("batch: T")
    .Output("share: T")
    .Attr("T: {numbertype, bool, string}")
    .Attr("index: int >= 0")
    .Attr("weights: list(int) >= 1")
    .Attr("what: string")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle batch, share;
      int index;
      std::vector<tf::int64> weights;
      TF_RETURN_IF_ERROR(c->GetAttr("index", &index));
      TF_RETURN_IF_ERROR(c->GetAttr("weights", &weights));
      const tf::int64 total = Sum(weights, weights.size());
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &batch));
      tf::shape_inference::DimensionHandle rows = c->Dim(batch, 0);
      // A batch that does not divide is reported by the kernel, which has the words for it.
      if (static_cast<size_t>(index) < weights.size() && total > 0 && c->ValueKnown(rows) &&
          c->Value(rows) % total == 0) {
        rows = c->MakeDim(c->Value(rows) / total * weights[index]);
      } else {
        rows = c->UnknownDim();
      }
      TF_RETURN_IF_ERROR(c->ReplaceDim(batch, 0, rows, &share));
      c->set_output(0, share);
      return tf::Status();
    })
    .Doc(R"doc(
Gives out share number `index` of a batch that is divided on dimension 0 into shares of these weights, one after the
other.

batch: [n, ...]; n must be a multiple of W, the sum of the weights.
share: [n / W * weights[index], ...].
weights: at least 1 each.
what: what error messages call the batch, such as the name of a placeholder.
)doc");

// Eigen maps buffers with aligned loads as wide as TensorFlow was built for; this covers the widest.
const std::uintptr_t kAlignment = 64;

class BatchShareOp : public tf::OpKernel {
 public:
  explicit BatchShareOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("index", &index_));
    OP_REQUIRES_OK(context, context->GetAttr("weights", &weights_));
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
    OP_REQUIRES(context, static_cast<size_t>(index_) < weights_.size(),
                tf::errors::InvalidArgument("EplBatchShare '", name(), "': index ", index_, " of ", weights_.size(),
                                            " shares; it must be below the number of shares."));
    OP_REQUIRES(context, *std::min_element(weights_.begin(), weights_.end()) > 0,
                tf::errors::InvalidArgument("EplBatchShare '", name(), "': a weight is below 1."));
    total_ = Sum(weights_, weights_.size());
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& batch = context->input(0);
    OP_REQUIRES(context, batch.dims() > 0,
                tf::errors::InvalidArgument("'", what_, "' is a scalar, but it is to be divided over ", weights_.size(),
                                            " devices on its first dimension."));
    const tf::int64 rows = batch.dim_size(0);
    OP_REQUIRES(context, rows % total_ == 0, DoesNotDivide(rows));
    const tf::int64 first = rows / total_ * Sum(weights_, index_);
    tf::Tensor share = batch.Slice(first, first + rows / total_ * weights_[index_]);
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
    const std::string sum = tf::strings::StrCat(" (", rows, " = ", rows / total_, " * ", total_, " + ", rows % total_,
                                                "). Use a multiple of ", total_);
    if (total_ != static_cast<tf::int64>(weights_.size())) {
      std::string weights;
      for (tf::int64 weight : weights_) weights += (weights.empty() ? "" : ", ") + std::to_string(weight);
      return tf::errors::InvalidArgument("'", what_, "' has batch size ", rows, ", which does not divide over ",
                                         weights_.size(), " devices with the weights ", weights, sum, ".");
    }
    std::string divisors;
    for (tf::int64 divisor = 1; divisor <= rows && divisor <= 4096; ++divisor) {
      if (rows % divisor == 0) divisors += (divisors.empty() ? "" : ", ") + std::to_string(divisor);
    }
    return tf::errors::InvalidArgument("'", what_, "' has batch size ", rows, ", which does not divide over ", total_,
                                       " devices", sum, ", or one of ", divisors, " devices.");
  }

  int index_;
  std::vector<tf::int64> weights_;
  tf::int64 total_;
  std::string what_;
};

REGISTER_KERNEL_BUILDER(Name("EplBatchShare").Device(tf::DEVICE_CPU), BatchShareOp);

}  // namespace
}  // namespace epl_ops
