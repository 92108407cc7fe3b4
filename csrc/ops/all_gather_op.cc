// EplAllGather: concatenates tensors of all workers and local replicas on dimension 0.
#include <memory>
#include <string>
#include <vector>

#include "op_helpers.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"

namespace epl_ops {
namespace {

REGISTER_OP("EplAllGather")
    .Input("tensors: R * T")
    .Output("gathered: T")
    .Attr("T: {numbertype, bool}")
    .Attr("R: int >= 1 = 1")
    .Attr("comm: int = 0")
    .Attr("tag: int = -1")
    .Attr("workers: int >= 1")
    .Attr("others_only: bool = false")
    .Attr("collective_name: string = ''")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle trailing;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &trailing));
      TF_RETURN_IF_ERROR(c->Subshape(trailing, 1, &trailing));
      for (int i = 1; i < c->num_inputs(); ++i) {
        tf::shape_inference::ShapeHandle other;
        TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(i), 1, &other));
        TF_RETURN_IF_ERROR(c->Subshape(other, 1, &other));
        TF_RETURN_IF_ERROR(c->Merge(trailing, other, &trailing));
      }
      tf::shape_inference::ShapeHandle gathered;
      TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(c->UnknownDim()), trailing, &gathered));
      c->set_output(0, gathered);
      return tf::Status();
    })
    .Doc(R"doc(
Concatenates tensors on dimension 0, in the order of workers and, within a worker, of local replicas.

tensors: R tensors [n_i, ...]; n_i may differ between replicas, workers and steps, the other dimensions must be equal.
gathered: [sum of all n_i, ...].
comm: slot of the communicator in this process's pool; not used when workers is 1.
tag: place in the order that the pool expects, the same on all workers; -1: the order of submission.
workers: number of workers; 1 concatenates the local replicas only.
others_only: nobody looks at what comes of this worker's own tensors, which need not be copied.
collective_name: what error messages call this, the same on all workers; default: the node's name.
)doc");

class AllGatherOp : public tf::AsyncOpKernel {
 public:
  explicit AllGatherOp(tf::OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("comm", &slot_));
    OP_REQUIRES_OK(context, context->GetAttr("tag", &tag_));
    OP_REQUIRES_OK(context, context->GetAttr("workers", &workers_));
    OP_REQUIRES_OK(context, context->GetAttr("others_only", &others_only_));
    OP_REQUIRES_OK(context, context->GetAttr("collective_name", &collective_name_));
    if (collective_name_.empty()) collective_name_ = name();
    OP_REQUIRES(context, !OnGpu(context) || workers_ > 1 || context->num_inputs() == 1,
                tf::errors::InvalidArgument("EplAllGather '", name(), "': on a GPU it works between workers; to put ",
                                            context->num_inputs(), " tensors of one worker together, use ConcatV2."));
  }

  // As of EplAllReduce.
  bool IsExpensive() override { return workers_ == 1; }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    tf::TensorShape row;
    tf::int64 local_rows = 0;
    OP_REQUIRES_OK_ASYNC(context, CheckInputs(context, &row, &local_rows), done);
    if (workers_ == 1 && context->num_inputs() == 1) {
      context->set_output(0, context->input(0));
      done();
      return;
    }
    if (workers_ == 1) {
      tf::Tensor* output = nullptr;
      OP_REQUIRES_OK_ASYNC(context, AllocateOutput(context, row, local_rows, &output), done);
      CopyInputs(context, context->num_inputs(), Bytes(*output));
      done();
      return;
    }
    std::shared_ptr<PoolSlot> slot = std::make_shared<PoolSlot>(slot_);
    OP_REQUIRES_ASYNC(context, slot->get() != nullptr, NoCommunicator(slot_, collective_name_), done);
    const size_t row_bytes = row.num_elements() * tf::DataTypeSize(context->input_dtype(0));
    OP_REQUIRES_ASYNC(context, row_bytes > 0,
                      tf::errors::InvalidArgument("'", collective_name_, "': rows of shape ", row.DebugString(),
                                                  " have no elements, so they cannot be gathered from other workers."),
                      done);
    Start(context, slot, row, row_bytes, done);
  }

 private:
  tf::Status CheckInputs(tf::OpKernelContext* context, tf::TensorShape* row, tf::int64* rows) const {
    for (int i = 0; i < context->num_inputs(); ++i) {
      tf::TensorShape shape = context->input(i).shape();
      if (shape.dims() == 0) {
        return tf::errors::InvalidArgument("'", collective_name_,
                                           "': a scalar cannot be gathered on dimension 0; "
                                           "make it a vector of one element.");
      }
      *rows += shape.dim_size(0);
      shape.RemoveDim(0);
      if (i == 0) *row = shape;
      if (shape != *row) {
        return tf::errors::InvalidArgument("'", collective_name_, "': rows have shape ", row->DebugString(),
                                           " in local replica 0 and ", shape.DebugString(), " in local replica ", i,
                                           "; they must be equal.");
      }
    }
    return tf::Status();
  }

  static tf::Status AllocateOutput(tf::OpKernelContext* context, const tf::TensorShape& row, tf::int64 rows,
                                   tf::Tensor** output) {
    tf::TensorShape shape = row;
    shape.InsertDim(0, rows);
    return context->allocate_output(0, shape, output);
  }

  // Bytes travel, whatever the element type; type and row shape are in the name, which ranks compare.
  void Start(tf::OpKernelContext* context, const std::shared_ptr<PoolSlot>& slot, const tf::TensorShape& row,
             size_t row_bytes, const DoneCallback& done) {
    const std::string name =
        collective_name_ + " (rows of " + tf::DataTypeString(context->input_dtype(0)) + row.DebugString() + ")";
    Call* call = new Call(context, slot, name, [context, done](const tf::Status& status) {
      if (!status.ok()) context->SetStatus(status);
      done();
    });
    call->request.tag = tag_;
    call->request.collective = EPL_ALL_GATHER_V;
    call->request.dtype = EPL_UINT8;
    for (int i = 0; i < context->num_inputs(); ++i) {
      epl_segment segment;
      segment.in = Bytes(context->input(i));
      segment.out = others_only_ ? Bytes(context->input(i)) : nullptr;
      segment.count = context->input(i).tensor_data().size();
      call->segments.push_back(segment);
    }
    call->allocate = [context, call, row, row_bytes](const size_t* counts, int size, const uint8_t*, size_t) -> void* {
      size_t total = 0;
      for (int rank = 0; rank < size; ++rank) total += counts[rank];
      tf::Tensor* output = nullptr;
      call->failure = AllocateOutput(context, row, static_cast<tf::int64>(total / row_bytes), &output);
      // Nothing is written when there are no rows at all, but NULL would mean failure.
      static char nothing;
      if (!call->failure.ok()) return nullptr;
      return total == 0 ? &nothing : Bytes(*output);
    };
    call->Start();
  }

  int slot_, workers_;
  bool others_only_;
  tf::int64 tag_;
  std::string collective_name_;
};

REGISTER_KERNEL_BUILDER(Name("EplAllGather").Device(tf::DEVICE_CPU), AllGatherOp);
EPL_REGISTER_GPU_KERNEL(Name("EplAllGather"), AllGatherOp);

}  // namespace
}  // namespace epl_ops
