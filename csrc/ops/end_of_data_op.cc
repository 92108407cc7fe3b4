// EplEndOfData: the end of data that workers have agreed on.
#include "op_helpers.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/lib/core/errors.h"

namespace epl_ops {
namespace {

// Stateful, so that TensorFlow does not compute it once for all steps.
REGISTER_OP("EplEndOfData")
    .Input("more: int32")
    .Output("passed: int32")
    .Attr("what: string")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc(R"doc(
Ends a step as data that has ended does, with OutOfRange, where there is none on any worker.

more: 0 where there is none.
passed: more.
what: what gave the data, for messages.
)doc");

class EndOfDataOp : public tf::OpKernel {
 public:
  explicit EndOfDataOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("what", &what_));
  }

  void Compute(tf::OpKernelContext* context) override {
    OP_REQUIRES(context, context->input(0).scalar<tf::int32>()() != 0,
                tf::errors::OutOfRange("End of sequence: the data of '", what_, "' has ended on all workers."));
    context->set_output(0, context->input(0));
  }

 private:
  std::string what_;
};

REGISTER_KERNEL_BUILDER(Name("EplEndOfData").Device(tf::DEVICE_CPU), EndOfDataOp);

}  // namespace
}  // namespace epl_ops
