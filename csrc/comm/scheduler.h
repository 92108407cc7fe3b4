// Decides which request runs next, and runs it.
//
// The order is that of the program: epl_comm_expect() takes the places of its tags, a request without a tag takes its
// place when it is submitted. A tagged request fills its place whenever it arrives, and nothing overtakes an empty
// place. Ranks that make these calls in the same order therefore run the same row of collectives.
#ifndef EPL_COMM_SCHEDULER_H_
#define EPL_COMM_SCHEDULER_H_

#include <chrono>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "communicator.h"
#include "request.h"

namespace epl {

class Scheduler {
 public:
  Scheduler(const Options& options, std::unique_ptr<Communicator> communicator);
  ~Scheduler();

  const char* backend() const { return communicator_->backend(); }

  Status Prepare(Request* request) { return communicator_->Prepare(request); }
  Status Zero(void* data, size_t bytes, void* stream) { return communicator_->Zero(data, bytes, stream); }
  void* Allocate(size_t bytes) { return communicator_->Allocate(bytes); }
  void Submit(Request request);
  // Runs an untagged request to its end; on this thread if nothing else is under way. Calls no `done`.
  Status RunBlocking(Request request);
  // The same, always on the progress thread.
  Status RunQueued(Request request);
  Status Expect(const int64_t* tags, size_t num_tags);
  void Abort(const std::string& reason);
  // Ends everything; the progress thread has been joined when this returns.
  void Close();

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    bool filled = false;
    Clock::time_point since;
    Request request;
  };
  using Queue = std::list<Entry>;

  void Loop();
  void RunFront(std::unique_lock<std::mutex>* lock);
  void FailAll(std::unique_lock<std::mutex>* lock);
  void WaitForWork(std::unique_lock<std::mutex>* lock);
  void CheckParked(std::unique_lock<std::mutex>* lock);
  bool FrontReady() const { return !queue_.empty() && queue_.front().filled; }
  bool AnyParked() const;

  const Options options_;
  const std::unique_ptr<Communicator> communicator_;
  std::mutex mutex_;
  std::condition_variable work_;  // for the progress thread
  std::condition_variable idle_;  // for callers of RunBlocking
  Queue queue_;
  std::unordered_map<int64_t, Queue::iterator> open_tags_;  // declared, and not yet begun
  size_t running_tags_ = 0;                                 // begun, and not yet done
  bool busy_ = false;                                       // somebody runs a request
  bool closing_ = false;
  long long warned_ = -1;  // the tag that was waited for when that was last told of
  Status failed_;          // the first error; everything after it gets the same
  std::thread thread_;
};

}  // namespace epl
#endif  // EPL_COMM_SCHEDULER_H_
