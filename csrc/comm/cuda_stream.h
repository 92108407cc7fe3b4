// A stream and events of one GPU, for a communicator.
#ifndef EPL_COMM_CUDA_STREAM_H_
#define EPL_COMM_CUDA_STREAM_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "nccl_libraries.h"
#include "status.h"

namespace epl {

// Makes a device the current one of this thread while it lives. The thread may be TensorFlow's, which keeps in mind
// what it has set.
class CurrentDevice {
 public:
  CurrentDevice(const GpuLibraries& libraries, int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  const Status& status() const { return status_; }

 private:
  const GpuLibraries& libraries_;
  int before_ = -1;  // -1: nothing to set back
  Status status_;
};

// Events are used again and again. Any thread.
class CudaEvents : public std::enable_shared_from_this<CudaEvents> {
 public:
  CudaEvents(const GpuLibraries& libraries, int device) : libraries_(libraries), device_(device) {}
  ~CudaEvents();

  // An event that marks what is on `stream` now; it goes back when nothing refers to it.
  Status Record(cuda::Stream stream, std::shared_ptr<void>* event);

 private:
  Status Take(cuda::Event* event);

  const GpuLibraries& libraries_;
  const int device_;
  std::mutex mutex_;
  std::vector<cuda::Event> free_;
};

// The stream that a communicator runs its work on, beside the streams of its callers, and memory for messages that
// have to be put together there.
class CudaStream {
 public:
  CudaStream(const GpuLibraries& libraries, int device) : libraries_(libraries), device_(device) {}
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Status Create();
  cuda::Stream get() const { return stream_; }

  // What comes after this on the stream begins when `event` has happened.
  Status WaitFor(const std::shared_ptr<void>& event) const;
  Status Copy(void* to, const void* from, size_t bytes) const;

  // Memory of at least this size; the same as last time if that was large enough. Nothing may be under way in it. What
  // became too small stays until the end: giving memory back waits for all work on the GPU.
  Status Reserve(size_t bytes, char** memory);

 private:
  const GpuLibraries& libraries_;
  const int device_;
  cuda::Stream stream_ = nullptr;
  std::vector<void*> memory_;  // the last one is the largest
  size_t capacity_ = 0;        // of the last one
};

}  // namespace epl
#endif  // EPL_COMM_CUDA_STREAM_H_
