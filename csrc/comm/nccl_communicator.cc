#include "nccl_communicator.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

namespace epl {
namespace {

// The agreement has one name for all requests, so that a difference is found here, where both sides can be described.
const char kAgreement[] = "work in GPU memory";

// How often the GPU is asked: in a row at first, for short work, and then with pauses that become longer, but stay
// short against what a collective between GPUs takes.
constexpr int kEagerAsks = 50;
constexpr auto kShortPause = std::chrono::microseconds(10);
constexpr auto kLongPause = std::chrono::microseconds(100);
// How often the peers' lives are looked at meanwhile.
constexpr auto kHealthInterval = std::chrono::milliseconds(100);
// How long a peer may take to tell why it has ended, when NCCL has noticed that it has: as long as it takes to notice
// a process that is gone.
constexpr auto kCausePatience = std::chrono::seconds(2);
// How long an orderly end may take, and the GPU's work after an abort.
constexpr auto kEndPatience = std::chrono::seconds(2);

void Pause(int* asks) {
  if (++*asks <= kEagerAsks) return std::this_thread::yield();
  std::this_thread::sleep_for(*asks < 10 * kEagerAsks ? kShortPause : kLongPause);
}

struct Messages {
  std::vector<char> bytes;
  std::vector<size_t> lengths;
};

void* TakeMessages(void* arg, const size_t* counts, int size, const uint8_t*, size_t) {
  Messages* messages = static_cast<Messages*>(arg);
  size_t total = 1;  // never NULL
  messages->lengths.assign(counts, counts + size);
  for (size_t length : messages->lengths) total += length;
  messages->bytes.resize(total);
  return messages->bytes.data();
}

// For a receive: the one count is that of the message.
void* TakeMessage(void* arg, const size_t* counts, int size, const uint8_t* extra, size_t extra_length) {
  return TakeMessages(arg, counts, size, extra, extra_length);
}

}  // namespace

uint64_t CutOf(const Request& request) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const epl_segment& segment : request.segments) {
    if (segment.count != 0) hash = (hash ^ segment.count) * 0x100000001b3u;
  }
  return hash;
}

NcclCommunicator::NcclCommunicator(const Options& options, const GpuLibraries& libraries,
                                   std::unique_ptr<Communicator> host)
    : options_(options),
      libraries_(libraries),
      host_(std::move(host)),
      events_(std::make_shared<CudaEvents>(libraries, options.device)),
      stream_(libraries, options.device),
      peers_(static_cast<size_t>(options.size)) {}

Status NcclCommunicator::Join(const nccl::UniqueId& id, double left_s) {
  what_ = Format("connecting GPUs on communicator '%s'", options_.name.c_str());
  const CurrentDevice current(libraries_, options_.device);
  Status status = current.status();
  if (status.ok()) status = stream_.Create();
  if (!status.ok()) return status;
  nccl::Config config;
  config.blocking = 0;  // so that every wait can be ended
  const auto start = Clock::now();
  nccl::Result result = libraries_.nccl.CommInit(&comm_, options_.size, id, options_.rank, &config);
  int asks = 0;
  while (result == nccl::kInProgress) {
    if (std::chrono::duration<double>(Clock::now() - start).count() > left_s) {
      status = Status(EPL_TIMEOUT, Format("%s: %s was not through within %g s", what_.c_str(),
                                          options_.Name(options_.rank).c_str(), options_.timeout_s));
    } else {
      status = LookAround(start, false);
    }
    if (!status.ok()) break;
    Pause(&asks);
    const nccl::Result asked = libraries_.nccl.CommGetAsyncError(comm_, &result);
    if (asked != nccl::kSuccess) result = asked;
  }
  if (status.ok()) status = libraries_.CheckNccl("ncclCommInitRankConfig", result);
  return status.ok() ? status : End(status);
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) return;
  const CurrentDevice current(libraries_, options_.device);
  nccl::Result result = libraries_.nccl.CommFinalize(comm_);
  const auto end = Clock::now() + kEndPatience;
  int asks = 0;
  while (result == nccl::kInProgress && !ended_ && Clock::now() < end) {
    Pause(&asks);
    if (libraries_.nccl.CommGetAsyncError(comm_, &result) != nccl::kSuccess) break;
  }
  if (result == nccl::kSuccess) {
    libraries_.nccl.CommDestroy(comm_);
    comm_ = nullptr;
  }
  Kill();
}

// Ends what NCCL has under way on the GPU.
void NcclCommunicator::Kill() {
  if (comm_ == nullptr) return;
  const CurrentDevice current(libraries_, options_.device);
  libraries_.nccl.CommAbort(comm_);
  comm_ = nullptr;
}

void NcclCommunicator::Abort(int code, const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed_.ok()) failed_ = Status(code, reason);
  }
  ended_ = true;
  host_->Abort(code, reason);
}

Status NcclCommunicator::Failure() {
  std::lock_guard<std::mutex> lock(mutex_);
  return failed_;
}

Status NcclCommunicator::Health() {
  Status status = ended_ ? Failure() : host_->Health();
  if (!status.ok()) Abort(status.code, status.message);
  return status;
}

// On the thread that submits: what it has put on its stream so far is what the request needs, and no more.
Status NcclCommunicator::Prepare(Request* request) {
  if (request->stream == nullptr) return Status();
  return events_->Record(request->stream, &request->ready);
}

Status NcclCommunicator::Zero(void* data, size_t bytes, void* stream) {
  if (bytes == 0) return Status();
  return libraries_.Check("cudaMemsetAsync", libraries_.cuda.FillAsync(data, 0, bytes, stream));
}

Status NcclCommunicator::Run(const Request& request) {
  if (ended_) {
    Kill();
    return Failure();
  }
  if (request.stream == nullptr) return host_->Run(request);
  what_ = Describe(request, options_) + " on communicator '" + options_.name + "'";
  warned_ = told_ = false;
  ready_ = request.ready;
  looked_ = Clock::now();
  const CurrentDevice current(libraries_, options_.device);
  Status status = current.status();
  if (status.ok()) status = RunOnGpu(request);
  return status.ok() || status.code == EPL_INVALID ? status : End(status);
}

Status NcclCommunicator::RunOnGpu(const Request& request) {
  Status status = request.IsPointToPoint() ? AgreeWithPeer(request) : Agree(request);
  told_ = !status.ok();
  if (!status.ok() || request.collective == EPL_BARRIER) return status;
  // The inputs, and the memory of the outputs, are the caller's until its stream has come here.
  status = stream_.WaitFor(request.ready);
  if (status.ok()) status = Launch(request);
  std::shared_ptr<void> finished;
  if (status.ok()) status = events_->Record(stream_.get(), &finished);
  if (status.ok()) status = Await(finished);
  if (status.ok() || finished == nullptr) return status;
  // The buffers are the caller's again when this returns, so the GPU must have let go of them.
  status = End(status);
  told_ = true;
  const auto end = Clock::now() + kEndPatience;
  int asks = 0;
  while (libraries_.cuda.EventQuery(finished.get()) == cuda::kErrorNotReady && Clock::now() < end) Pause(&asks);
  libraries_.cuda.GetLastError();
  return status;
}

std::string NcclCommunicator::Encode(const Request& request) const {
  Announcement mine = {};
  Announce(request, options_.rank, &mine);
  std::string message(reinterpret_cast<const char*>(&mine), kHeadBytes + mine.header_length);
  const uint64_t cut = CutOf(request);
  message.append(reinterpret_cast<const char*>(&cut), sizeof(cut));
  if (request.collective == EPL_ALL_TO_ALL_V) {
    for (size_t n : request.send_counts) {
      const uint64_t count = n;
      message.append(reinterpret_cast<const char*>(&count), sizeof(count));
    }
  }
  return message;
}

// The lengths in a message are not trusted: they stay within what has come.
Status NcclCommunicator::Decode(const char* message, size_t bytes, int rank, Peer* peer) const {
  const Status bad(EPL_INTERNAL,
                   Format("%s: %s sent a damaged announcement", what_.c_str(), options_.Name(rank).c_str()));
  if (bytes < kHeadBytes) return bad;
  std::memcpy(&peer->announcement, message, kHeadBytes);
  const size_t length = peer->announcement.header_length;
  if (length > kMaxHeaderBytes || bytes < kHeadBytes + length + sizeof(uint64_t)) return bad;
  std::memcpy(peer->announcement.header, message + kHeadBytes, length);
  std::memcpy(&peer->cut, message + kHeadBytes + length, sizeof(uint64_t));
  size_t at = kHeadBytes + length + sizeof(uint64_t);
  peer->send_counts.clear();
  if (peer->announcement.collective != EPL_ALL_TO_ALL_V) return at == bytes ? Status() : bad;
  if (bytes - at != static_cast<size_t>(options_.size) * sizeof(uint64_t)) return bad;
  uint64_t sum = 0;
  for (; at < bytes; at += sizeof(uint64_t)) {
    uint64_t count;
    std::memcpy(&count, message + at, sizeof(count));
    if (count > peer->announcement.count - sum) return bad;
    sum += count;
    peer->send_counts.push_back(count);
  }
  return Status();
}

// All ranks tell each other what they are about to do. Waits here are the host communicator's, with its errors.
Status NcclCommunicator::Agree(const Request& request) {
  const std::string mine = Encode(request);
  Messages messages;
  Request round;
  round.name = kAgreement;
  round.shown = Describe(request, options_);
  round.collective = EPL_ALL_GATHER_V;
  round.segments.push_back({mine.data(), nullptr, mine.size()});
  round.offsets = {0, mine.size()};
  round.count = mine.size();
  round.allocate = &TakeMessages;
  round.arg = &messages;
  Status status = host_->Run(round);
  size_t at = 0;
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) {
    status = Decode(messages.bytes.data() + at, messages.lengths[rank], rank, &peers_[rank]);
    at += messages.lengths[rank];
  }
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) {
    if (rank == options_.rank) continue;
    status = CompareAnnouncements(options_, peers_[options_.rank].announcement, rank, peers_[rank].announcement);
  }
  return status;
}

// Only sender and receiver meet: the announcement goes with the message.
Status NcclCommunicator::AgreeWithPeer(const Request& request) {
  const bool send = request.collective == EPL_SEND;
  const std::string mine = send ? Encode(request) : std::string();
  Messages messages;
  Request round;
  round.name = kAgreement;
  round.shown = Describe(request, options_);
  round.collective = request.collective;
  round.peer = request.peer;
  round.segments.push_back({mine.data(), nullptr, mine.size()});
  round.offsets = {0, mine.size()};
  round.count = mine.size();
  if (!send) {
    round.allocate = &TakeMessage;
    round.arg = &messages;
  }
  Status status = host_->Run(round);
  if (send || !status.ok()) return status;
  Peer& peer = peers_[request.peer];
  size_t bytes = 0;
  for (size_t length : messages.lengths) bytes += length;
  status = Decode(messages.bytes.data(), bytes, request.peer, &peer);
  if (!status.ok()) return status;
  return CompareMessage(options_, request, peer.announcement);
}

// A communicator that does not block may still be at work on a launch when the call has returned.
Status NcclCommunicator::AwaitLaunch() {
  const auto start = Clock::now();
  int asks = 0;
  for (;;) {
    nccl::Result result = nccl::kSuccess;
    Status status = libraries_.CheckNccl("ncclCommGetAsyncError", libraries_.nccl.CommGetAsyncError(comm_, &result));
    if (status.ok()) status = libraries_.CheckNccl("a launch by NCCL", result);
    if (!status.ok()) return status;
    if (result == nccl::kSuccess) return status;
    status = LookAround(start, false);
    if (!status.ok()) return status;
    Pause(&asks);
  }
}

Status NcclCommunicator::Await(const std::shared_ptr<void>& event) {
  const auto start = Clock::now();
  int asks = 0;
  for (;;) {
    const cuda::Error state = libraries_.cuda.EventQuery(event.get());
    if (state == cuda::kSuccess) return Status();
    libraries_.cuda.GetLastError();  // "not ready" must not be found by others on this thread
    Status status;
    if (state != cuda::kErrorNotReady) {
      return libraries_.Check("the work on the GPU", state);
    }
    nccl::Result result = nccl::kSuccess;
    status = libraries_.CheckNccl("ncclCommGetAsyncError", libraries_.nccl.CommGetAsyncError(comm_, &result));
    if (status.ok()) status = libraries_.CheckNccl("NCCL's work between the GPUs", result);
    if (!status.ok()) return status;
    status = LookAround(start, true);
    if (!status.ok()) return status;
    Pause(&asks);
  }
}

// What every wait looks at: this rank's own end, the time, and now and then the peers.
Status NcclCommunicator::LookAround(Clock::time_point start, bool launched) {
  if (ended_) {
    told_ = true;
    return Failure();
  }
  const auto now = Clock::now();
  const double waited = std::chrono::duration<double>(now - start).count();
  const bool late = waited > options_.timeout_s;
  const bool slow = options_.stall_warning_s > 0 && waited > options_.stall_warning_s && !warned_;
  if (late || slow) {
    const char* state = "NCCL has not begun";
    if (launched) {
      const bool ready = libraries_.cuda.EventQuery(ready_.get()) == cuda::kSuccess;
      libraries_.cuda.GetLastError();
      state = ready ? "its GPU has not finished" : "its GPU is still busy with what comes before";
    }
    const std::string text = Format("%s: %s has waited for %g s: all others have come, but %s", what_.c_str(),
                                    options_.Name(options_.rank).c_str(), late ? options_.timeout_s : waited, state);
    told_ = late;
    if (late) return Status(EPL_TIMEOUT, text);
    warned_ = true;
    std::fprintf(stderr, "epl: %s\n", text.c_str());
  }
  if (now - looked_ < kHealthInterval) return Status();
  looked_ = now;
  const Status status = host_->Health();
  told_ = !status.ok();
  return status;
}

// Ends the communicator, here and at the peers, and returns why. NCCL says that something went wrong, the communicator
// for host memory often who is gone and why, which is the better error: it gets the time to find out.
Status NcclCommunicator::End(const Status& status) {
  Status cause = ended_ ? Failure() : status;
  if (cause.ok() || (!ended_ && !told_)) {
    const auto end = Clock::now() + (status.code == EPL_PEER_LOST ? kCausePatience : Clock::duration());
    while ((cause = ended_ ? Failure() : host_->Health()).ok() && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (cause.ok()) {
      cause = Status(status.code,
                     Format("%s: %s: %s", options_.Name(options_.rank).c_str(), what_.c_str(), status.message.c_str()));
    }
  }
  Abort(cause.code, cause.message);
  Kill();
  return Failure();
}

}  // namespace epl
