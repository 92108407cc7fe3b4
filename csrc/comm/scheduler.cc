#include "scheduler.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <future>
#include <utility>

#include "flight.h"

namespace epl {
namespace {

// How often the progress thread looks at the peers while requests wait for a tag that this rank has yet to submit.
constexpr auto kParkedInterval = std::chrono::milliseconds(200);

void Finish(const Request& request, const Status& status) {
  if (request.completed) return request.completed(status);
  request.done(request.arg, status.code, status.message.c_str());
}

}  // namespace

Scheduler::Scheduler(const Options& options, std::unique_ptr<Communicator> communicator)
    : options_(options), communicator_(std::move(communicator)), thread_(&Scheduler::Loop, this) {
  pthread_setname_np(thread_.native_handle(), "epl_comm");
}

Scheduler::~Scheduler() { Close(); }

void Scheduler::Submit(Request request) {
  std::unique_lock<std::mutex> lock(mutex_);
  Status refused = closing_ ? Status(EPL_ABORTED, "the communicator is closed") : failed_;
  if (refused.ok() && request.tag >= 0) {
    const auto found = open_tags_.find(request.tag);
    if (found == open_tags_.end() || found->second->filled) {
      refused = Status(
          EPL_INVALID,
          Format("%s: tag %lld was %s", Describe(request, options_).c_str(), static_cast<long long>(request.tag),
                 found == open_tags_.end() ? "not declared with epl_comm_expect()" : "submitted already in this step"));
    } else {
      Entry& entry = *found->second;
      entry.request = std::move(request);
      entry.since = Clock::now();
      entry.filled = true;
      work_.notify_one();
      return;
    }
  }
  if (!refused.ok()) {
    lock.unlock();
    return Finish(request, refused);
  }
  Entry entry;
  entry.filled = true;
  entry.since = Clock::now();
  entry.request = std::move(request);
  queue_.push_back(std::move(entry));
  work_.notify_one();
}

Status Scheduler::RunBlocking(Request request) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (closing_) return Status(EPL_ABORTED, "the communicator is closed");
  if (!failed_.ok()) return failed_;
  if (!busy_ && queue_.empty()) {
    busy_ = true;
    lock.unlock();
    Flight flight(request);
    Status status = communicator_->Run(request);
    flight.End(status.code);
    lock.lock();
    busy_ = false;
    if (!status.ok() && status.code != EPL_INVALID && failed_.ok()) failed_ = status;
    if (!queue_.empty() || closing_ || !failed_.ok()) work_.notify_one();
    idle_.notify_all();
    return status;
  }
  lock.unlock();
  return RunQueued(std::move(request));
}

Status Scheduler::RunQueued(Request request) {
  std::promise<Status> result;
  request.completed = [&](const Status& status) { result.set_value(status); };
  Submit(std::move(request));
  // The progress thread ends every wait after options.timeout_s, and calls `done` whatever happens.
  return result.get_future().get();
}

Status Scheduler::Expect(const int64_t* tags, size_t num_tags) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closing_) return Status(EPL_ABORTED, "the communicator is closed");
  if (!failed_.ok()) return failed_;
  if (!open_tags_.empty() || running_tags_ != 0) {
    return Status(EPL_INVALID, "tags of the step before are still open");
  }
  std::vector<int64_t> sorted(tags, tags + num_tags);
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() || (num_tags > 0 && sorted.front() < 0)) {
    return Status(EPL_INVALID, "tags must be different from each other and at least 0");
  }
  for (size_t i = 0; i < num_tags; ++i) {
    queue_.emplace_back();
    open_tags_[tags[i]] = std::prev(queue_.end());
  }
  return Status();
}

void Scheduler::Abort(const std::string& reason) {
  communicator_->Abort(EPL_ABORTED, reason);
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed_.ok()) failed_ = Status(EPL_ABORTED, reason);
  work_.notify_one();
}

void Scheduler::Close() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (closing_) return;
    closing_ = true;
    const bool unfinished =
        busy_ || std::any_of(queue_.begin(), queue_.end(), [](const Entry& entry) { return entry.filled; });
    if (unfinished) {
      const Status status(EPL_ABORTED,
                          Format("communicator '%s' was closed with work under way", options_.name.c_str()));
      if (failed_.ok()) failed_ = status;
      communicator_->Abort(status.code, status.message);
    }
    work_.notify_one();
    idle_.wait(lock, [&] { return !busy_; });
  }
  if (thread_.joinable()) thread_.join();
  communicator_->Leave();
}

bool Scheduler::AnyParked() const {
  return std::any_of(queue_.begin(), queue_.end(), [](const Entry& entry) { return entry.filled; });
}

void Scheduler::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (!failed_.ok() || closing_) {
      FailAll(&lock);
      if (closing_) return;
    }
    if (FrontReady() && !busy_ && failed_.ok()) {
      RunFront(&lock);
    } else {
      WaitForWork(&lock);
    }
  }
}

void Scheduler::WaitForWork(std::unique_lock<std::mutex>* lock) {
  const auto awake = [&] {
    return closing_ || (!failed_.ok() && !queue_.empty()) || (failed_.ok() && FrontReady() && !busy_);
  };
  if (!AnyParked() || busy_) {
    // A request that arrives behind an empty place must begin the timed wait below.
    work_.wait(*lock, [&] { return awake() || (!busy_ && AnyParked()); });
    return;
  }
  if (!work_.wait_for(*lock, kParkedInterval, awake)) CheckParked(lock);
}

// Requests are here, but the one whose turn it is has not been submitted. Peers may have given up meanwhile.
void Scheduler::CheckParked(std::unique_lock<std::mutex>* lock) {
  Clock::time_point oldest = Clock::now();
  const Request* waiting = nullptr;
  for (const Entry& entry : queue_) {
    if (entry.filled && entry.since <= oldest) {
      oldest = entry.since;
      waiting = &entry.request;
    }
  }
  if (waiting == nullptr) return;
  const double waited = std::chrono::duration<double>(Clock::now() - oldest).count();
  Status status;
  long long missing = -1;
  for (const auto& open : open_tags_) {
    if (&*open.second == &queue_.front()) missing = static_cast<long long>(open.first);
  }
  const auto told = [&](const char* has, double seconds) {
    return Format("%s on communicator '%s': %s %swaited %g s for its own request with tag %lld, whose turn it is",
                  Describe(*waiting, options_).c_str(), options_.name.c_str(), options_.Name(options_.rank).c_str(),
                  has, seconds, missing);
  };
  // It may be computed still, for long, so that this is an error only after the time-out.
  if (options_.stall_warning_s > 0 && waited > options_.stall_warning_s && warned_ != missing) {
    warned_ = missing;
    std::fprintf(stderr, "epl: %s; it gives up after %g s\n", told("has ", std::floor(waited)).c_str(),
                 options_.timeout_s);
  }
  if (waited > options_.timeout_s) {
    status = Status(EPL_TIMEOUT, told("", options_.timeout_s));
    communicator_->Abort(status.code, status.message);
  } else {
    lock->unlock();
    status = communicator_->Health();
    lock->lock();
  }
  if (!status.ok() && failed_.ok()) failed_ = status;
}

void Scheduler::RunFront(std::unique_lock<std::mutex>* lock) {
  const Request request = std::move(queue_.front().request);
  queue_.pop_front();
  if (request.tag >= 0) {
    open_tags_.erase(request.tag);
    ++running_tags_;
  }
  busy_ = true;
  lock->unlock();
  Flight flight(request);
  const Status status = communicator_->Run(request);
  flight.End(status.code);
  lock->lock();
  busy_ = false;
  // Closed before `done`: the step may end with it, and the next one be declared.
  if (request.tag >= 0) --running_tags_;
  if (!status.ok() && status.code != EPL_INVALID && failed_.ok()) failed_ = status;
  idle_.notify_all();
  lock->unlock();
  Finish(request, status);
  lock->lock();
}

void Scheduler::FailAll(std::unique_lock<std::mutex>* lock) {
  const Status status = failed_.ok() ? Status(EPL_ABORTED, "the communicator is closed") : failed_;
  Queue queue;
  queue.swap(queue_);
  open_tags_.clear();
  lock->unlock();
  for (const Entry& entry : queue) {
    if (entry.filled) Finish(entry.request, status);
  }
  lock->lock();
}

}  // namespace epl
