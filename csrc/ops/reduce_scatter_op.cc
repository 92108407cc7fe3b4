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
    .Input("tensors: N * T")
    .Input("sizes: int64")
    .Output("share: T")
    .Attr("N: int >= 1 = 1")
    .Attr("T: {half, bfloat16, float, double, int32, int64}")
    .Attr("reduce_op: {'sum', 'mean', 'min', 'max', 'prod'} = 'sum'")
    .EPL_COLLECTIVE_ATTRS.SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle tensor, sizes, share;
      const int count = c->num_inputs() - 1;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(count), 1, &sizes));
      int workers;
      TF_RETURN_IF_ERROR(c->GetAttr("workers", &workers));
      tf::shape_inference::DimensionHandle rows = c->MakeDim(0);
      for (int i = 0; i < count; ++i) {
        TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(i), 1, &tensor));
        TF_RETURN_IF_ERROR(c->Add(rows, c->Dim(tensor, 0), &rows));
      }
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

tensors: [n, ...], the same shape on all workers; of several, which differ in n alone, the rows follow each other.
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
    OP_REQUIRES(
        context, !OnGpu(context) || workers_ > 1 || context->num_inputs() == 2,
        tf::errors::InvalidArgument("EplReduceScatter '", name(), "': on a GPU it works between workers; to put ",
                                    context->num_inputs() - 1, " tensors of one worker together, use ConcatV2."));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    const int count = context->num_inputs() - 1;
    const tf::Tensor& tensor = context->input(0);
    tf::TensorShape row;
    tf::int64 rows = 0;
    for (int i = 0; i < count; ++i) {
      tf::TensorShape other;
      OP_REQUIRES_OK_ASYNC(context, RowOf(context->input(i), collective_name_, &other), done);
      if (i == 0) row = other;
      OP_REQUIRES_ASYNC(context, other == row,
                        tf::errors::InvalidArgument("reduce_scatter '", collective_name_, "': tensor ", i,
                                                    " has rows of shape ", other.DebugString(), ", the first one of ",
                                                    row.DebugString(), "; they must be the same"),
                        done);
      rows += context->input(i).dim_size(0);
    }
    std::vector<size_t> shares;
    OP_REQUIRES_OK_ASYNC(context, SharesOf(context->input(count), rows, workers_, collective_name_, "sizes", &shares),
                         done);
    if (workers_ == 1) {
      OP_REQUIRES_OK_ASYNC(context, Joined(context, row, rows), done);
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
    for (int i = 0; i < count; ++i) {
      const tf::Tensor& each = context->input(i);
      call->segments.push_back(Segment(Bytes(each), i == 0 ? Bytes(*output) : nullptr, each.NumElements()));
    }
    call->Start();
  }

 private:
  // Gives the tensors one after the other.
  static tf::Status Joined(tf::OpKernelContext* context, tf::TensorShape shape, tf::int64 rows) {
    const int count = context->num_inputs() - 1;
    if (count == 1) {
      context->set_output(0, context->input(0));
      return tf::Status();
    }
    shape.InsertDim(0, rows);
    tf::Tensor* output = nullptr;
    tf::Status status = context->allocate_output(0, shape, &output);
    if (!status.ok()) return status;
    CopyInputs(context, count, Bytes(*output));
    return tf::Status();
  }

  epl_reduce_op reduce_op_;
};

REGISTER_KERNEL_BUILDER(Name("EplReduceScatter").Device(tf::DEVICE_CPU), ReduceScatterOp);
EPL_REGISTER_GPU_KERNEL(Name("EplReduceScatter").HostMemory("sizes"), ReduceScatterOp);

}  // namespace
}  // namespace epl_ops
