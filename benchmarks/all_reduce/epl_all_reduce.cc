// Times all-reduce of float32 at the C interface. Usage: epl_all_reduce RANKS BACKEND [in_place] [fresh]
// fresh: before each call, every rank writes its input.
// Prints one line a size: pairs of bytes and microseconds, for the blocking call, for the call through the queue, for
// the blocking call with outputs that lie in memory which the ranks share, and with inputs too (each the median over
// repetitions of the slowest rank's mean; the four take turns; nan: such memory cannot be had), and for a copy of as
// many bytes (the best of a few).
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "epl_comm.h"
#include "file_store.h"

namespace {

constexpr int kRepetitions = 7;
constexpr int kWays = 4;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Waiter {
  std::mutex mutex;
  std::condition_variable changed;
  bool finished = false;
  int code = 0;
};

// Through the queue and the progress thread, as TensorFlow kernels do.
int SubmitAndWait(epl_comm* comm, epl_request request) {
  Waiter waiter;
  request.arg = &waiter;
  request.done = [](void* arg, int code, const char*) {
    Waiter* to = static_cast<Waiter*>(arg);
    std::lock_guard<std::mutex> lock(to->mutex);
    to->code = code;
    to->finished = true;
    to->changed.notify_one();
  };
  epl_comm_submit(comm, &request);
  std::unique_lock<std::mutex> lock(waiter.mutex);
  waiter.changed.wait(lock, [&] { return waiter.finished; });
  return waiter.code;
}

// Aligned as TensorFlow's buffers are.
float* Buffer(size_t count, float value) {
  float* made = static_cast<float*>(std::aligned_alloc(64, count * sizeof(float)));
  std::fill(made, made + count, value);
  return made;
}

float* Shared(epl_comm* comm, size_t count, float value) {
  float* made = static_cast<float*>(epl_comm_allocate(comm, count * sizeof(float)));
  if (made != nullptr) std::fill(made, made + count, value);
  return made;
}

void Free(float* data) {
  if (data != nullptr) epl_comm_free(data);
}

double CopyTime(const void* from, void* to, size_t bytes) {
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    const double start = Now();
    std::memcpy(to, from, bytes);
    best = std::min(best, Now() - start);
  }
  return best;
}

int Run(int rank, int size, const char* backend, bool in_place, bool fresh, const std::string& folder) {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof(all), &all);
  FileStore store(folder);
  epl_comm_options options = {backend, "bench", rank, size, 60.0, 0.0, "127.0.0.1", "token"};
  char error[2048] = "";
  epl_comm* comm = epl_comm_create(&options, &store.store, error, sizeof(error));
  if (comm == nullptr) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error);
    return 1;
  }
  // One CPU a rank, as mpirun does; the progress thread shares it unless it was made before.
  if (size <= CPU_COUNT(&all)) {
    int found = 0;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all) && found++ == rank) CPU_SET(cpu, &one);
    }
    sched_setaffinity(0, sizeof(one), &one);
  }
  for (size_t bytes = 1024; bytes <= (64u << 20); bytes *= 4) {
    const size_t count = bytes / sizeof(float);
    const std::unique_ptr<float, decltype(&std::free)> in(Buffer(count, 1.0f), &std::free);
    const std::unique_ptr<float, decltype(&std::free)> out(Buffer(count, 0.0f), &std::free);
    const std::unique_ptr<float, decltype(&Free)> shared_in(Shared(comm, count, 1.0f), &Free);
    const std::unique_ptr<float, decltype(&Free)> shared_out(Shared(comm, count, 0.0f), &Free);
    const bool shared = shared_in != nullptr && shared_out != nullptr;
    const epl_segment segments[kWays] = {
        {in_place ? out.get() : in.get(), out.get(), count},
        {in_place ? out.get() : in.get(), out.get(), count},
        {in.get(), shared_out.get(), count},
        {in_place ? shared_out.get() : shared_in.get(), shared_out.get(), count},
    };
    const int rounds = static_cast<int>(std::max<size_t>(5, std::min<size_t>(2000, (256u << 20) / 8 / bytes)));
    std::vector<double> times[kWays];
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      for (int way = 0; way < (shared ? kWays : kWays - 2); ++way) {
        epl_request request = {};
        request.tag = -1;
        request.name = "bench";
        request.collective = EPL_ALL_REDUCE;
        request.dtype = EPL_FLOAT32;
        request.reduce_op = EPL_SUM;
        request.segments = &segments[way];
        request.num_segments = 1;
        request.scale = 1.0;
        double mean = 0;
        for (int round = -2; round < rounds; ++round) {
          // A peer has read or written what lies in shared memory, and this rank makes its data anew.
          float* made = static_cast<float*>(const_cast<void*>(segments[way].in));
          if (fresh) {
            std::fill(made, made + count, 1.0f);
            char byte = 0;
            std::vector<char> bytes_of_all(size);
            epl_comm_exchange(comm, &byte, 1, bytes_of_all.data(), error, sizeof(error));
          }
          const double began = Now();
          const int code = way == 1 ? SubmitAndWait(comm, request) : epl_comm_run(comm, &request, error, sizeof(error));
          if (code != 0) {
            std::fprintf(stderr, "rank %d: code %d %s\n", rank, code, error);
            return 1;
          }
          if (round >= 0) mean += (Now() - began) / rounds;
        }
        std::vector<double> means(size);
        epl_comm_exchange(comm, &mean, sizeof(mean), means.data(), error, sizeof(error));
        times[way].push_back(*std::max_element(means.begin(), means.end()));
      }
    }
    for (std::vector<double>& each : times) {
      std::sort(each.begin(), each.end());
      if (rank == 0) std::printf("%zu %.2f ", bytes, each.empty() ? std::nan("") : each[kRepetitions / 2] * 1e6);
    }
    // The other ranks wait meanwhile, asleep.
    if (rank == 0) std::printf("%zu %.2f\n", bytes, CopyTime(in.get(), out.get(), bytes) * 1e6);
    char byte = 0;
    std::vector<char> bytes_of_all(size);
    epl_comm_exchange(comm, &byte, 1, bytes_of_all.data(), error, sizeof(error));
    std::fflush(stdout);
  }
  epl_comm_destroy(comm);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  const char* backend = argc > 2 ? argv[2] : "shm";
  bool in_place = false, fresh = false;
  for (int i = 3; i < argc; ++i) {
    in_place = in_place || std::strcmp(argv[i], "in_place") == 0;
    fresh = fresh || std::strcmp(argv[i], "fresh") == 0;
  }
  char folder[] = "/tmp/epl_bench_XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  for (int rank = 0; rank < size; ++rank) {
    if (fork() == 0) _exit(Run(rank, size, backend, in_place, fresh, folder));
  }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed |= status;
  const int removed = std::system(("rm -rf " + std::string(folder)).c_str());
  return failed != 0 || removed != 0;
}
