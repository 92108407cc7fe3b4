// EplGate: a place in the order of operations. It computes nothing; what matters is what it waits for.
//
// Being stateful it is left alone by TensorFlow's optimizers, which would turn any other operation that only control
// edges leave into control edges from what it takes. Then feeding what it takes would no longer cut off what lies
// behind.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace epl {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class GateOp : public OpKernel {
 public:
  explicit GateOp(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    Tensor* passed = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape(), &passed));
    passed->scalar<float>()() = 0;
  }
};

REGISTER_OP("EplGate")
    .Attr("N: int >= 0")
    .Input("after: N * float")
    .Output("passed: float")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Passes when all of `after` have passed, and what its control inputs name has run. The value is always 0.");

REGISTER_KERNEL_BUILDER(Name("EplGate").Device(tensorflow::DEVICE_CPU), GateOp);

}  // namespace
}  // namespace epl
