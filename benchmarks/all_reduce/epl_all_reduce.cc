// Times all-reduce of float32 at the C interface. Usage: epl_all_reduce RANKS BACKEND [in_place]
// Prints one line a size: pairs of bytes and microseconds, for the blocking call, for the call through the
// queue (each the
// median over repetitions of the slowest rank's mean), and for a copy of as many bytes (the best of a few).
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
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

double CopyTime(const void* from, void* to, size_t bytes) {
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    const double start = Now();
    std::memcpy(to, from, bytes);
    best = std::min(best, Now() - start);
  }
  return best;
}

int Run(int rank, int size, const char* backend, bool in_place, const std::string& folder) {
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
    const epl_segment segment = {in_place ? out.get() : in.get(), out.get(), count};
    epl_request request = {};
    request.tag = -1;
    request.name = "bench";
    request.collective = EPL_ALL_REDUCE;
    request.dtype = EPL_FLOAT32;
    request.reduce_op = EPL_SUM;
    request.segments = &segment;
    request.num_segments = 1;
    request.scale = 1.0;
    const int rounds = static_cast<int>(std::max<size_t>(5, std::min<size_t>(2000, (256u << 20) / 8 / bytes)));
    for (int queued = 0; queued < 2; ++queued) {
      std::vector<double> times;
      for (int repetition = 0; repetition < kRepetitions; ++repetition) {
        double mean = 0;
        for (int round = -2; round < rounds; ++round) {
          if (round == 0) mean = Now();
          const int code = queued ? SubmitAndWait(comm, request) : epl_comm_run(comm, &request, error, sizeof(error));
          if (code != 0) {
            std::fprintf(stderr, "rank %d: code %d %s\n", rank, code, error);
            return 1;
          }
        }
        mean = (Now() - mean) / rounds;
        std::vector<double> means(size);
        epl_comm_exchange(comm, &mean, sizeof(mean), means.data(), error, sizeof(error));
        times.push_back(*std::max_element(means.begin(), means.end()));
      }
      std::sort(times.begin(), times.end());
      if (rank == 0) std::printf("%s%zu %.2f", queued ? " " : "", bytes, times[kRepetitions / 2] * 1e6);
    }
    // The other ranks wait meanwhile, asleep.
    if (rank == 0) std::printf(" %zu %.2f\n", bytes, CopyTime(in.get(), out.get(), bytes) * 1e6);
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
  const bool in_place = argc > 3 && std::strcmp(argv[3], "in_place") == 0;
  char folder[] = "/tmp/epl_bench_XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  for (int rank = 0; rank < size; ++rank) {
    if (fork() == 0) _exit(Run(rank, size, backend, in_place, folder));
  }
  int failed = 0, status = 0;
  while (wait(&status) > 0) failed |= status;
  const int removed = std::system(("rm -rf " + std::string(folder)).c_str());
  return failed != 0 || removed != 0;
}
