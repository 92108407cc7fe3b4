// Ranks of the test harness with GPUs that the doubles of this folder make up.
#ifndef EPL_TESTS_GPU_HARNESS_H_
#define EPL_TESTS_GPU_HARNESS_H_

#include <functional>
#include <string>
#include <vector>

#include "harness.h"

namespace test {

// Where the doubles lie: beside this program.
std::string FakeLibrary(const char* name);

// The doubles' own functions, and a stream that stands for TensorFlow's. One a rank; loads the doubles.
class Gpu {
 public:
  explicit Gpu(int device);

  void (*enqueue)(void*, void (*)(void*), void*);
  void (*drain)(void*);
  void (*break_cuda)(int);
  int (*number)(const void*);
  void (*fail_call)(const char*, int);
  void (*stall)(int);
  void* stream = nullptr;

  // The log of calls since the last time, by line.
  std::vector<std::string> TakeLog() const;
  // Puts `work` on the stream after a pause of some milliseconds.
  void EnqueueLate(int milliseconds, std::function<void()> work) const;

 private:
  size_t (*read_log_)(char*, size_t);
  void (*clear_log_)(void);
};

using GpuBody = std::function<void(Rank&, Gpu&)>;

// As Start and Run of the harness, for "nccl" with the doubles.
Ranks StartGpus(int size, double timeout_s, bool joined, const GpuBody& body);
void RunGpus(int size, const GpuBody& body);

// Makes a communicator between the GPUs of the ranks.
Outcome Connect(Rank* me, const std::string& name);

}  // namespace test
#endif  // EPL_TESTS_GPU_HARNESS_H_
