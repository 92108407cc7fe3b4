// The back end for ranks of one host: data moves through memory that all of them map.
//
// Every group collective is a row of phases that is the same on all ranks. A rank that has finished a phase advances
// its one counter, `step`; a rank that needs the result of a phase waits until the counters of the others have passed
// it. The first phase of every collective publishes its description together with the first chunk of data, so small
// collectives take one round, and disagreement is noticed before anything is written to the caller's buffers.
//
// A few chunks per rank are used in turn, counted through the life of the communicator. A rank writes a chunk only
// after it has seen every peer pass a phase that follows the last reading of it; the notes in shm_collectives.cc show
// which.
#ifndef EPL_COMM_SHM_COMMUNICATOR_H_
#define EPL_COMM_SHM_COMMUNICATOR_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives.h"
#include "communicator.h"
#include "reduce.h"
#include "rendezvous.h"
#include "shm_segment.h"

namespace epl {

class ShmCommunicator : public Communicator, private Collectives {
 public:
  static Status Create(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result);

  ~ShmCommunicator() override;
  const char* backend() const override { return "shm"; }
  Status Run(const Request& request) override;
  void Abort(int code, const std::string& reason) override;
  Status Health() override;
  void Leave() override;
  void* Allocate(size_t bytes) override;

 private:
  // Data held per rank: 2 * ahead_ chunks of this size. Larger ones need fewer waits, smaller ones stay in the
  // second-level cache.
  static constexpr size_t kChunkBytes = 256 * 1024;

  using Clock = std::chrono::steady_clock;
  using Missing = std::function<std::vector<int>()>;  // ranks that a wait still misses

  // What one wait remembers between its looks around.
  struct WaitState {
    Clock::time_point start;
    bool warned = false;
    int crossed_looks = 0;  // in a row at which a peer was seen in a message that cannot meet this request
  };

  explicit ShmCommunicator(const Options& options);

  // shm_communicator.cc: waiting and agreement
  Status Dispatch(const Request& request);
  void Begin(const Request& request);
  Status Verify() const;
  void Advance() { Publish(&Me()->control()->step, ++step_); }
  bool AllReached(uint32_t target) const;
  Status WaitAll(uint32_t target, const Request& request);
  Status WaitFor(Signal* signal, uint32_t target, const Missing& missing, const Request& request);
  Status CheckWait(const Missing& missing, const Request& request, WaitState* state);
  Status Aborted() const;
  Status CheckLives(const std::vector<int>& needed);
  int CrossedPeer(const Request& request, const std::vector<int>& missing) const;
  std::string DescribeRanks(const std::vector<int>& ranks) const;
  std::string WhatRankDoes(int rank) const;

  // shm_collectives.cc
  Status Chunks(const Request& request, size_t chunks, const std::function<size_t()>& num_chunks,
                const std::function<void(size_t, char*)>& fill, const std::function<void(size_t, uint64_t)>& drain);
  Status Barrier(const Request& request) override;
  Status Reductions(const Request& request) override;
  bool InArenas() const;
  Status ReduceInArenas(const Request& request);
  Status OneRoundReduce(const Request& request);
  Status TwoRoundReduce(const Request& request);
  Status Broadcast(const Request& request) override;
  Status AllGather(const Request& request) override;
  Status AllGatherV(const Request& request) override;
  Status ReduceScatter(const Request& request) override;
  Status AllToAll(const Request& request) override;
  Status AllToAllV(const Request& request) override;

  // shm_messages.cc
  Status SendMessage(const Request& request) override;
  Status ReceiveMessage(const Request& request) override;
  Status AcceptMessage(const Request& request, const Announcement& sent, char** out);

  ShmSegment* Me() const { return &group_.ranks[options_.rank]->segment; }
  ShmSegment* Segment(int rank) const { return &group_.ranks[rank]->segment; }
  const Announcement& AnnouncementOf(int rank) const { return Segment(rank)->control()->announcements[sequence_ % 2]; }
  const Places& PlacesOf(int rank) const { return Segment(rank)->control()->places[sequence_ % 2]; }
  Reduction ReductionOf(const Request& request) const;

  const Options options_;
  const size_t ahead_;  // chunks that a rank may publish before it has read the peers' first
  ShmGroup group_;
  uint32_t step_ = 0;                      // this rank's counter; that of the peers too, once they have come as far
  uint64_t sequence_ = 0;                  // group collectives begun
  uint64_t chunk_ = 0;                     // chunks used by group collectives
  std::vector<uint32_t> sent_, received_;  // chunks of messages to and from each rank
};

}  // namespace epl
#endif  // EPL_COMM_SHM_COMMUNICATOR_H_
