// EplWireEncode, EplWireSum and EplWireDecode: gradients in fewer bits on their way between workers, with error
// feedback (Seide et al., "1-Bit Stochastic Gradient Descent", 2014). What the bits do not say is kept, and added the
// next time.
//
//   gradients -> EplWireEncode -> EplAllToAll -> EplWireSum -> EplAllGather -> EplWireDecode -> sums
//
// Each worker adds up one share of every gradient. Shares are of equal size, but for the last ones, which may be short.
// Where a worker alone needs a gradient (zero.level), it adds up all of it, and nothing is sent on:
//
//   gradients -> EplWireEncode -> EplAllToAll -> EplWireDecode -> sums of this worker's own
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "op_helpers.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"
#include "wire_codec.h"

namespace epl_ops {
namespace {

#define EPL_WIRE_ATTRS                                     \
  Attr("N: int >= 1")                                      \
      .Attr("workers: int >= 2")                           \
      .Attr("wire_dtype: {'float16', 'bfloat16', 'int8'}") \
      .Attr("sizes: list(int) >= 1")

REGISTER_OP("EplWireEncode")
    .Input("gradients: num_inputs * float")
    .Input("residuals: N * float")
    .Output("shares: uint8")
    .Output("new_residuals: N * float")
    .Attr("R: int >= 1 = 1")
    .Attr("num_inputs: int >= 1")
    .Attr("owners: list(int) >= 0 = []")
    .EPL_WIRE_ATTRS
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      int n, inputs;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      TF_RETURN_IF_ERROR(c->GetAttr("num_inputs", &inputs));
      c->set_output(0, c->Vector(c->UnknownDim()));
      for (int i = 0; i < n; ++i) c->set_output(1 + i, c->input(inputs + i));
      return tf::Status();
    })
    .Doc(R"doc(
Adds up N gradients over R local replicas and makes of them, and of what was left over before, bytes for each worker.

gradients: N * R tensors: the N gradients of local replica 0, then those of replica 1, and so on.
residuals: what was left over, with the shapes of the gradients.
shares: one share after the other, without owners all of equal length.
new_residuals: what the bytes do not say of the sums.
owners: the worker to whose share each gradient belongs; none: each worker's share has a part of each.
workers: number of workers, hence of shares.
wire_dtype: form of the numbers; of int8 each 256 have a scale of their own.
sizes: the number of elements of each gradient.
)doc");

REGISTER_OP("EplWireSum")
    .Input("shares: uint8")
    .Input("residuals: N * float")
    .Output("sums: uint8")
    .Output("new_residuals: N * float")
    .Attr("scale: float = 1.0")
    .EPL_WIRE_ATTRS
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      int n;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      c->set_output(0, c->Vector(c->UnknownDim()));
      for (int i = 0; i < n; ++i) c->set_output(1 + i, c->input(1 + i));
      return tf::Status();
    })
    .Doc(R"doc(
Adds up one share of all workers, in their order and in float32, and makes bytes of the sums as EplWireEncode does.

shares: this worker's share from each worker.
residuals: what was left over of the sums before: vectors of a share's length in elements.
sums: the share of the sums.
new_residuals: what the bytes do not say of the sums.
scale: the sums are multiplied by this.
workers, wire_dtype, sizes: as of EplWireEncode.
)doc");

REGISTER_OP("EplWireDecode")
    .Input("shares: uint8")
    .Output("reduced: N * float")
    .Attr("shapes: list(shape) >= 1")
    .Attr("adds: bool = false")
    .Attr("scale: float = 1.0")
    .EPL_WIRE_ATTRS
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      std::vector<tf::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      for (size_t i = 0; i < shapes.size(); ++i) {
        tf::shape_inference::ShapeHandle shape;
        TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        c->set_output(static_cast<int>(i), shape);
      }
      return tf::Status();
    })
    .Doc(R"doc(
The sums of gradients from their shares, or from all workers' gradients.

shares: the share of the sums that each worker has made; or, with `adds`, this worker's share from each worker.
reduced: N tensors.
shapes: of the gradients.
adds: each share has all of these gradients, which are added up in the order of workers and in float32.
scale: the sums are multiplied by this.
workers, wire_dtype, sizes: as of EplWireEncode.
)doc");

class WireOp : public tf::OpKernel {
 public:
  explicit WireOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    std::string dtype;
    OP_REQUIRES_OK(context, context->GetAttr("N", &num_tensors_));
    OP_REQUIRES_OK(context, context->GetAttr("workers", &workers_));
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &dtype));
    OP_REQUIRES_OK(context, context->GetAttr("sizes", &sizes_));
    form_ = dtype == "float16"    ? epl::WireForm::kFloat16
            : dtype == "bfloat16" ? epl::WireForm::kBfloat16
                                  : epl::WireForm::kInt8;
    OP_REQUIRES(context, sizes_.size() == static_cast<size_t>(num_tensors_),
                tf::errors::InvalidArgument("'", name(), "' has ", sizes_.size(), " sizes for ", num_tensors_,
                                            " gradients; it must have one for each."));
    for (int i = 0; i < num_tensors_; ++i) share_bytes_ += epl::WireBytes(form_, Share(i));
  }

 protected:
  static float* Data(const tf::Tensor& tensor) { return reinterpret_cast<float*>(Bytes(tensor)); }
  static uint8_t* Coded(const tf::Tensor& tensor) { return reinterpret_cast<uint8_t*>(Bytes(tensor)); }

  size_t Size(int i) const { return static_cast<size_t>(sizes_[i]); }
  // Elements of a gradient in a share, and in all shares before one.
  size_t Share(int i) const { return (Size(i) + workers_ - 1) / workers_; }
  size_t Before(int i, int worker) const { return std::min(Size(i), worker * Share(i)); }

  tf::Status CheckShares(const tf::Tensor& shares) const {
    const size_t bytes = shares.tensor_data().size();
    if (bytes == share_bytes_ * workers_) return tf::Status();
    return tf::errors::InvalidArgument("'", name(), "' takes ", workers_, " shares of ", share_bytes_,
                                       " bytes each, but there are ", bytes, " bytes.");
  }
  tf::Status CheckSize(const tf::Tensor& tensor, size_t size, const char* what, int i) const {
    if (static_cast<size_t>(tensor.NumElements()) == size) return tf::Status();
    return tf::errors::InvalidArgument("'", name(), "': ", what, " ", i, " has shape ", tensor.shape().DebugString(),
                                       ", but must have ", size, " elements.");
  }

  int num_tensors_;
  int workers_;
  epl::WireForm form_;
  std::vector<tf::int64> sizes_;
  size_t share_bytes_ = 0;
};

class WireEncodeOp : public WireOp {
 public:
  explicit WireEncodeOp(tf::OpKernelConstruction* context) : WireOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("R", &num_replicas_));
    OP_REQUIRES_OK(context, context->GetAttr("owners", &owners_));
    const bool fits = owners_.empty() || owners_.size() == static_cast<size_t>(num_tensors_);
    OP_REQUIRES(context, fits,
                tf::errors::InvalidArgument("'", name(), "' has ", owners_.size(), " owners of ", num_tensors_,
                                            " gradients; it must have one for each, or none."));
    for (const tf::int64 owner : owners_) {
      OP_REQUIRES(context, 0 <= owner && owner < workers_,
                  tf::errors::InvalidArgument("'", name(), "' has an owner ", owner, "; there are ", workers_,
                                              " workers, from 0."));
    }
    starts_.assign(workers_ + 1, 0);
    for (int worker = 0; worker < workers_; ++worker) {
      starts_[worker + 1] = starts_[worker];
      for (int i = 0; i < num_tensors_; ++i) starts_[worker + 1] += epl::WireBytes(form_, Room(i, worker));
    }
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor* shares = nullptr;
    const tf::TensorShape shape({static_cast<tf::int64>(starts_.back())});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &shares));
    std::memset(Bytes(*shares), 0, starts_.back());  // of what short shares lack
    std::vector<size_t> at(starts_.begin(), starts_.end() - 1);
    for (int i = 0; i < num_tensors_; ++i) {
      const tf::Tensor& residual = context->input(num_replicas_ * num_tensors_ + i);
      OP_REQUIRES_OK(context, CheckSize(residual, Size(i), "residual", i));
      tf::Tensor* left = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(1 + i, residual.shape(), &left));
      float* values = Data(*left);
      for (int r = 0; r < num_replicas_; ++r) {
        const tf::Tensor& gradient = context->input(r * num_tensors_ + i);
        OP_REQUIRES_OK(context, CheckSize(gradient, Size(i), "gradient", i));
        const float* before = r == 0 ? Data(residual) : values;
        const float* more = Data(gradient);
        for (size_t k = 0; k < Size(i); ++k) values[k] = before[k] + more[k];
      }
      for (int worker = 0; worker < workers_; ++worker) {
        const size_t room = Room(i, worker), begin = owners_.empty() ? Before(i, worker) : 0;
        const size_t count = owners_.empty() ? Before(i, worker + 1) - begin : room;
        epl::WireEncode(form_, values + begin, count, Coded(*shares) + at[worker]);
        at[worker] += epl::WireBytes(form_, room);
      }
    }
  }

 private:
  // Elements of a gradient for which there is room in a worker's share.
  size_t Room(int i, int worker) const {
    if (owners_.empty()) return Share(i);
    return owners_[i] == worker ? Size(i) : 0;
  }

  int num_replicas_;
  std::vector<tf::int64> owners_;
  std::vector<size_t> starts_;  // of each worker's share, and the end
};

class WireSumOp : public WireOp {
 public:
  explicit WireSumOp(tf::OpKernelConstruction* context) : WireOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& shares = context->input(0);
    OP_REQUIRES_OK(context, CheckShares(shares));
    tf::Tensor* sums = nullptr;
    const tf::TensorShape shape({static_cast<tf::int64>(share_bytes_)});
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &sums));
    size_t at = 0;
    for (int i = 0; i < num_tensors_; ++i) {
      const tf::Tensor& residual = context->input(1 + i);
      OP_REQUIRES_OK(context, CheckSize(residual, Share(i), "residual", i));
      tf::Tensor* left = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(1 + i, residual.shape(), &left));
      float* values = Data(*left);
      std::memset(values, 0, Share(i) * sizeof(float));
      for (int worker = 0; worker < workers_; ++worker) {
        epl::WireAdd(form_, Coded(shares) + worker * share_bytes_ + at, Share(i), values);
      }
      const float* before = Data(residual);
      for (size_t k = 0; k < Share(i); ++k) values[k] = values[k] * scale_ + before[k];
      epl::WireEncode(form_, values, Share(i), Coded(*sums) + at);
      at += epl::WireBytes(form_, Share(i));
    }
  }

 private:
  float scale_;
};

class WireDecodeOp : public WireOp {
 public:
  explicit WireDecodeOp(tf::OpKernelConstruction* context) : WireOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    OP_REQUIRES_OK(context, context->GetAttr("adds", &adds_));
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    if (adds_) share_bytes_ = 0;
    for (int i = 0; adds_ && i < num_tensors_; ++i) share_bytes_ += epl::WireBytes(form_, Size(i));
    for (int i = 0; i < num_tensors_; ++i) {
      const bool fits = i < static_cast<int>(shapes_.size()) && shapes_[i].num_elements() == sizes_[i];
      OP_REQUIRES(context, fits,
                  tf::errors::InvalidArgument("'", name(), "': shape ", i, " does not have ", sizes_[i], " elements."));
    }
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& shares = context->input(0);
    OP_REQUIRES_OK(context, CheckShares(shares));
    size_t at = 0;
    for (int i = 0; i < num_tensors_; ++i) {
      tf::Tensor* reduced = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, shapes_[i], &reduced));
      float* values = Data(*reduced);
      std::memset(values, 0, Size(i) * sizeof(float));
      for (int worker = 0; worker < workers_; ++worker) {
        const size_t begin = adds_ ? 0 : Before(i, worker), count = adds_ ? Size(i) : Before(i, worker + 1) - begin;
        epl::WireAdd(form_, Coded(shares) + worker * share_bytes_ + at, count, values + begin);
      }
      for (size_t k = 0; scale_ != 1.0f && k < Size(i); ++k) values[k] *= scale_;
      at += epl::WireBytes(form_, adds_ ? Size(i) : Share(i));
    }
  }

 private:
  std::vector<tf::TensorShape> shapes_;
  bool adds_;
  float scale_;
};

REGISTER_KERNEL_BUILDER(Name("EplWireEncode").Device(tf::DEVICE_CPU), WireEncodeOp);
REGISTER_KERNEL_BUILDER(Name("EplWireSum").Device(tf::DEVICE_CPU), WireSumOp);
REGISTER_KERNEL_BUILDER(Name("EplWireDecode").Device(tf::DEVICE_CPU), WireDecodeOp);

}  // namespace
}  // namespace epl_ops
