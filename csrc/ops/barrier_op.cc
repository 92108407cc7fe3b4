// EplBarrier: ends when it has begun on all workers.
#include <memory>

#include "collective_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplBarrier").EPL_COLLECTIVE_ATTRS.SetIsStateful().SetShapeFn(tf::shape_inference::NoOutputs).Doc(R"doc(
Ends when this operation has begun on all workers.

comm: slot of the communicator in this process's pool; not used when workers is 1.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
workers: number of workers; with 1 it ends at once.
collective_name: what error messages call this, the same on all workers; default: the node's name.
)doc");

class BarrierOp : public CollectiveOp {
 public:
  explicit BarrierOp(tf::OpKernelConstruction* context) : CollectiveOp(context) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    if (workers_ == 1) {
      done();
      return;
    }
    std::shared_ptr<PoolSlot> slot;
    OP_REQUIRES_OK_ASYNC(context, Slot(&slot), done);
    NewCall(context, slot, EPL_BARRIER, "", done)->Start();
  }
};

REGISTER_KERNEL_BUILDER(Name("EplBarrier").Device(tf::DEVICE_CPU), BarrierOp);

}  // namespace
}  // namespace epl_ops
