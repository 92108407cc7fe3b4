#include "shared_tensor.h"

#include "tensorflow/core/framework/allocation_description.pb.h"

namespace epl_ops {
namespace {

namespace tf = tensorflow;

// Gives the memory back with its last tensor, which may outlive the step and the communicator.
class SharedBuffer : public tf::TensorBuffer {
 public:
  SharedBuffer(void* data, size_t bytes) : TensorBuffer(data), bytes_(bytes) {}
  ~SharedBuffer() override { epl_comm_free(data()); }
  size_t size() const override { return bytes_; }
  tf::TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tf::AllocationDescription* to) const override {
    to->set_requested_bytes(static_cast<tf::int64>(bytes_));
    to->set_allocator_name("epl_shared");
  }

 private:
  const size_t bytes_;
};

}  // namespace

bool SharedTensor(epl_comm* comm, tf::DataType dtype, const tf::TensorShape& shape, tf::Tensor* tensor) {
  const size_t bytes = static_cast<size_t>(shape.num_elements()) * tf::DataTypeSize(dtype);
  void* data = epl_comm_allocate(comm, bytes);
  if (data == nullptr) return false;
  SharedBuffer* buffer = new SharedBuffer(data, bytes);
  *tensor = tf::Tensor(dtype, shape, buffer);
  buffer->Unref();  // the tensor has its own reference
  return true;
}

}  // namespace epl_ops
