// What the kernels of collectives that users call (epl.ops) have in common.
#ifndef EPL_COLLECTIVE_OP_H_
#define EPL_COLLECTIVE_OP_H_

#include <memory>
#include <string>
#include <vector>

#include "op_helpers.h"
#include "tensorflow/core/lib/core/errors.h"

namespace epl_ops {

// The attributes that all of them have, as lines of a REGISTER_OP.
#define EPL_COLLECTIVE_ATTRS \
  Attr("comm: int = 0").Attr("tag: int = -1").Attr("workers: int >= 1").Attr("collective_name: string = ''")

class CollectiveOp : public tf::AsyncOpKernel {
 public:
  explicit CollectiveOp(tf::OpKernelConstruction* context);

  // It only starts something, so the executor does so at once, instead of queueing it behind work for its threads.
  bool IsExpensive() override { return false; }

 protected:
  // The communicator, or an error that says why there is none.
  tf::Status Slot(std::shared_ptr<PoolSlot>* slot) const;

  // A request that ends the kernel's run, with the tag and "collective_name (detail)" as its name. `detail` has what
  // ranks must agree on and the communicator cannot see; it may be empty.
  Call* NewCall(tf::OpKernelContext* context, const std::shared_ptr<PoolSlot>& slot, epl_collective collective,
                const std::string& detail, const DoneCallback& done) const;

  // Fails unless the attribute `key` holds the number of a worker; reads it into `worker`.
  tf::Status GetWorker(tf::OpKernelConstruction* context, const char* key, int* worker) const;

  // The attribute "reduce_op".
  static tf::Status GetReduceOp(tf::OpKernelConstruction* context, epl_reduce_op* reduce_op);

  // The communicator's type for a tensor whose elements are reduced.
  tf::Status TypeToReduce(const tf::Tensor& tensor, epl_dtype* dtype) const;

  static epl_segment Segment(const void* in, void* out, size_t count);

  int slot_, workers_;
  tf::int64 tag_;
  std::string collective_name_;
};

// Type and shape of a row: the tensor without its first dimension. Fails for a scalar.
tf::Status RowOf(const tf::Tensor& tensor, const std::string& name, tf::TensorShape* row);

// The rows that each of `workers` gets: `sizes`, a vector of int64, or where it is empty `rows` in equal parts.
// `what` is what messages call sizes. Fails when they do not add up.
tf::Status SharesOf(const tf::Tensor& sizes, tf::int64 rows, int workers, const std::string& name, const char* what,
                    std::vector<size_t>* shares);

}  // namespace epl_ops

#endif  // EPL_COLLECTIVE_OP_H_
