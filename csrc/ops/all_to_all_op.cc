// EplAllToAll: every worker sends some of its rows to every worker.
#include <memory>
#include <string>
#include <vector>

#include "collective_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplAllToAll")
    .Input("tensor: T")
    .Input("splits: int64")
    .Output("received: T")
    .Output("received_splits: int64")
    .Attr("T: {numbertype, bool}")
    .EPL_COLLECTIVE_ATTRS.SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle tensor, splits, received;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &tensor));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &splits));
      int workers;
      TF_RETURN_IF_ERROR(c->GetAttr("workers", &workers));
      // Other workers may send any number of rows.
      TF_RETURN_IF_ERROR(c->ReplaceDim(tensor, 0, workers == 1 ? c->Dim(tensor, 0) : c->UnknownDim(), &received));
      c->set_output(0, received);
      c->set_output(1, c->Vector(workers));
      return tf::Status();
    })
    .Doc(R"doc(
Sends rows of a tensor to every worker and gives out the rows that come from every worker.

tensor: [n, ...]; n may differ between workers, the other dimensions must be equal.
splits: the number of rows for each worker, in their order; empty: equal parts.
received: the rows from all workers, in their order.
received_splits: the number of rows from each worker.
comm: slot of the communicator in this process's pool; not used when workers is 1.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
workers: number of workers; with 1 the tensor comes back.
collective_name: what error messages call this, the same on all workers; default: the node's name.
)doc");

class AllToAllOp : public CollectiveOp {
 public:
  explicit AllToAllOp(tf::OpKernelConstruction* context) : CollectiveOp(context) {}

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const tf::Tensor& tensor = context->input(0);
    tf::TensorShape row;
    OP_REQUIRES_OK_ASYNC(context, RowOf(tensor, collective_name_, &row), done);
    std::vector<size_t> shares;
    OP_REQUIRES_OK_ASYNC(
        context, SharesOf(context->input(1), tensor.dim_size(0), workers_, collective_name_, "splits", &shares), done);
    tf::Tensor* received_splits = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(1, tf::TensorShape({workers_}), &received_splits), done);
    if (workers_ == 1) {
      received_splits->flat<tf::int64>()(0) = tensor.dim_size(0);
      context->set_output(0, tensor);
      done();
      return;
    }
    std::shared_ptr<PoolSlot> slot;
    OP_REQUIRES_OK_ASYNC(context, Slot(&slot), done);
    const size_t row_bytes = row.num_elements() * tf::DataTypeSize(tensor.dtype());
    OP_REQUIRES_ASYNC(context, row_bytes > 0,
                      tf::errors::InvalidArgument("'", collective_name_, "': rows of shape ", row.DebugString(),
                                                  " have no elements, so they cannot be sent to other workers."),
                      done);
    for (size_t& share : shares) share *= row_bytes;
    const std::string detail = "rows of " + tf::DataTypeString(tensor.dtype()) + row.DebugString();
    Call* call = NewCall(context, slot, EPL_ALL_TO_ALL_V, detail, done);
    call->request.send_counts = shares.data();  // copied by Start()
    call->segments.push_back(Segment(Bytes(tensor), nullptr, tensor.tensor_data().size()));
    call->allocate = [context, call, received_splits, row, row_bytes](const size_t* counts, int size, const uint8_t*,
                                                                      size_t) -> void* {
      tf::int64 rows = 0;
      for (int rank = 0; rank < size; ++rank) {
        received_splits->flat<tf::int64>()(rank) = static_cast<tf::int64>(counts[rank] / row_bytes);
        rows += static_cast<tf::int64>(counts[rank] / row_bytes);
      }
      tf::TensorShape shape = row;
      shape.InsertDim(0, rows);
      tf::Tensor* output = nullptr;
      call->failure = context->allocate_output(0, shape, &output);
      // Nothing is written when there are no rows at all, but NULL would mean failure.
      static char nothing;
      if (!call->failure.ok()) return nullptr;
      return rows == 0 ? &nothing : Bytes(*output);
    };
    call->Start();
  }
};

REGISTER_KERNEL_BUILDER(Name("EplAllToAll").Device(tf::DEVICE_CPU), AllToAllOp);
EPL_REGISTER_GPU_KERNEL(Name("EplAllToAll").HostMemory("splits").HostMemory("received_splits"), AllToAllOp);

}  // namespace
}  // namespace epl_ops
