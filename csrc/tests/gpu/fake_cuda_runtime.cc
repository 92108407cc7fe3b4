// A test double of the CUDA runtime: streams are threads with a queue, events are counters, memory is the host's.
//
// It keeps the order that CUDA promises and no other: streams run beside each other, and work that does not wait for
// what it needs finds old data. Used by csrc/tests/gpu only, loaded by its path.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "cuda_abi.h"
#include "fake_gpu.h"

namespace {

constexpr int kDevices = 8;
constexpr int kInvalidValue = 1, kInvalidDevice = 101, kInvalidHandle = 400;

int next_number = 1;
int broken = 0;
thread_local int current_device = 0;

// Streams may still use these when the process ends: never destroyed.
std::mutex& log_mutex = *new std::mutex;
std::string& log_text = *new std::string;

struct Object {
  int number = 0;
  int device = 0;
};

struct FakeStream : Object {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, ending = false;
  std::thread thread;

  void Loop() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || !work.empty(); });
      if (work.empty()) return;
      std::function<void()> next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      next();
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
  void Add(std::function<void()> next) {
    std::lock_guard<std::mutex> lock(mutex);
    work.push_back(std::move(next));
    changed.notify_all();
  }
};

// Shared by all events: tests are small.
std::mutex& event_mutex = *new std::mutex;
std::condition_variable& event_changed = *new std::condition_variable;

struct FakeEvent : Object {
  unsigned long recorded = 0, happened = 0;
};

int NewNumber() {
  std::lock_guard<std::mutex> lock(log_mutex);
  return next_number++;
}

FakeStream* StreamOf(void* stream) { return static_cast<FakeStream*>(stream); }
FakeEvent* EventOf(void* event) { return static_cast<FakeEvent*>(event); }

template <class... Args>
void Log(const char* format, Args... args) {
  char line[256];
  std::snprintf(line, sizeof(line), format, args...);
  fake_gpu_log(line);
}

}  // namespace

#define FAKE_EXPORT __attribute__((visibility("default")))

extern "C" {

FAKE_EXPORT void fake_gpu_log(const char* line) {
  std::lock_guard<std::mutex> lock(log_mutex);
  log_text += line;
  log_text += '\n';
}

FAKE_EXPORT size_t fake_gpu_read_log(char* to, size_t capacity) {
  std::lock_guard<std::mutex> lock(log_mutex);
  std::snprintf(to, capacity, "%s", log_text.c_str());
  return log_text.size();
}

FAKE_EXPORT void fake_gpu_clear_log(void) {
  std::lock_guard<std::mutex> lock(log_mutex);
  log_text.clear();
}

FAKE_EXPORT void fake_cuda_enqueue(void* stream, void (*work)(void*), void* arg) {
  StreamOf(stream)->Add([work, arg] { work(arg); });
}

FAKE_EXPORT void fake_cuda_drain(void* stream) {
  std::unique_lock<std::mutex> lock(StreamOf(stream)->mutex);
  StreamOf(stream)->changed.wait(lock, [=] { return StreamOf(stream)->work.empty() && !StreamOf(stream)->busy; });
}

FAKE_EXPORT void fake_cuda_break(int error) {
  std::lock_guard<std::mutex> lock(event_mutex);
  broken = error;
}

FAKE_EXPORT int fake_cuda_number(const void* object) { return static_cast<const Object*>(object)->number; }

FAKE_EXPORT const char* cudaGetErrorString(int error) {
  return error == 0 ? "no error" : error == 600 ? "device not ready" : "an error of the test double";
}
FAKE_EXPORT int cudaGetLastError(void) { return 0; }

FAKE_EXPORT int cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return 0;
}
FAKE_EXPORT int cudaGetDevice(int* device) {
  *device = current_device;
  return 0;
}
FAKE_EXPORT int cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  current_device = device;
  return 0;
}
FAKE_EXPORT int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return 0;
}

FAKE_EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}

FAKE_EXPORT int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  if (flags > 1 || priority > 0 || priority < -5) return kInvalidValue;
  FakeStream* made = new FakeStream;
  made->number = NewNumber();
  made->device = current_device;
  made->thread = std::thread([made] { made->Loop(); });
  *stream = made;
  Log("cudaStreamCreateWithPriority stream %d device %d flags %u priority %d", made->number, current_device, flags,
      priority);
  return 0;
}

FAKE_EXPORT int cudaStreamDestroy(void* stream) {
  FakeStream* gone = StreamOf(stream);
  {
    std::lock_guard<std::mutex> lock(gone->mutex);
    gone->ending = true;
    gone->changed.notify_all();
  }
  gone->thread.join();
  delete gone;
  return 0;
}

FAKE_EXPORT int cudaStreamWaitEvent(void* stream, void* event, unsigned flags) {
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  if (flags != 0) return kInvalidValue;
  FakeEvent* waited = EventOf(event);
  Log("cudaStreamWaitEvent stream %d event %d", StreamOf(stream)->number, waited->number);
  std::unique_lock<std::mutex> lock(event_mutex);
  const unsigned long target = waited->recorded;
  lock.unlock();
  StreamOf(stream)->Add([waited, target] {
    std::unique_lock<std::mutex> waiting(event_mutex);
    event_changed.wait(waiting, [=] { return waited->happened >= target; });
  });
  return 0;
}

FAKE_EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags) {
  if (flags != 2) return kInvalidValue;  // timing is not for this library
  FakeEvent* made = new FakeEvent;
  made->number = NewNumber();
  made->device = current_device;
  *event = made;
  return 0;
}

// Streams may still refer to it, as CUDA allows: it is not freed.
FAKE_EXPORT int cudaEventDestroy(void*) { return 0; }

FAKE_EXPORT int cudaEventRecord(void* event, void* stream) {
  if (stream == nullptr || event == nullptr) return kInvalidHandle;
  FakeEvent* recorded = EventOf(event);
  if (recorded->device != StreamOf(stream)->device) return kInvalidHandle;
  Log("cudaEventRecord event %d stream %d", recorded->number, StreamOf(stream)->number);
  std::unique_lock<std::mutex> lock(event_mutex);
  const unsigned long now = ++recorded->recorded;
  lock.unlock();
  StreamOf(stream)->Add([recorded, now] {
    std::lock_guard<std::mutex> happening(event_mutex);
    if (recorded->happened < now) recorded->happened = now;
    event_changed.notify_all();
  });
  return 0;
}

FAKE_EXPORT int cudaEventQuery(void* event) {
  std::lock_guard<std::mutex> lock(event_mutex);
  if (broken != 0) return broken;
  return EventOf(event)->happened >= EventOf(event)->recorded ? 0 : 600;
}

FAKE_EXPORT int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  if (kind != 3) return kInvalidValue;
  Log("cudaMemcpyAsync bytes %zu stream %d", bytes, StreamOf(stream)->number);
  StreamOf(stream)->Add([=] { std::memmove(to, from, bytes); });
  return 0;
}

FAKE_EXPORT int cudaMemsetAsync(void* data, int value, size_t bytes, void* stream) {
  Log("cudaMemsetAsync bytes %zu stream %d", bytes, StreamOf(stream)->number);
  StreamOf(stream)->Add([=] { std::memset(data, value, bytes); });
  return 0;
}

FAKE_EXPORT int cudaMalloc(void** data, size_t bytes) {
  Log("cudaMalloc bytes %zu", bytes);
  *data = std::malloc(bytes + 1);
  return 0;
}

FAKE_EXPORT int cudaFree(void* data) {
  std::free(data);
  return 0;
}

}  // extern "C"
