// EplRecv: the other half of EplSend; the same node on every worker.
#include <memory>
#include <string>

#include "collective_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplRecv")
    .Input("message: T")
    .Input("shape: int64")
    .Output("tensor: T")
    .Attr("T: {numbertype, bool}")
    .Attr("source: int >= 0")
    .Attr("target: int >= 0")
    .EPL_COLLECTIVE_ATTRS.SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &shape));
      c->set_output(0, shape);
      return tf::Status();
    })
    .Doc(R"doc(
Gives out, on worker `target`, the tensor that worker `source` sends with EplSend; zeros on other workers.

message: the output of the EplSend.
shape: of the tensor.
source: the worker that sends.
target: the worker that receives.
comm: slot of the communicator in this process's pool.
tag: place in the order that the pool expects, the same here and in the EplSend; -1: the order of submission.
workers: number of workers.
collective_name: what error messages call this, the same here and in the EplSend; default: the node's name.
)doc");

class RecvOp : public CollectiveOp {
 public:
  explicit RecvOp(tf::OpKernelConstruction* context) : CollectiveOp(context) {
    if (!context->status().ok()) return;
    OP_REQUIRES_OK(context, GetWorker(context, "source", &source_));
    OP_REQUIRES_OK(context, GetWorker(context, "target", &target_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const tf::Tensor& message = context->input(0);
    const auto numbers = context->input(1).flat<tf::int64>();
    tf::TensorShape shape;
    OP_REQUIRES_OK_ASYNC(context, tf::TensorShapeUtils::MakeShape(numbers.data(), numbers.size(), &shape), done);
    std::shared_ptr<PoolSlot> slot;
    int rank = 0;
    if (workers_ > 1) {
      OP_REQUIRES_OK_ASYNC(context, Slot(&slot), done);
      rank = epl_comm_rank(slot->get());
    }
    if (rank == target_ && source_ == target_) {
      OP_REQUIRES_ASYNC(
          context, message.shape() == shape,
          tf::errors::InvalidArgument("'", collective_name_, "': a tensor of shape ", shape.DebugString(),
                                      " is expected, but one of shape ", message.shape().DebugString(), " was sent."),
          done);
      context->set_output(0, message);
      done();
      return;
    }
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape, &output), done);
    const size_t bytes = output->tensor_data().size();
    if (rank != target_) {
      OP_REQUIRES_OK_ASYNC(context, FillWithZeros(context, slot->get(), *output), done);
      done();
      return;
    }
    const std::string detail = tf::DataTypeString(output->dtype()) + shape.DebugString();
    Call* call = NewCall(context, slot, EPL_RECV, detail, done);
    call->request.peer = source_;
    call->segments.push_back(Segment(nullptr, Bytes(*output), bytes));
    call->Start();
  }

 private:
  int source_, target_;
};

REGISTER_KERNEL_BUILDER(Name("EplRecv").Device(tf::DEVICE_CPU), RecvOp);
EPL_REGISTER_GPU_KERNEL(Name("EplRecv").HostMemory("shape"), RecvOp);

}  // namespace
}  // namespace epl_ops
