// EplBroadcastSend: the root's half of a broadcast between workers.
#include <memory>
#include <string>

#include "broadcast_message.h"
#include "op_helpers.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplBroadcastSend")
    .Input("tensor: T")
    .Attr("T: {numbertype, bool, string}")
    .Attr("comm: int = 0")
    .Attr("tag: int = -1")
    .Attr("collective_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Sends a tensor to all other workers, where EplBroadcastReceive gives it out.

tensor: any shape; the shape travels along.
comm: slot of the communicator in this process's pool. Its rank for this worker is the root.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
collective_name: what error messages call this, the same on all workers; default: "broadcast" and the tag.
)doc");

class BroadcastSendOp : public tf::AsyncOpKernel {
 public:
  explicit BroadcastSendOp(tf::OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("comm", &slot_));
    OP_REQUIRES_OK(context, context->GetAttr("tag", &tag_));
    OP_REQUIRES_OK(context, context->GetAttr("collective_name", &collective_name_));
    if (collective_name_.empty()) collective_name_ = "broadcast " + std::to_string(tag_);
  }

  // Only hands a request over. TensorFlow runs such kernels at once, and others when a thread is free: with one core a
  // message would wait for the computation that it is meant to run beside.
  bool IsExpensive() override { return false; }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<PoolSlot> slot = std::make_shared<PoolSlot>(slot_);
    OP_REQUIRES_ASYNC(context, slot->get() != nullptr, NoCommunicator(slot_, collective_name_), done);
    const tf::Tensor& tensor = context->input(0);
    std::shared_ptr<std::string> strings = std::make_shared<std::string>();
    epl_segment segment;
    if (tensor.dtype() == tf::DT_STRING) {
      *strings = EncodeStrings(tensor);
      segment.out = &(*strings)[0];
      segment.count = strings->size();
    } else {
      segment.out = Bytes(tensor);
      segment.count = tensor.tensor_data().size();
    }
    segment.in = segment.out;
    Call* call = new Call(context, slot, collective_name_, [context, strings, done](const tf::Status& status) {
      if (!status.ok()) context->SetStatus(status);
      done();
    });
    call->request.tag = tag_;
    call->request.collective = EPL_BROADCAST;
    call->request.dtype = EPL_UINT8;
    call->request.peer = epl_comm_rank(slot->get());
    call->segments.push_back(segment);
    call->header = EncodeShape(tensor);
    call->Start();
  }

 private:
  int slot_;
  tf::int64 tag_;
  std::string collective_name_;
};

REGISTER_KERNEL_BUILDER(Name("EplBroadcastSend").Device(tf::DEVICE_CPU), BroadcastSendOp);

}  // namespace
}  // namespace epl_ops
