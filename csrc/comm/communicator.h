// What a back end is: it runs one collective at a time, to its end, on the thread that calls Run().
#ifndef EPL_COMM_COMMUNICATOR_H_
#define EPL_COMM_COMMUNICATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "request.h"
#include "status.h"

namespace epl {

// A copy of epl_comm_options with the defaults filled in.
struct Options {
  std::string backend = "auto";
  std::string name;
  int rank = 0;
  int size = 1;
  double timeout_s = 600.0;
  double stall_warning_s = 60.0;
  std::string host = "127.0.0.1";
  std::string token;
  int device = 0;            // nccl: the GPU of this rank, as CUDA numbers it in this process
  std::string nccl_library;  // nccl: paths of the libraries; empty: where the system's loader finds them
  std::string cuda_library;

  // For a communicator that is part of a larger one:
  std::vector<int> global_ranks;  // of its ranks in the larger one; empty: the same
  std::function<Status()> watch;  // what else a wait looks at now and then; an error ends the wait

  std::vector<int> workers;  // the worker that each rank of the largest one is; empty: messages speak of ranks

  int Global(int rank) const { return global_ranks.empty() ? rank : global_ranks[rank]; }
  // What messages call ranks: "worker 3", "workers 3, 4"; or "rank 1".
  const char* Kind() const { return workers.empty() ? "rank" : "worker"; }
  int Number(int rank) const { return workers.empty() ? Global(rank) : workers[Global(rank)]; }
  std::string Name(int rank) const { return Format("%s %d", Kind(), Number(rank)); }
  std::string Names(const std::vector<int>& ranks) const {
    std::string text = Format("%s%s", Kind(), ranks.size() == 1 ? "" : "s");
    for (size_t i = 0; i < ranks.size(); ++i) text += Format("%s %d", i == 0 ? "" : ",", Number(ranks[i]));
    return text;
  }
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual const char* backend() const = 0;

  // Called when a request is submitted, on the caller's thread; EPL_INVALID if this back end cannot run it.
  virtual Status Prepare(Request* request) {
    if (request->stream == nullptr) return Status();
    return Status(EPL_INVALID,
                  Format("%s: its buffers lie in GPU memory, which needs NCCL, but this communicator is '%s'; see "
                         "communication.backend",
                         Describe(*request).c_str(), backend()));
  }

  // Zeroes GPU memory in the order of `stream`.
  virtual Status Zero(void*, size_t, void*) {
    return Status(EPL_INVALID, Format("GPU memory needs NCCL, but this communicator is '%s'", backend()));
  }

  // Memory for inputs and outputs that collectives of this communicator read and write without a copy on the way; NULL
  // where there is none, and other memory serves. ShmArena::Free gives it back.
  virtual void* Allocate(size_t) { return nullptr; }

  // Runs one request; never from two threads at once. An error other than EPL_INVALID ends the communicator: it is told
  // to the peers, and every later call returns it.
  virtual Status Run(const Request& request) = 0;

  // Ends the communicator here and at the peers. Any thread; returns at once; the first reason wins.
  virtual void Abort(int code, const std::string& reason) = 0;

  // OK while the communicator is not aborted and all peers live. Called now and then when requests wait for their turn.
  virtual Status Health() = 0;

  // Tells peers that this rank will take part in nothing more. They fail only if they still need it.
  virtual void Leave() = 0;
};

}  // namespace epl
#endif  // EPL_COMM_COMMUNICATOR_H_
