#include "shm_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "process.h"

namespace epl {
namespace {

// Spinning pays when the peer is a few microseconds late; longer waits sleep.
constexpr int kSpinMicroseconds = 50;
// With fewer CPUs than ranks the peer may need this very CPU.
constexpr int kYieldMicroseconds = 5;
// With one CPU a rank this thread gives it to the rank's others, which compute, if the peer is not there by then.
constexpr int kAloneMicroseconds = 5;
constexpr int kSleepMilliseconds = 50;
constexpr auto kLifeCheckInterval = std::chrono::milliseconds(200);

}  // namespace

ShmCommunicator::ShmCommunicator(const Options& options)
    : options_(options),
      ahead_(ShmSegment::NumChunks(options.size) / 2),
      sent_(options.size, 0),
      received_(options.size, 0) {}

ShmCommunicator::~ShmCommunicator() { Leave(); }

Status ShmCommunicator::Create(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  std::unique_ptr<ShmCommunicator> made(new ShmCommunicator(options));
  Status status = ShmJoin(options, rendezvous, kChunkBytes, &made->group_);
  if (status.ok()) *result = std::move(made);
  return status;
}

void ShmCommunicator::Leave() {
  if (group_.ranks.empty() || Me()->control() == nullptr) return;
  Me()->control()->left.store(1, std::memory_order_release);
  WakeAll(&Me()->control()->step);
}

void* ShmCommunicator::Allocate(size_t bytes) {
  return group_.arenas ? ShmArena::Allocate(group_.ranks[options_.rank]->arena, bytes) : nullptr;
}

void ShmCommunicator::Abort(int code, const std::string& reason) {
  AbortRecord& record = Segment(0)->control()->abort;
  uint32_t none = 0;
  if (record.state.compare_exchange_strong(none, 1)) {
    record.code = code;
    record.rank = options_.rank;
    std::snprintf(record.message, sizeof(record.message), "%s", reason.c_str());
    record.state.store(2, std::memory_order_release);
  }
  for (int rank = 0; rank < options_.size; ++rank) {
    WakeAll(&Segment(rank)->control()->step);
    for (int to = 0; to < options_.size; ++to) {
      WakeAll(&Segment(rank)->mailbox(to)->sent);
      WakeAll(&Segment(rank)->mailbox(to)->received);
    }
  }
}

Status ShmCommunicator::Aborted() const {
  const AbortRecord& record = Segment(0)->control()->abort;
  uint32_t state = record.state.load(std::memory_order_acquire);
  if (state == 0) return Status();
  // The writer may have been killed between the two stores; its message is then lost, not the fact.
  for (int i = 0; state == 1 && i < 100; ++i) {
    usleep(1000);
    state = record.state.load(std::memory_order_acquire);
  }
  if (state == 1) return Status(EPL_ABORTED, Format("communicator '%s' was aborted", options_.name.c_str()));
  if (record.rank == options_.rank) return Status(record.code, record.message);
  return Status(record.code, Format("%s: %s", options_.Name(record.rank).c_str(), record.message));
}

Status ShmCommunicator::CheckLives(const std::vector<int>& needed) {
  // Who aborts and then leaves has aborted by the time it is seen to be gone, and its reason says more.
  const auto gone = [this](const Status& status) {
    const Status aborted = Aborted();
    return aborted.ok() ? status : aborted;
  };
  for (int rank : needed) {
    const ShmPeer& peer = *group_.ranks[rank];
    if (peer.segment.control()->left.load(std::memory_order_acquire) != 0) {
      return gone(Status(EPL_PEER_LOST, Format("%s has closed communicator '%s'", options_.Name(rank).c_str(),
                                               options_.name.c_str())));
    }
  }
  for (int rank = 0; rank < options_.size; ++rank) {
    const ShmPeer& peer = *group_.ranks[rank];
    const bool left = peer.segment.control()->left.load(std::memory_order_acquire) != 0;
    if (rank == options_.rank || left) continue;
    const ProcessState state = StateOf(peer.pid);
    if (!state.alive || state.start_time != peer.start_time) {
      return gone(Status(EPL_PEER_LOST, Format("%s (process %d) has ended; communicator '%s' cannot go on",
                                               options_.Name(rank).c_str(), peer.pid, options_.name.c_str())));
    }
  }
  return Status();
}

Status ShmCommunicator::Health() {
  Status status = Aborted();
  if (status.ok()) {
    status = CheckLives({});
    const Status aborted = status.ok() ? Status() : Aborted();
    if (!aborted.ok()) status = aborted;
  }
  if (!status.ok()) Abort(status.code, status.message);
  return status;
}

std::string ShmCommunicator::WhatRankDoes(int rank) const {
  const ProcessState state = StateOf(group_.ranks[rank]->pid);
  return Format("%d (process %d%s)", options_.Number(rank), group_.ranks[rank]->pid, state.stopped ? ", stopped" : "");
}

std::string ShmCommunicator::DescribeRanks(const std::vector<int>& ranks) const {
  std::string text = Format("%s%s ", options_.Kind(), ranks.size() == 1 ? "" : "s");
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + WhatRankDoes(ranks[i]);
  return text;
}

// A rank that waits for this one in a message, while this one waits for it in something else; -1: none.
int ShmCommunicator::CrossedPeer(const Request& request, const std::vector<int>& missing) const {
  for (int rank : missing) {
    const Control& control = *Segment(rank)->control();
    if (control.messaging.load(std::memory_order_acquire) != static_cast<uint32_t>(options_.rank) + 1) continue;
    if (!request.IsPointToPoint() || control.message.collective == request.collective) return rank;
  }
  return -1;
}

// What a sleeping wait looks at now and then. OK: sleep on.
Status ShmCommunicator::CheckWait(const Missing& missing, const Request& request, WaitState* state) {
  const std::vector<int> ranks = missing();
  if (ranks.empty()) return Status();
  Status status = CheckLives(ranks);
  if (status.ok() && options_.watch) status = options_.watch();
  // A peer that ends the communicator may be gone a moment later; its reason comes first.
  const Status aborted = status.ok() ? Status() : Aborted();
  if (!aborted.ok()) return aborted;
  // What a peer did before it ended or left counts; look again now that it can do no more.
  if (!status.ok())
    return missing().empty() ? Status() : Status(status.code, Describe(request, options_) + ": " + status.message);
  const int crossed = CrossedPeer(request, ranks);
  state->crossed_looks = crossed < 0 ? 0 : state->crossed_looks + 1;
  // Twice, because a message that is just ending looks the same.
  if (state->crossed_looks >= 2) {
    return Status(EPL_MISMATCH, Format("%ss wait for each other on communicator '%s': %s calls %s, %s calls %s",
                                       options_.Kind(), options_.name.c_str(), options_.Name(options_.rank).c_str(),
                                       Describe(request, options_).c_str(), options_.Name(crossed).c_str(),
                                       Describe(Segment(crossed)->control()->message, options_).c_str()));
  }
  const double waited = std::chrono::duration<double>(Clock::now() - state->start).count();
  const double timeout_s = options_.timeout_s + request.extra_wait_s;
  if (waited > timeout_s) {
    return Status(EPL_TIMEOUT, Format("%s on communicator '%s': %s waited %g s for %s",
                                      Describe(request, options_).c_str(), options_.name.c_str(),
                                      options_.Name(options_.rank).c_str(), timeout_s, DescribeRanks(ranks).c_str()));
  }
  if (options_.stall_warning_s > 0 && waited > options_.stall_warning_s && !state->warned) {
    state->warned = true;
    std::fprintf(stderr, "epl: %s on communicator '%s': %s has waited %.0f s for %s; it gives up after %g s\n",
                 Describe(request, options_).c_str(), options_.name.c_str(), options_.Name(options_.rank).c_str(),
                 waited, DescribeRanks(ranks).c_str(), timeout_s);
  }
  return Status();
}

Status ShmCommunicator::WaitFor(Signal* signal, uint32_t target, const Missing& missing, const Request& request) {
  if (group_.enough_cpus && Spin(*signal, target, group_.spare_cpus ? kSpinMicroseconds : kAloneMicroseconds, false)) {
    return Status();
  }
  if (!group_.spare_cpus && Spin(*signal, target, group_.enough_cpus ? kSpinMicroseconds : kYieldMicroseconds, true)) {
    return Status();
  }
  WaitState state;
  state.start = Clock::now();
  Clock::time_point next_check = state.start + kLifeCheckInterval;
  for (;;) {
    Status status = Aborted();
    if (!status.ok()) return status;
    SleepOn(signal, target, kSleepMilliseconds);
    if (Reached(*signal, target)) return Status();
    const Clock::time_point now = Clock::now();
    if (now < next_check &&
        now - state.start < std::chrono::duration<double>(options_.timeout_s + request.extra_wait_s))
      continue;
    next_check = now + kLifeCheckInterval;
    status = CheckWait(missing, request, &state);
    if (!status.ok()) return status;
  }
}

bool ShmCommunicator::AllReached(uint32_t target) const {
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank && !Reached(Segment(rank)->control()->step, target)) return false;
  }
  return true;
}

Status ShmCommunicator::WaitAll(uint32_t target, const Request& request) {
  for (int rank = 0; rank < options_.size; ++rank) {
    Signal* signal = &Segment(rank)->control()->step;
    if (rank == options_.rank || Reached(*signal, target)) continue;
    const auto missing = [&] {
      std::vector<int> ranks;
      for (int r = 0; r < options_.size; ++r) {
        if (r != options_.rank && !Reached(Segment(r)->control()->step, target)) ranks.push_back(r);
      }
      return ranks;
    };
    Status status = WaitFor(signal, target, missing, request);
    if (!status.ok()) return status;
  }
  return Status();
}

void ShmCommunicator::Begin(const Request& request) {
  Announce(request, options_.rank, &Me()->control()->announcements[++sequence_ % 2]);
  if (!request.send_counts.empty()) {
    std::copy(request.send_counts.begin(), request.send_counts.end(), Me()->counts(sequence_));
  }
}

Status ShmCommunicator::Verify() const {
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    Status status = CompareAnnouncements(options_, AnnouncementOf(options_.rank), rank, AnnouncementOf(rank));
    if (!status.ok()) return status;
  }
  return Status();
}

Reduction ShmCommunicator::ReductionOf(const Request& request) const {
  return Reduction{request.dtype, request.reduce_op, request.scale, options_.size};
}

Status ShmCommunicator::Dispatch(const Request& request) {
  if (!request.IsPointToPoint()) return RunCollective(request);
  Control* control = Me()->control();
  Announce(request, options_.rank, &control->message);
  control->messaging.store(static_cast<uint32_t>(request.peer) + 1, std::memory_order_release);
  const Status status = RunCollective(request);
  control->messaging.store(0, std::memory_order_release);
  return status;
}

Status ShmCommunicator::Run(const Request& request) {
  Status status = Aborted();
  if (status.ok()) status = Dispatch(request);
  if (!status.ok()) Abort(status.code, status.message);
  return status;
}

}  // namespace epl
