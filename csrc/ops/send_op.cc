// EplSend: one worker's half of a message to another; the same node on every worker.
#include <memory>
#include <string>

#include "collective_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplSend")
    .Input("tensor: T")
    .Output("message: T")
    .Attr("T: {numbertype, bool}")
    .Attr("source: int >= 0")
    .Attr("target: int >= 0")
    .EPL_COLLECTIVE_ATTRS.SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnknownShape)
    .Doc(R"doc(
Sends worker `source`'s tensor to worker `target`, where EplRecv gives it out. Other workers do nothing.

message: for the EplRecv; holds no data, unless source and target are the same worker.
source: the worker that sends.
target: the worker that receives.
comm: slot of the communicator in this process's pool.
tag: place in the order that the pool expects, the same here and in the EplRecv; -1: the order of submission.
workers: number of workers.
collective_name: what error messages call this, the same here and in the EplRecv; default: the node's name.
)doc");

class SendOp : public CollectiveOp {
 public:
  explicit SendOp(tf::OpKernelConstruction* context) : CollectiveOp(context) {
    if (!context->status().ok()) return;
    OP_REQUIRES_OK(context, GetWorker(context, "source", &source_));
    OP_REQUIRES_OK(context, GetWorker(context, "target", &target_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const tf::Tensor& tensor = context->input(0);
    std::shared_ptr<PoolSlot> slot;
    int rank = 0;
    if (workers_ > 1) {
      OP_REQUIRES_OK_ASYNC(context, Slot(&slot), done);
      rank = epl_comm_rank(slot->get());
    }
    if (rank == source_ && source_ == target_) {
      context->set_output(0, tensor);
      done();
      return;
    }
    tf::Tensor* message = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, tf::TensorShape({0}), &message), done);
    if (rank != source_) {
      done();
      return;
    }
    const std::string detail = tf::DataTypeString(tensor.dtype()) + tensor.shape().DebugString();
    Call* call = NewCall(context, slot, EPL_SEND, detail, done);
    call->request.peer = target_;
    call->segments.push_back(Segment(Bytes(tensor), nullptr, tensor.tensor_data().size()));
    call->Start();
  }

 private:
  int source_, target_;
};

REGISTER_KERNEL_BUILDER(Name("EplSend").Device(tf::DEVICE_CPU), SendOp);
EPL_REGISTER_GPU_KERNEL(Name("EplSend"), SendOp);

}  // namespace
}  // namespace epl_ops
