// EplReduce: element-wise reduction over workers whose result one of them gets.
#include <memory>
#include <string>

#include "collective_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplReduce")
    .Input("tensor: T")
    .Output("reduced: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("root: int >= 0 = 0")
    .Attr("reduce_op: {'sum', 'mean', 'min', 'max', 'prod'} = 'sum'")
    .EPL_COLLECTIVE_ATTRS.SetIsStateful()
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Reduces a tensor over all workers; worker `root` gets the result, the others zeros.

tensor: the same shape on all workers.
reduced: the same shape.
root: the worker that gets the result.
comm: slot of the communicator in this process's pool; not used when workers is 1.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
workers: number of workers; with 1 the result is the tensor.
collective_name: what error messages call this, the same on all workers; default: the node's name.
)doc");

class ReduceOp : public CollectiveOp {
 public:
  explicit ReduceOp(tf::OpKernelConstruction* context) : CollectiveOp(context) {
    if (!context->status().ok()) return;
    OP_REQUIRES_OK(context, GetWorker(context, "root", &root_));
    OP_REQUIRES_OK(context, GetReduceOp(context, &reduce_op_));
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
    epl_dtype dtype;
    OP_REQUIRES_OK_ASYNC(context, TypeToReduce(tensor, &dtype), done);
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, tensor.shape(), &output), done);
    if (epl_comm_rank(slot->get()) != root_) {
      OP_REQUIRES_OK_ASYNC(context, FillWithZeros(context, slot->get(), *output), done);
    }
    Call* call = NewCall(context, slot, EPL_REDUCE, "", done);
    call->request.dtype = dtype;
    call->request.reduce_op = reduce_op_;
    call->request.peer = root_;
    call->segments.push_back(Segment(Bytes(tensor), Bytes(*output), tensor.NumElements()));
    call->Start();
  }

 private:
  int root_;
  epl_reduce_op reduce_op_;
};

REGISTER_KERNEL_BUILDER(Name("EplReduce").Device(tf::DEVICE_CPU), ReduceOp);
EPL_REGISTER_GPU_KERNEL(Name("EplReduce"), ReduceOp);

}  // namespace
}  // namespace epl_ops
