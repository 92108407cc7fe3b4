// Tensors in the memory that workers of a host share, for results that collectives then write without a copy on the
// way.
#ifndef EPL_SHARED_TENSOR_H_
#define EPL_SHARED_TENSOR_H_

#include "epl_comm.h"
#include "tensorflow/core/framework/tensor.h"

namespace epl_ops {

// False where there is no such memory, or no room: any other memory serves.
bool SharedTensor(epl_comm* comm, tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                  tensorflow::Tensor* tensor);

}  // namespace epl_ops

#endif  // EPL_SHARED_TENSOR_H_
