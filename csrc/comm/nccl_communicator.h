// Collectives between GPUs by NCCL.
//
// NCCL neither notices that ranks call different things, nor that one of them is gone: it hangs, or mixes up data. So
// every NCCL communicator has another one beside it, for host memory, over which ranks agree on each request before any
// of it reaches a GPU, and which knows of peers that die or abort. It also carries requests whose buffers lie in host
// memory, so one communicator serves all kernels of a graph, in one order.
//
// A request with GPU buffers begins when the caller's stream has come to the point of the submission (an event), runs
// on this communicator's own stream beside the caller's further work, and is done when an event behind it has happened.
// Nothing but the progress thread waits for the GPU, and that asks now and then instead of blocking.
#ifndef EPL_COMM_NCCL_COMMUNICATOR_H_
#define EPL_COMM_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "announcement.h"
#include "collectives.h"
#include "communicator.h"
#include "cuda_stream.h"
#include "nccl_libraries.h"

namespace epl {

// A digest of how a request cuts its stream.
uint64_t CutOf(const Request& request);

class NcclCommunicator : public Communicator, private Collectives {
 public:
  // `host` connects the same ranks.
  NcclCommunicator(const Options& options, const GpuLibraries& libraries, std::unique_ptr<Communicator> host);
  ~NcclCommunicator() override;

  // Joins the other ranks; `left_s` is the time for it. An error reaches the ranks that still wait.
  Status Join(const nccl::UniqueId& id, double left_s);

  const char* backend() const override { return "nccl"; }
  Status Prepare(Request* request) override;
  Status Zero(void* data, size_t bytes, void* stream) override;
  Status Run(const Request& request) override;
  void Abort(int code, const std::string& reason) override;
  Status Health() override;
  void Leave() override { host_->Leave(); }

 private:
  using Clock = std::chrono::steady_clock;

  // What a rank has announced, with what NCCL needs to know beyond it.
  struct Peer {
    Announcement announcement = {};
    uint64_t cut = 0;                 // a digest of the sizes of the segments
    std::vector<size_t> send_counts;  // all_to_all_v
  };

  // nccl_communicator.cc: agreement, waiting, end
  Status RunOnGpu(const Request& request);
  Status Agree(const Request& request);
  Status AgreeWithPeer(const Request& request);
  std::string Encode(const Request& request) const;
  Status Decode(const char* message, size_t bytes, int rank, Peer* peer) const;
  Status AwaitLaunch();
  Status Await(const std::shared_ptr<void>& event);
  Status LookAround(Clock::time_point start, bool launched);
  Status End(const Status& status);
  Status Failure();
  void Kill();

  // nccl_collectives.cc
  Status Launch(const Request& request);
  Status Reductions(const Request& request) override;
  Status ReduceScatter(const Request& request) override { return Reductions(request); }
  Status Barrier(const Request&) override { return Status(); }  // it ends with the agreement
  Status AllReduce(const Request& request, nccl::RedOp op);
  Status ReduceScatter(const Request& request, nccl::RedOp op);
  Status Broadcast(const Request& request) override;
  Status AllGather(const Request& request) override;
  Status AllGatherV(const Request& request) override;
  Status AllToAll(const Request& request) override;
  Status AllToAllV(const Request& request) override;
  Status SendMessage(const Request& request) override;
  Status ReceiveMessage(const Request& request) override;
  Status Exchange(const std::vector<epl_segment>& sends, const std::vector<epl_segment>& receives, size_t element);
  Status Group(const std::function<nccl::Result()>& calls);
  Status Pieces(const Request& request, bool pack, bool with_input, std::vector<epl_segment>* pieces);
  Status Unpack(const Request& request, const epl_segment& packed);
  Status Separate(const Request& request, size_t out_count, std::vector<epl_segment>* pieces);
  Status AllocateOutput(const Request& request, const std::vector<size_t>& counts, void** output);
  bool SameCuts(const Request& request) const;

  const Options options_;
  const GpuLibraries& libraries_;
  std::unique_ptr<Communicator> host_;
  const std::shared_ptr<CudaEvents> events_;
  CudaStream stream_;
  nccl::Comm comm_ = nullptr;    // used by one thread at a time: that of Run()
  std::vector<Peer> peers_;      // by rank; set by the agreement on the request under way
  std::string what_;             // that request, for errors
  std::shared_ptr<void> ready_;  // its inputs
  Clock::time_point looked_;     // when the peers' health was asked last
  bool warned_ = false;          // that this request stalls
  bool told_ = false;            // that the error of this request is known already, to the peers too
  std::mutex mutex_;
  Status failed_;  // the first reason to end; guarded by mutex_
  std::atomic<bool> ended_{false};
};

}  // namespace epl
#endif  // EPL_COMM_NCCL_COMMUNICATOR_H_
