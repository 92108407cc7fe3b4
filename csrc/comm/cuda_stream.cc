#include "cuda_stream.h"

#include <algorithm>

namespace epl {

CurrentDevice::CurrentDevice(const GpuLibraries& libraries, int device) : libraries_(libraries) {
  int current = -1;
  status_ = libraries.Check("cudaGetDevice", libraries.cuda.GetDevice(&current));
  if (!status_.ok() || current == device) return;
  status_ = libraries.Check("cudaSetDevice", libraries.cuda.SetDevice(device));
  if (status_.ok()) before_ = current;
}

CurrentDevice::~CurrentDevice() {
  if (before_ >= 0) libraries_.cuda.SetDevice(before_);
}

CudaEvents::~CudaEvents() {
  for (cuda::Event event : free_) libraries_.cuda.EventDestroy(event);
}

Status CudaEvents::Take(cuda::Event* event) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      *event = free_.back();
      free_.pop_back();
      return Status();
    }
  }
  const CurrentDevice current(libraries_, device_);
  if (!current.status().ok()) return current.status();
  // Without timing: faster, and nobody asks for it.
  return libraries_.Check("cudaEventCreateWithFlags", libraries_.cuda.EventCreate(event, cuda::kEventDisableTiming));
}

Status CudaEvents::Record(cuda::Stream stream, std::shared_ptr<void>* event) {
  cuda::Event taken = nullptr;
  Status status = Take(&taken);
  if (!status.ok()) return status;
  const std::shared_ptr<CudaEvents> self = shared_from_this();
  *event = std::shared_ptr<void>(taken, [self](cuda::Event used) {
    std::lock_guard<std::mutex> lock(self->mutex_);
    self->free_.push_back(used);
  });
  return libraries_.Check("cudaEventRecord", libraries_.cuda.EventRecord(taken, stream));
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) libraries_.cuda.StreamDestroy(stream_);
  for (void* memory : memory_) libraries_.cuda.Free(memory);
}

Status CudaStream::Create() {
  const CurrentDevice current(libraries_, device_);
  if (!current.status().ok()) return current.status();
  int least = 0, greatest = 0;
  Status status =
      libraries_.Check("cudaDeviceGetStreamPriorityRange", libraries_.cuda.StreamPriorities(&least, &greatest));
  if (!status.ok()) return status;
  // First in line: other ranks wait for this one's part, while its own computation has other work.
  return libraries_.Check("cudaStreamCreateWithPriority",
                          libraries_.cuda.StreamCreate(&stream_, cuda::kStreamNonBlocking, greatest));
}

Status CudaStream::WaitFor(const std::shared_ptr<void>& event) const {
  return libraries_.Check("cudaStreamWaitEvent", libraries_.cuda.StreamWaitEvent(stream_, event.get(), 0));
}

Status CudaStream::Copy(void* to, const void* from, size_t bytes) const {
  if (bytes == 0 || to == from) return Status();
  return libraries_.Check("cudaMemcpyAsync",
                          libraries_.cuda.CopyAsync(to, from, bytes, cuda::kCopyDeviceToDevice, stream_));
}

Status CudaStream::Reserve(size_t bytes, char** memory) {
  if (memory_.empty() || bytes > capacity_) {
    const CurrentDevice current(libraries_, device_);
    if (!current.status().ok()) return current.status();
    const size_t capacity = std::max(bytes, 2 * capacity_);
    void* fresh = nullptr;
    Status status = libraries_.Check("cudaMalloc", libraries_.cuda.Malloc(&fresh, capacity));
    if (!status.ok()) return status;
    memory_.push_back(fresh);
    capacity_ = capacity;
  }
  *memory = static_cast<char*>(memory_.back());
  return Status();
}

}  // namespace epl
