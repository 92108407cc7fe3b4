#include "measure.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

namespace epl {
namespace {

constexpr size_t kSmallBytes = 1024;
constexpr int kSmallRounds = 15;
constexpr size_t kFirstBytes = 64 * 1024;  // of the large ones, each of which is four times the one before
constexpr size_t kLastBytes = 4 * 1024 * 1024;
constexpr int kLargeRounds = 4;
// The next size is left out if it would probably take longer than this.
constexpr double kBudget_s = 0.02;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Measurement {
 public:
  Measurement(const Options& options, Scheduler* scheduler)
      : rank_(options.rank), size_(options.size), scheduler_(scheduler), data_(kLastBytes / sizeof(float), 0.0f) {}

  Status Run(Speed* speed) {
    Speed mine;
    Status status = Best(kSmallBytes, kSmallRounds, &mine.latency_s);
    bool further = true;
    for (size_t bytes = kFirstBytes; status.ok() && further; bytes *= 4) {
      double took = 0;
      status = Best(bytes, kLargeRounds, &took);
      // A clock that other programs disturb may show no difference at all.
      // The largest message counts: smaller ones may pass at once into a queue that is then full.
      mine.bytes_per_s = static_cast<double>(bytes) / std::max(took - mine.latency_s, took / 4);
      uint8_t go_on = bytes < kLastBytes && 4 * took * (kLargeRounds + 1) < kBudget_s;
      if (status.ok()) status = Share(&go_on, 1);
      further = go_on != 0;
    }
    *speed = mine;
    return status;
  }

 private:
  // The time of an all-reduce, the best of the rounds: what disturbs the others is no matter of the link. One more goes
  // before them.
  Status Best(size_t bytes, int rounds, double* best) {
    Status status;
    *best = std::numeric_limits<double>::max();
    for (int round = -1; round < rounds && status.ok(); ++round) {
      const double began = Now();
      status = Call(EPL_ALL_REDUCE, EPL_FLOAT32, data_.data(), bytes / sizeof(float));
      if (round >= 0) *best = std::min(*best, Now() - began);
    }
    return status;
  }

  // Gives all ranks what rank 0 has, for they must go on or stop together.
  Status Share(void* data, size_t bytes) { return Call(EPL_BROADCAST, EPL_UINT8, data, bytes); }

  // Through the queue, as kernels do.
  Status Call(epl_collective collective, epl_dtype dtype, void* data, size_t count) {
    const epl_segment segment = {data, data, count};
    epl_request wanted = {};
    wanted.tag = -1;
    wanted.name = "measurement of the link";
    wanted.collective = collective;
    wanted.dtype = dtype;
    wanted.segments = &segment;
    wanted.num_segments = 1;
    wanted.scale = 1.0;
    wanted.done = [](void*, int, const char*) {};
    Request request;
    Status status = MakeRequest(wanted, rank_, size_, &request);
    return status.ok() ? scheduler_->RunQueued(std::move(request)) : status;
  }

  const int rank_, size_;
  Scheduler* const scheduler_;
  std::vector<float> data_;
};

}  // namespace

Status MeasureSpeed(const Options& options, Scheduler* scheduler, Speed* speed) {
  return Measurement(options, scheduler).Run(speed);
}

}  // namespace epl
