#include "tcp_keeper.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "host_layout.h"
#include "sha256.h"

namespace epl {
namespace {

constexpr size_t kMaxGuests = 64;  // besides the ranks that are expected
constexpr std::chrono::seconds kGuestPatience(5);
constexpr std::chrono::milliseconds kFirstPause(5), kLongestPause(200);
// How long the end of a communicator waits until its neighbours have read its last words.
constexpr int kDrainMilliseconds = 200;
constexpr int kBacklog = 1024;

// Every rank publishes its address, signed with the token.
Status ShareAddresses(const Options& options, Rendezvous* rendezvous, const std::string& mine,
                      std::vector<std::string>* all) {
  const auto sign = [&](int rank, const std::string& text) {
    return HmacSha256(options.token, Format("tcp %s %d\n", options.name.c_str(), rank) + text);
  };
  const Digest proof = sign(options.rank, mine);
  Status status = rendezvous->AllGather("tcp", std::string(proof.begin(), proof.end()) + mine, all);
  for (int rank = 0; rank < options.size && status.ok(); ++rank) {
    std::string& card = (*all)[rank];
    const std::string body = card.size() < 32 ? "" : card.substr(32);
    if (body.empty() || !SameDigest(sign(rank, body), reinterpret_cast<const uint8_t*>(card.data()))) {
      status = Status(EPL_INTERNAL, Format("communicator '%s': %s did not prove the job's token", options.name.c_str(),
                                           options.Name(rank).c_str()));
    }
    card = body;
  }
  return status;
}

}  // namespace

TcpKeeper::TcpKeeper(const Options& options, const std::vector<int>& strides, std::function<void()> changed)
    : options_(options),
      neighbours_(Neighbours(options.rank, options.size, strides)),
      changed_(std::move(changed)),
      watch_(options,
             [this] {
               changed_();
               Wake();
             }),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      asked_(options.size, false),
      data_(options.size) {}

TcpKeeper::~TcpKeeper() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  watch_.Drain(kDrainMilliseconds);
}

Status TcpKeeper::Create(const Options& options, const std::vector<int>& strides, Rendezvous* rendezvous,
                         std::function<void()> changed, std::unique_ptr<TcpKeeper>* result) {
  std::unique_ptr<TcpKeeper> made(new TcpKeeper(options, strides, std::move(changed)));
  if (!made->wake_.valid()) return Status(EPL_INTERNAL, Format("eventfd: %s", std::strerror(errno)));
  Status status = made->Join(rendezvous);
  if (status.ok()) {
    *result = std::move(made);
  } else {
    made->End(Ending::kAbort, status.code, status.message);
  }
  return status;
}

Status TcpKeeper::Join(Rendezvous* rendezvous) {
  std::string address;
  Status status = Listen(options_, kBacklog, &listener_, &address);
  // Who cannot listen has nothing to say, and the others see that.
  if (status.ok()) status = ShareAddresses(options_, rendezvous, address, &addresses_);
  if (!status.ok()) return status;
  for (const int rank : neighbours_) {
    if (rank < options_.rank) pending_[Key(rank, kWatchChannel)] = Pending{nullptr, Clock::now(), kFirstPause};
  }
  thread_ = std::thread(&TcpKeeper::Loop, this);
  pthread_setname_np(thread_.native_handle(), "epl_tcp");
  const double left = std::min(rendezvous->TimeLeft(), 1e9);
  return AwaitLinks(Clock::now() + std::chrono::microseconds(static_cast<int64_t>(left * 1e6)), options_.timeout_s);
}

std::vector<int> TcpKeeper::MissingLinks() {
  std::vector<int> missing;
  for (const int rank : neighbours_) {
    if (!watch_.Has(rank)) missing.push_back(rank);
  }
  return missing;
}

Status TcpKeeper::AwaitLinks(Clock::time_point deadline, double timeout_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::vector<int> missing;
  while (!(missing = MissingLinks()).empty()) {
    const Status failure = watch_.Failure();
    if (!failure.ok()) return failure;
    if (joined_.wait_until(lock, std::min(deadline, Clock::now() + kLongestPause)) == std::cv_status::no_timeout ||
        Clock::now() < deadline) {
      continue;
    }
    const std::string name = options_.name, me = options_.Name(options_.rank);
    if (missing[0] < options_.rank) {
      return Status(EPL_TIMEOUT,
                    Format("communicator '%s': %s cannot connect to %s at %s within %g s: see the network between them",
                           name.c_str(), me.c_str(), options_.Name(missing[0]).c_str(), addresses_[missing[0]].c_str(),
                           timeout_s));
    }
    return Status(EPL_TIMEOUT, Format("communicator '%s': %s did not connect to %s at %s within %g s", name.c_str(),
                                      options_.Names(missing).c_str(), me.c_str(), options_.host.c_str(), timeout_s));
  }
  return Status();
}

void TcpKeeper::Wake() {
  const uint64_t one = 1;
  if (write(wake_.fd(), &one, sizeof(one)) < 0) return;  // it is readable already
}

void TcpKeeper::Want(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (asked_[rank] || data_[rank].valid()) return;
  wanted_.push_back(rank);
  Wake();
}

std::vector<TcpKeeper::Arrival> TcpKeeper::TakeArrivals() {
  std::lock_guard<std::mutex> lock(mutex_);
  has_arrivals_.store(false, std::memory_order_relaxed);
  std::vector<Arrival> taken;
  taken.swap(arrivals_);
  return taken;
}

void TcpKeeper::End(Ending::Kind kind, int code, const std::string& text) {
  watch_.Tell(kind, code, text);
  std::lock_guard<std::mutex> lock(mutex_);
  if (ended_ != Ending::kNothing) return;
  ended_ = kind;
  for (const Socket& socket : data_) {
    // After an abort nothing that is under way counts; else the other end still reads what it has been sent.
    if (socket.valid()) shutdown(socket.fd(), kind == Ending::kAbort ? SHUT_RDWR : SHUT_WR);
  }
}

void TcpKeeper::Loop() {
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    BeginWanted();
    Advance();
    Hear();
    Welcome();
    watch_.Pump();
    if (EverybodyIsHere()) listener_.Reset();
    Sleep();
  }
}

void TcpKeeper::BeginWanted() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const int rank : wanted_) {
    if (asked_[rank] || data_[rank].valid()) continue;
    asked_[rank] = true;
    pending_[Key(rank, kDataChannel)] = Pending{nullptr, Clock::now(), kFirstPause};
  }
  wanted_.clear();
}

// Until something can move on.
void TcpKeeper::Sleep() {
  std::vector<pollfd> fds(1, pollfd{wake_.fd(), POLLIN, 0});
  if (listener_.valid()) fds.push_back({listener_.fd(), POLLIN, 0});
  Clock::time_point next = Clock::time_point::max();
  for (const Guest& guest : guests_) {
    fds.push_back({guest.fd(), POLLIN, 0});
    next = std::min(next, guest.until());
  }
  for (const auto& each : pending_) {
    const Pending& pending = each.second;
    if (pending.attempt == nullptr) {
      next = std::min(next, pending.begin);
    } else {
      fds.push_back({pending.attempt->fd(), pending.attempt->events(), 0});
    }
  }
  watch_.Await(&fds);
  int wait_ms = -1;
  if (next != Clock::time_point::max()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now()).count();
    wait_ms = static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(left, 1000))) + 1;
  }
  poll(fds.data(), fds.size(), wait_ms);
  uint64_t count;
  if (fds[0].revents != 0 && read(wake_.fd(), &count, sizeof(count)) < 0) return;  // emptied already
}

void TcpKeeper::Advance() {
  std::vector<std::pair<Key, Attempt::State>> settled;
  for (auto& each : pending_) {
    const Key& key = each.first;
    Pending& pending = each.second;
    if (pending.attempt == nullptr) {
      if (Clock::now() < pending.begin) continue;
      Address address;
      if (!ReadAddress(addresses_[key.first], &address).ok()) {
        settled.emplace_back(key, Attempt::State::kFailed);
        continue;
      }
      pending.attempt = std::make_unique<Attempt>(options_, Link{options_.rank, key.first, key.second}, address);
    }
    const Attempt::State state = pending.attempt->Advance();
    if (state != Attempt::State::kUnderWay) settled.emplace_back(key, state);
  }
  for (const auto& one : settled) Settle(one.first, one.second);
}

void TcpKeeper::Settle(const Key& key, Attempt::State state) {
  Pending& pending = pending_[key];
  if (state == Attempt::State::kDone) {
    Socket socket = pending.attempt->Take();
    pending_.erase(key);
    if (key.second == kWatchChannel) watch_.Add(key.first, std::move(socket));
    std::lock_guard<std::mutex> lock(mutex_);
    if (key.second == kDataChannel) return Attach(key.first, std::move(socket));
    return joined_.notify_all();
  }
  if (state == Attempt::State::kRefused && key.second == kDataChannel) {
    pending_.erase(key);
    std::lock_guard<std::mutex> lock(mutex_);
    return Arrive(key.first, -1);
  }
  pending.attempt.reset();
  pending.begin = Clock::now() + pending.pause;
  pending.pause = std::min(kLongestPause, 2 * pending.pause);
}

void TcpKeeper::Welcome() {
  while (listener_.valid()) {
    Socket socket(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    if (guests_.size() >= kMaxGuests + kNumChannels * static_cast<size_t>(options_.size)) guests_.pop_front();
    guests_.emplace_back(std::move(socket), Clock::now() + kGuestPatience);
  }
}

void TcpKeeper::Hear() {
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const Guest::State state = guest->Hear(options_);
    const bool stays = state == Guest::State::kSilent && Clock::now() < guest->until();
    if (state == Guest::State::kProved) {
      guest->link().channel == kWatchChannel ? AdmitToWatch(&*guest) : AdmitForData(&*guest);
    }
    guest = stays ? std::next(guest) : guests_.erase(guest);
  }
}

void TcpKeeper::AdmitToWatch(Guest* guest) {
  const int rank = guest->link().from;
  const bool expected = rank > options_.rank && std::binary_search(neighbours_.begin(), neighbours_.end(), rank);
  if (!expected || watch_.Has(rank) || !guest->Answer(options_)) return;
  watch_.Add(rank, guest->Take());
  std::lock_guard<std::mutex> lock(mutex_);
  joined_.notify_all();
}

// Of two connections that begin at once both ends keep the lower rank's. All under one lock: once the other end has its
// answer it may send, leave and say goodbye, and who hears of that must find the connection.
void TcpKeeper::AdmitForData(Guest* guest) {
  const int rank = guest->link().from;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto own = pending_.find(Key(rank, kDataChannel));
  if (data_[rank].valid() || (own != pending_.end() && options_.rank < rank) || !guest->Answer(options_)) return;
  if (own != pending_.end()) pending_.erase(own);
  asked_[rank] = true;
  Attach(rank, guest->Take());
}

// With the lock.
void TcpKeeper::Attach(int rank, Socket socket) {
  if (ended_ != Ending::kNothing) shutdown(socket.fd(), ended_ == Ending::kAbort ? SHUT_RDWR : SHUT_WR);
  data_[rank] = std::move(socket);
  Arrive(rank, data_[rank].fd());
}

void TcpKeeper::Arrive(int rank, int fd) {
  arrivals_.push_back({rank, fd});
  has_arrivals_.store(true, std::memory_order_release);
  changed_();
}

bool TcpKeeper::EverybodyIsHere() {
  if (!listener_.valid() || !MissingLinks().empty()) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank && !data_[rank].valid()) return false;
  }
  return true;
}

}  // namespace epl
