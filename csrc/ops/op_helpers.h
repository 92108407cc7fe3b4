// What the kernels in this folder share: pool slots, error codes, one asynchronous request, and element-wise loops.
#ifndef EPL_OP_HELPERS_H_
#define EPL_OP_HELPERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "epl_comm.h"
#include "gpu_stream.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace epl_ops {

namespace tf = tensorflow;

// The element type as the communicator knows it, or false where it has none.
bool ToCommType(tf::DataType dtype, epl_dtype* result);

// A communicator's error as a TensorFlow error that names the collective. Its class tells a session what to do.
tf::Status ToStatus(int code, const std::string& message, const std::string& name);

// A communicator of the pool, kept alive while this object lives.
class PoolSlot {
 public:
  explicit PoolSlot(int slot) : comm_(epl_pool_acquire(slot)) {}
  ~PoolSlot() {
    if (comm_ != nullptr) epl_pool_release(comm_);
  }
  PoolSlot(const PoolSlot&) = delete;
  PoolSlot& operator=(const PoolSlot&) = delete;
  epl_comm* get() const { return comm_; }

 private:
  epl_comm* comm_;
};

// FailedPrecondition that says why there is no communicator in `slot` and what to do.
tf::Status NoCommunicator(int slot, const std::string& name);

// One collective under way. It owns itself: Start() hands it to the communicator, and it goes away after `finish`.
//
// A step that is cancelled aborts the communicator: the collective would never complete at the peers either, and only
// the communicator knows when the buffers are free again. So `finish` always comes from the communicator, never
// earlier.
class Call {
 public:
  // `name` is compared between ranks. `finish` gets the outcome, on the communicator's progress thread, and must call
  // the kernel's `done`.
  Call(tf::OpKernelContext* context, std::shared_ptr<PoolSlot> slot, std::string name,
       std::function<void(const tf::Status&)> finish);

  epl_request request;                // zeroed but for tag -1, scale 1.0 and what Start() fills in
  std::vector<epl_segment> segments;  // Start() puts them into the request
  std::string header;                 // likewise
  // For collectives whose output size depends on the peers; may be empty. Returns the output buffer or nullptr after it
  // has set `failure`.
  std::function<void*(const size_t* counts, int size, const uint8_t* extra, size_t extra_length)> allocate;
  tf::Status failure;

  void Start();

 private:
  static void Done(void* arg, int code, const char* message);
  static void* Allocate(void* arg, const size_t* counts, int size, const uint8_t* extra, size_t extra_length);
  static int Refusal(void* arg, char* message, size_t length);

  tf::OpKernelContext* context_;
  std::shared_ptr<PoolSlot> slot_;
  std::string name_;
  std::function<void(const tf::Status&)> finish_;
  tf::CancellationToken token_ = 0;
};

// Bytes of a tensor; the tensor must not hold strings or other objects.
inline char* Bytes(const tf::Tensor& tensor) { return const_cast<char*>(tensor.tensor_data().data()); }

// Copies the first `count` inputs of a kernel to host memory, one after the other.
void CopyInputs(tf::OpKernelContext* context, int count, char* to);

// Fills a tensor with zeros: at once on the host, in the order of the stream on a GPU, where `comm` must be there.
tf::Status FillWithZeros(tf::OpKernelContext* context, epl_comm* comm, const tf::Tensor& tensor);

// Runs `work` on the device's own threads, so that a progress thread goes back to its communicator.
void RunOnDevice(tf::OpKernelContext* context, std::function<void()> work);

}  // namespace epl_ops

#endif  // EPL_OP_HELPERS_H_
