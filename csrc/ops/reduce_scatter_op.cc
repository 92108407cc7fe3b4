// EplReduceScatter: element-wise reduction over workers, each of which gets a share of the rows.
#include <memory>
#include <string>
#include <vector>

#include "collective_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplReduceScatter")
    .Input("tensor: T")
    .Input("sizes: int64")
    .Output("share: T")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("reduce_op: {'sum', 'mean', 'min', 'max', 'prod'} = 'sum'")
    .EPL_COLLECTIVE_ATTRS.SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle tensor, sizes, share;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &tensor));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &sizes));
      int workers;
      TF_RETURN_IF_ERROR(c->GetAttr("workers", &workers));
      tf::shape_inference::DimensionHandle rows = c->Dim(tensor, 0);
      const bool equal = c->ValueKnown(c->Dim(sizes, 0)) && c->Value(c->Dim(sizes, 0)) == 0;
      // Rows that do not divide are reported by the kernel, which has the words for it.
      if (equal && c->ValueKnown(rows) && c->Value(rows) % workers == 0) {
        rows = c->MakeDim(c->Value(rows) / workers);
      } else if (workers > 1) {
        rows = c->UnknownDim();
      }
      TF_RETURN_IF_ERROR(c->ReplaceDim(tensor, 0, rows, &share));
      c->set_output(0, share);
      return tf::Status();
    })
    .Doc(R"doc(
Reduces a tensor over all workers and gives each worker its share of the rows of the result.

tensor: [n, ...], the same shape on all workers.
sizes: the number of rows of each worker, in their order, the same on all workers; empty: equal shares.
share: [rows of this worker, ...].
comm: slot of the communicator in this process's pool; not used when workers is 1.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
workers: number of workers; with 1 the share is the tensor.
collective_name: what error messages call this, the same on all workers; default: the node's name.
)doc");

class ReduceScatterOp : public CollectiveOp {
 public:
  explicit ReduceScatterOp(tf::OpKernelConstruction* context) : CollectiveOp(context) {
    if (!context->status().ok()) return;
    OP_REQUIRES_OK(context, GetReduceOp(context, &reduce_op_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const tf::Tensor& tensor = context->input(0);
    tf::TensorShape row;
    OP_REQUIRES_OK_ASYNC(context, RowOf(tensor, collective_name_, &row), done);
    std::vector<size_t> shares;
    OP_REQUIRES_OK_ASYNC(
        context, SharesOf(context->input(1), tensor.dim_size(0), workers_, collective_name_, "sizes", &shares), done);
    if (workers_ == 1) {
      context->set_output(0, tensor);
      done();
      return;
    }
    std::shared_ptr<PoolSlot> slot;
    OP_REQUIRES_OK_ASYNC(context, Slot(&slot), done);
    epl_dtype dtype;
    OP_REQUIRES_OK_ASYNC(context, TypeToReduce(tensor, &dtype), done);
    tf::TensorShape shape = row;
    shape.InsertDim(0, static_cast<tf::int64>(shares[epl_comm_rank(slot->get())]));
    tf::Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape, &output), done);
    for (size_t& share : shares) share *= row.num_elements();
    Call* call = NewCall(context, slot, EPL_REDUCE_SCATTER, "rows of " + row.DebugString(), done);
    call->request.dtype = dtype;
    call->request.reduce_op = reduce_op_;
    call->request.send_counts = shares.data();  // copied by Start()
    call->segments.push_back(Segment(Bytes(tensor), Bytes(*output), tensor.NumElements()));
    call->Start();
  }

 private:
  epl_reduce_op reduce_op_;
};

REGISTER_KERNEL_BUILDER(Name("EplReduceScatter").Device(tf::DEVICE_CPU), ReduceScatterOp);
EPL_REGISTER_GPU_KERNEL(Name("EplReduceScatter").HostMemory("sizes"), ReduceScatterOp);

}  // namespace
}  // namespace epl_ops
