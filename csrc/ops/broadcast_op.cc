// EplBroadcast: gives one worker's tensor to all, by the same node on every worker.
#include <memory>
#include <string>

#include "broadcast_message.h"
#include "collective_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplBroadcast")
    .Input("tensor: T")
    .Output("output: T")
    .Attr("T: {numbertype, bool}")
    .Attr("root: int >= 0 = 0")
    .EPL_COLLECTIVE_ATTRS.SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Gives out worker `root`'s tensor on all workers.

tensor: the same type and shape on all workers; elsewhere than at the root only these count.
output: the root's tensor.
root: the worker whose tensor it is.
comm: slot of the communicator in this process's pool; not used when workers is 1.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
workers: number of workers; with 1 the output is the tensor.
collective_name: what error messages call this, the same on all workers; default: the node's name.
)doc");

class BroadcastOp : public CollectiveOp {
 public:
  explicit BroadcastOp(tf::OpKernelConstruction* context) : CollectiveOp(context) {
    if (!context->status().ok()) return;
    OP_REQUIRES_OK(context, GetWorker(context, "root", &root_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const tf::Tensor& tensor = context->input(0);
    if (workers_ == 1) {
      context->set_output(0, tensor);
      done();
      return;
    }
    std::shared_ptr<PoolSlot> slot;
    OP_REQUIRES_OK_ASYNC(context, Slot(&slot), done);
    Call* call = NewCall(context, slot, EPL_BROADCAST, "", done);
    call->request.peer = root_;
    if (epl_comm_rank(slot->get()) == root_) {
      context->set_output(0, tensor);
      call->header = EncodeShape(tensor);
      call->segments.push_back(Segment(Bytes(tensor), Bytes(tensor), tensor.tensor_data().size()));
    } else {
      call->allocate = [this, context, call](const size_t*, int, const uint8_t* extra, size_t extra_length) -> void* {
        tf::Tensor* output = nullptr;
        const std::string header(reinterpret_cast<const char*>(extra), extra_length);
        call->failure = Allocate(context, header, &output);
        // Nothing is written to a tensor without elements, but NULL would mean failure.
        static char nothing;
        if (!call->failure.ok()) return nullptr;
        return output->NumElements() == 0 ? &nothing : Bytes(*output);
      };
    }
    call->Start();
  }

 private:
  tf::Status Allocate(tf::OpKernelContext* context, const std::string& header, tf::Tensor** output) const {
    const tf::Tensor& own = context->input(0);
    tf::DataType dtype;
    tf::TensorShape shape;
    TF_RETURN_IF_ERROR(DecodeShape(header, &dtype, &shape));
    if (dtype != own.dtype() || shape != own.shape()) {
      return tf::errors::FailedPrecondition("'", collective_name_, "': this worker has ",
                                            tf::DataTypeString(own.dtype()), own.shape().DebugString(), ", but worker ",
                                            root_, " broadcasts ", tf::DataTypeString(dtype), shape.DebugString(),
                                            ". The tensors must have the same type and shape on all workers.");
    }
    return context->allocate_output(0, shape, output);
  }

  int root_;
};

REGISTER_KERNEL_BUILDER(Name("EplBroadcast").Device(tf::DEVICE_CPU), BroadcastOp);
EPL_REGISTER_GPU_KERNEL(Name("EplBroadcast"), BroadcastOp);

}  // namespace
}  // namespace epl_ops
