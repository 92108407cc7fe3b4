// EplParts: what has travelled as one vector, as tensors that share its memory. TensorFlow's Slice shares memory only
// of parts whose length is a whole number of lines, too.

#include <vector>

#include "gpu_stream.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"

namespace epl_ops {

namespace tf = tensorflow;

namespace {

REGISTER_OP("EplParts")
    .Input("vector: T")
    .Output("parts: N * T")
    .Attr("N: int >= 1")
    .Attr("T: type")
    .Attr("starts: list(int)")
    .Attr("shapes: list(shape)")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      std::vector<tf::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      if (static_cast<int>(shapes.size()) != c->num_outputs())
        return tf::errors::InvalidArgument("EplParts: ", shapes.size(), " shapes for ", c->num_outputs(), " parts");
      for (size_t i = 0; i < shapes.size(); ++i) {
        tf::shape_inference::ShapeHandle shape;
        TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        c->set_output(i, shape);
      }
      return tf::Status();
    })
    .Doc(R"doc(
Takes a vector apart without copying it.

starts: the element at which each part begins, where TensorFlow lets tensors begin: at a whole number of 64 bytes.
shapes: of the parts.
)doc");

class PartsOp : public tf::OpKernel {
 public:
  explicit PartsOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("starts", &starts_));
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    const size_t count = context->num_outputs();
    OP_REQUIRES(context, starts_.size() == count && shapes_.size() == count,
                tf::errors::InvalidArgument("EplParts '", name(), "': ", starts_.size(), " starts and ", shapes_.size(),
                                            " shapes for ", count, " parts."));
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& vector = context->input(0);
    OP_REQUIRES(context, vector.dims() == 1,
                tf::errors::InvalidArgument("EplParts '", name(), "': what it takes apart has ", vector.dims(),
                                            " dimensions instead of 1."));
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const tf::int64 start = starts_[i], end = start + shapes_[i].num_elements();
      OP_REQUIRES(context, start >= 0 && end <= vector.dim_size(0),
                  tf::errors::InvalidArgument("EplParts '", name(), "': part ", i, " is of elements ", start, " to ",
                                              end, ", and the vector has ", vector.dim_size(0), "."));
      if (start == end) {
        tf::Tensor* none = nullptr;
        OP_REQUIRES_OK(context, context->allocate_output(i, shapes_[i], &none));
        continue;
      }
      tf::Tensor part(vector.dtype());
      OP_REQUIRES(context, part.CopyFrom(vector.Slice(start, end), shapes_[i]) && part.IsAligned(),
                  tf::errors::InvalidArgument("EplParts '", name(), "': part ", i, " begins at element ", start,
                                              ", where TensorFlow lets no tensor begin."));
      context->set_output(i, part);
    }
  }

 private:
  std::vector<tf::int64> starts_;
  std::vector<tf::TensorShape> shapes_;
};

REGISTER_KERNEL_BUILDER(Name("EplParts").Device(tf::DEVICE_CPU), PartsOp);
EPL_REGISTER_GPU_KERNEL(Name("EplParts"), PartsOp);

}  // namespace
}  // namespace epl_ops
