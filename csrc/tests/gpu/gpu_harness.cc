#include "gpu_harness.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <thread>

namespace test {
namespace {

void* Open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  CHECK_THAT(handle != nullptr, dlerror());
  if (handle == nullptr) _exit(1);
  return handle;
}

template <class Function>
void Bind(void* handle, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  CHECK_THAT(*function != nullptr, name);
}

}  // namespace

std::string FakeLibrary(const char* name) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  return program.substr(0, program.rfind('/') + 1) + name;
}

Gpu::Gpu(int device) {
  void* cuda = Open(FakeLibrary("libfake_cuda_runtime.so"));
  void* nccl = Open(FakeLibrary("libfake_nccl.so"));
  Bind(cuda, "fake_cuda_enqueue", &enqueue);
  Bind(cuda, "fake_cuda_drain", &drain);
  Bind(cuda, "fake_cuda_break", &break_cuda);
  Bind(cuda, "fake_cuda_number", &number);
  Bind(cuda, "fake_gpu_read_log", &read_log_);
  Bind(cuda, "fake_gpu_clear_log", &clear_log_);
  Bind(nccl, "fake_nccl_fail_call", &fail_call);
  Bind(nccl, "fake_nccl_stall", &stall);
  int (*create)(void**, unsigned, int);
  int (*set_device)(int);
  Bind(cuda, "cudaSetDevice", &set_device);
  Bind(cuda, "cudaStreamCreateWithPriority", &create);
  CHECK_THAT(set_device(device) == 0 && create(&stream, 1, 0) == 0, "the caller's stream");
  set_device(0);
}

std::vector<std::string> Gpu::TakeLog() const {
  std::string text(read_log_(nullptr, 0) + 4096, '\0');
  text.resize(read_log_(&text[0], text.size()));
  clear_log_();
  std::istringstream stream_of(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream_of, line);) lines.push_back(line);
  return lines;
}

void Gpu::EnqueueLate(int milliseconds, std::function<void()> work) const {
  auto* kept = new std::function<void()>([milliseconds, work] {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    work();
  });
  enqueue(
      stream,
      [](void* arg) {
        auto* run = static_cast<std::function<void()>*>(arg);
        (*run)();
        delete run;
      },
      kept);
}

Outcome Connect(Rank* me, const std::string& name) {
  me->cuda_library = FakeLibrary("libfake_cuda_runtime.so");
  me->nccl_library = FakeLibrary("libfake_nccl.so");
  return me->Create(name);
}

Ranks StartGpus(int size, double timeout_s, bool joined, const GpuBody& body) {
  return Start(size, "nccl", timeout_s, false, [joined, body](Rank& me) {
    setenv("FAKE_NCCL_FOLDER", me.folder.c_str(), 1);
    me.device = me.rank + 1;  // not 0, which every thread has until it asks for another
    Gpu gpu(me.device);
    if (joined) {
      const Outcome outcome = Connect(&me, "test");
      CHECK_THAT(outcome.code == 0, outcome.message);
      if (me.comm == nullptr) _exit(1);
    }
    body(me, gpu);
  });
}

void RunGpus(int size, const GpuBody& body) { Finish(StartGpus(size, 20.0, true, body), 60.0); }

}  // namespace test
