#include "collective_op.h"

namespace epl_ops {

CollectiveOp::CollectiveOp(tf::OpKernelConstruction* context) : AsyncOpKernel(context) {
  OP_REQUIRES_OK(context, context->GetAttr("comm", &slot_));
  OP_REQUIRES_OK(context, context->GetAttr("tag", &tag_));
  OP_REQUIRES_OK(context, context->GetAttr("workers", &workers_));
  OP_REQUIRES_OK(context, context->GetAttr("collective_name", &collective_name_));
  if (collective_name_.empty()) collective_name_ = name();
}

tf::Status CollectiveOp::Slot(std::shared_ptr<PoolSlot>* slot) const {
  *slot = std::make_shared<PoolSlot>(slot_);
  if ((*slot)->get() == nullptr) return NoCommunicator(slot_, collective_name_);
  const int size = epl_comm_size((*slot)->get());
  if (size == workers_) return tf::Status();
  return tf::errors::FailedPrecondition("'", collective_name_, "' was made for ", workers_,
                                        " workers, but the job has ", size,
                                        ". Build the graph in the job that runs it.");
}

Call* CollectiveOp::NewCall(tf::OpKernelContext* context, const std::shared_ptr<PoolSlot>& slot,
                            epl_collective collective, const std::string& detail, const DoneCallback& done) const {
  const std::string name = detail.empty() ? collective_name_ : collective_name_ + " (" + detail + ")";
  Call* call = new Call(context, slot, name, [context, done](const tf::Status& status) {
    if (!status.ok()) context->SetStatus(status);
    done();
  });
  call->request.tag = tag_;
  call->request.collective = collective;
  call->request.dtype = EPL_UINT8;
  return call;
}

tf::Status CollectiveOp::GetWorker(tf::OpKernelConstruction* context, const char* key, int* worker) const {
  TF_RETURN_IF_ERROR(context->GetAttr(key, worker));
  if (*worker >= 0 && *worker < workers_) return tf::Status();
  return tf::errors::InvalidArgument("'", collective_name_, "': ", key, " is ", *worker,
                                     "; it must be the number of a worker, from 0 to ", workers_ - 1, ".");
}

tf::Status CollectiveOp::GetReduceOp(tf::OpKernelConstruction* context, epl_reduce_op* reduce_op) {
  std::string op;
  TF_RETURN_IF_ERROR(context->GetAttr("reduce_op", &op));
  *reduce_op = op == "mean"   ? EPL_MEAN
               : op == "min"  ? EPL_MIN
               : op == "max"  ? EPL_MAX
               : op == "prod" ? EPL_PROD
                              : EPL_SUM;
  return tf::Status();
}

tf::Status CollectiveOp::TypeToReduce(const tf::Tensor& tensor, epl_dtype* dtype) const {
  if (ToCommType(tensor.dtype(), dtype)) return tf::Status();
  return tf::errors::InvalidArgument("'", collective_name_, "': ", tf::DataTypeString(tensor.dtype()),
                                     " cannot be reduced between workers.");
}

epl_segment CollectiveOp::Segment(const void* in, void* out, size_t count) {
  epl_segment segment;
  segment.in = in;
  segment.out = out;
  segment.count = count;
  return segment;
}

tf::Status RowOf(const tf::Tensor& tensor, const std::string& name, tf::TensorShape* row) {
  *row = tensor.shape();
  if (row->dims() == 0) {
    return tf::errors::InvalidArgument("'", name,
                                       "': a scalar has no rows to divide over workers; "
                                       "make it a tensor of at least one dimension.");
  }
  row->RemoveDim(0);
  return tf::Status();
}

tf::Status SharesOf(const tf::Tensor& sizes, tf::int64 rows, int workers, const std::string& name, const char* what,
                    std::vector<size_t>* shares) {
  if (sizes.NumElements() == 0) {
    if (rows % workers != 0) {
      return tf::errors::InvalidArgument("'", name, "': ", rows, " rows do not divide over ", workers, " workers (",
                                         rows, " = ", rows / workers, " * ", workers, " + ", rows % workers,
                                         "). Use a multiple of ", workers, ", or give ", what,
                                         ", the number of rows of each worker.");
    }
    shares->assign(workers, static_cast<size_t>(rows / workers));
    return tf::Status();
  }
  if (sizes.NumElements() != workers) {
    return tf::errors::InvalidArgument("'", name, "': ", what, " has ", sizes.NumElements(), " numbers for ", workers,
                                       " workers; it must have one for each.");
  }
  const auto numbers = sizes.flat<tf::int64>();
  tf::int64 left = rows;
  for (int worker = 0; worker < workers; ++worker) {
    if (numbers(worker) < 0) {
      return tf::errors::InvalidArgument("'", name, "': ", what, " has ", numbers(worker), " rows for worker ", worker,
                                         "; the number of rows must be 0 or more.");
    }
    left = numbers(worker) > left ? -1 : left - numbers(worker);
    if (left < 0) break;
    shares->push_back(static_cast<size_t>(numbers(worker)));
  }
  if (left == 0) return tf::Status();
  return tf::errors::InvalidArgument("'", name, "': ", what, " [", sizes.SummarizeValue(workers),
                                     "] do not add up to the ", rows, " rows of the tensor.");
}

}  // namespace epl_ops
