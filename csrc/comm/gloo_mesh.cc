#ifdef EPL_WITH_GLOO
#include "gloo_mesh.h"

#include <gloo/common/error.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>

#include "backends.h"
#include "mesh_communicator.h"
#include "sha256.h"

namespace epl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick(50);
// Gloo's waits are ended by the ticker; this bound only keeps a lost tick from waiting for ever.
constexpr milliseconds kGlooWait(24 * 3600 * 1000);
constexpr milliseconds kGoodbyeWait(200);
// A tick may come at the very moment of completion, several times if this thread is kept from running.
constexpr int kLooksAfterEnd = 10;

// Gloo writes to sockets that the peer may have closed. The signal of that goes to the writing thread and would end the
// process; with it blocked the write reports the error. Threads made meanwhile inherit this.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec now = {0, 0};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) continue;
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

}  // namespace

WaitTicker::WaitTicker() : thread_(&WaitTicker::Loop, this) {}

WaitTicker::~WaitTicker() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void WaitTicker::Begin(gloo::transport::UnboundBuffer* buffer, bool send) {
  std::lock_guard<std::mutex> lock(mutex_);
  buffer_ = buffer;
  send_ = send;
  if (asleep_) changed_.notify_one();
}

void WaitTicker::End() {
  std::lock_guard<std::mutex> lock(mutex_);
  buffer_ = nullptr;
}

void WaitTicker::TickNow() {
  std::lock_guard<std::mutex> lock(mutex_);
  Tick();
}

void WaitTicker::Tick() {
  if (buffer_ == nullptr) return;
  if (send_) {
    buffer_->abortWaitSend();
  } else {
    buffer_->abortWaitRecv();
  }
}

void WaitTicker::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closing_) {
    if (buffer_ == nullptr) {
      asleep_ = true;
      changed_.wait(lock, [&] { return closing_ || buffer_ != nullptr; });
      asleep_ = false;
    }
    changed_.wait_for(lock, kTick, [&] { return closing_; });
    Tick();
  }
}

struct GlooMesh::Control {
  enum Kind : int32_t { kNothing = 0, kAbort = 1, kGoodbye = 2 };
  int32_t kind;
  int32_t code;
  char text[1000];
};

struct GlooMesh::Peer {
  Control control = {};
  char canary = 0;
  // Receives what the peer says at its end.
  std::unique_ptr<gloo::transport::UnboundBuffer> ending;
  // Receives nothing, ever: it fails when the connection does.
  std::unique_ptr<gloo::transport::UnboundBuffer> watch;
  bool gone = false;
  bool said_goodbye = false;
  Status reason;  // set when gone
};

class GlooMesh::GlooTransfer : public Mesh::Transfer {
 public:
  GlooTransfer(bool send_in, int peer_in) : send(send_in), peer(peer_in) {}
  const bool send;
  const int peer;
  bool failed = false;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

GlooMesh::GlooMesh(const Options& options) : options_(options) {}

GlooMesh::~GlooMesh() {
  Leave();
  peers_.clear();
  context_.reset();
}

Status GlooMesh::Create(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Mesh>* result) {
  const NoSigpipe no_sigpipe;
  std::unique_ptr<GlooMesh> mesh(new GlooMesh(options));
  Status status = mesh->Connect(rendezvous);
  if (status.ok()) status = mesh->ProveToken();
  if (!status.ok()) return status;
  mesh->ListenForEndings();
  // All listen when this returns, so that none can end unheard.
  std::vector<std::string> ready;
  status = rendezvous->AllGather("gloo_ready", "1", &ready);
  if (status.ok()) *result = std::move(mesh);
  return status;
}

// Every pair of ranks has a listening socket for exactly one connection, bound to options.host. The addresses travel
// through the store, signed with the token.
Status GlooMesh::Connect(Rendezvous* rendezvous) {
  std::vector<std::unique_ptr<gloo::transport::Pair>*> pairs(options_.size);
  std::string mine;
  try {
    gloo::transport::tcp::attr attributes(options_.host.c_str());
    device_ = gloo::transport::tcp::CreateDevice(attributes);
    context_ = device_->createContext(options_.rank, options_.size);
    context_->setTimeout(milliseconds(static_cast<int64_t>(std::min(rendezvous->TimeLeft(), 1e6) * 1000)));
    for (int rank = 0; rank < options_.size; ++rank) {
      if (rank == options_.rank) {
        mine.append(4, '\0');
        continue;
      }
      pairs[rank] = &context_->createPair(rank);
      const std::vector<char> address = (*pairs[rank])->address().bytes();
      const uint32_t length = static_cast<uint32_t>(address.size());
      mine.append(reinterpret_cast<const char*>(&length), sizeof(length));
      mine.append(address.begin(), address.end());
    }
  } catch (const std::exception& error) {
    return Status(EPL_INTERNAL, Format("communicator '%s': %s cannot listen on '%s': %s", options_.name.c_str(),
                                       options_.Name(options_.rank).c_str(), options_.host.c_str(), error.what()));
  }
  const auto sign = [&](int rank, const std::string& text) {
    return BytesOf(HmacSha256(options_.token, Format("gloo %s %d\n", options_.name.c_str(), rank) + text));
  };
  std::vector<std::string> cards;
  Status status = rendezvous->AllGather("gloo", sign(options_.rank, mine) + mine, &cards);
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) {
    if (rank == options_.rank) continue;
    const std::string body = cards[rank].size() < 32 ? "" : cards[rank].substr(32);
    if (body.empty() || sign(rank, body) != cards[rank].substr(0, 32)) {
      return Status(EPL_INTERNAL, Format("communicator '%s': %s did not prove the job's token", options_.name.c_str(),
                                         options_.Name(rank).c_str()));
    }
    // The address that `rank` opened for this rank.
    size_t at = 0;
    uint32_t length = 0;
    for (int i = 0; i <= options_.rank; ++i) {
      at += i == 0 ? 0 : length;
      if (at + sizeof(length) > body.size())
        return Status(EPL_INTERNAL, Format("%s sent a damaged address", options_.Name(rank).c_str()));
      std::memcpy(&length, body.data() + at, sizeof(length));
      at += sizeof(length);
      if (length > body.size() - at)
        return Status(EPL_INTERNAL, Format("%s sent a damaged address", options_.Name(rank).c_str()));
    }
    try {
      (*pairs[rank])->connect(std::vector<char>(body.begin() + at, body.begin() + at + length));
    } catch (const std::exception& error) {
      status =
          Status(EPL_TIMEOUT, Format("communicator '%s': %s and %s cannot connect: %s", options_.name.c_str(),
                                     options_.Name(options_.rank).c_str(), options_.Name(rank).c_str(), error.what()));
    }
  }
  for (int rank = 0; rank < options_.size; ++rank) peers_.push_back(std::make_unique<Peer>());
  return status;
}

// Both ends of a connection prove the token on it: each answers the other's random challenge.
Status GlooMesh::ProveToken() {
  struct Proof {
    char challenge[32], asked[32], answer[32], answered[32];
  };
  std::vector<Proof> proofs(options_.size);
  std::random_device random;
  const std::string what = Format("communicator '%s': proof of the job's token", options_.name.c_str());
  Transfers transfers;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    for (char& byte : proofs[rank].challenge) byte = static_cast<char>(random());
    Receive(rank, Slot::kProof, proofs[rank].asked, 32, &transfers);
    Send(rank, Slot::kProof, proofs[rank].challenge, 32, &transfers);
  }
  Status status = Wait(&transfers, what);
  if (!status.ok()) return status;
  const auto answer = [&](int from, int to, const char* challenge) {
    return HmacSha256(options_.token,
                      Format("gloo %s %d %d\n", options_.name.c_str(), from, to) + std::string(challenge, 32));
  };
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    const Digest digest = answer(options_.rank, rank, proofs[rank].asked);
    std::memcpy(proofs[rank].answer, digest.data(), digest.size());
    Receive(rank, Slot::kProof, proofs[rank].answered, 32, &transfers);
    Send(rank, Slot::kProof, proofs[rank].answer, 32, &transfers);
  }
  status = Wait(&transfers, what);
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) {
    if (rank == options_.rank) continue;
    const Digest expected = answer(rank, options_.rank, proofs[rank].challenge);
    if (SameDigest(expected, reinterpret_cast<const uint8_t*>(proofs[rank].answered))) continue;
    status = Status(EPL_INTERNAL, Format("communicator '%s': %s did not prove the job's token", options_.name.c_str(),
                                         options_.Name(rank).c_str()));
  }
  return status;
}

void GlooMesh::ListenForEndings() {
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    Peer* peer = peers_[rank].get();
    try {
      peer->ending = context_->createUnboundBuffer(&peer->control, sizeof(peer->control));
      peer->ending->recv(rank, static_cast<uint64_t>(Slot::kControl));
      peer->watch = context_->createUnboundBuffer(&peer->canary, sizeof(peer->canary));
      peer->watch->recv(rank, static_cast<uint64_t>(Slot::kCanary));
    } catch (const std::exception&) {
      // The connection is broken already; the first look around finds it.
      peer->gone = true;
      peer->reason = Status(EPL_PEER_LOST, Format("%s closed its connection", options_.Name(rank).c_str()));
    }
  }
}

void GlooMesh::Begin(bool send, int peer, Slot slot, void* data, size_t bytes, Transfers* transfers) {
  const NoSigpipe no_sigpipe;
  auto transfer = std::make_unique<GlooTransfer>(send, peer);
  try {
    transfer->buffer = context_->createUnboundBuffer(data, bytes);
    if (send) {
      transfer->buffer->send(peer, static_cast<uint64_t>(slot));
    } else {
      transfer->buffer->recv(peer, static_cast<uint64_t>(slot));
    }
  } catch (const std::exception&) {
    transfer->failed = true;  // Wait() finds out why
  }
  transfers->push_back(std::move(transfer));
}

void GlooMesh::Send(int to, Slot slot, const void* data, size_t bytes, Transfers* transfers) {
  Begin(true, to, slot, const_cast<void*>(data), bytes, transfers);
}

void GlooMesh::Receive(int from, Slot slot, void* data, size_t bytes, Transfers* transfers, size_t*) {
  Begin(false, from, slot, data, bytes, transfers);
}

Status GlooMesh::Broken() {
  if (!is_broken_.load(std::memory_order_acquire)) return Status();
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

// Whether the connection holds. Asks Gloo without waiting: an interrupted wait still reports a broken connection.
bool GlooMesh::Connected(int rank) {
  Peer* peer = peers_[rank].get();
  if (peer->gone || peer->watch == nullptr) return !peer->gone;
  try {
    peer->watch->abortWaitRecv();
    peer->watch->waitRecv(nullptr, kGlooWait);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Why `rank` is gone: in its own words if it had time for any.
Status GlooMesh::Ending(int rank) {
  Peer* peer = peers_[rank].get();
  if (peer->gone) return peer->reason;
  peer->gone = true;
  peer->reason = Status(EPL_PEER_LOST, Format("%s has ended, or the network between it and %s is cut",
                                              options_.Name(rank).c_str(), options_.Name(options_.rank).c_str()));
  if (peer->ending == nullptr) return peer->reason;
  try {
    // The connection is broken, so this has either completed or fails.
    if (!peer->ending->waitRecv(nullptr, kGoodbyeWait)) return peer->reason;
  } catch (const std::exception&) {
    return peer->reason;
  }
  Control& control = peer->control;
  control.text[sizeof(control.text) - 1] = '\0';
  if (control.kind == Control::kGoodbye) {
    peer->said_goodbye = true;
    peer->reason = Status(
        EPL_PEER_LOST, Format("%s has closed communicator '%s'", options_.Name(rank).c_str(), options_.name.c_str()));
  } else if (control.kind == Control::kAbort && control.code > EPL_OK && control.code <= EPL_INTERNAL) {
    peer->reason = Status(control.code, Format("%s: %s", options_.Name(rank).c_str(), control.text));
  }
  return peer->reason;
}

// Whether something ended while this rank waits for `waiting_for`; -1: for nobody in particular.
Status GlooMesh::LookAround(int waiting_for) {
  Status status = Broken();
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) {
    if (rank == options_.rank || Connected(rank)) continue;
    const Status reason = Ending(rank);
    if (rank == waiting_for || !peers_[rank]->said_goodbye) status = reason;
  }
  return status;
}

// OK when complete. EPL_TIMEOUT with an empty message: still under way at the `last_look`.
Status GlooMesh::WaitOne(GlooTransfer* transfer, const std::string& what, bool last_look) {
  const Clock::time_point start = Clock::now();
  bool warned = false;
  int looks_after_end = 0;
  for (int looks = 0;; ++looks) {
    Status status = Broken();
    if (!status.ok()) return status;
    bool complete = false;
    bool failed = transfer->failed;
    if (!failed) {
      ticker_.Begin(transfer->buffer.get(), transfer->send);
      try {
        complete = transfer->send ? transfer->buffer->waitSend(nullptr, kGlooWait)
                                  : transfer->buffer->waitRecv(nullptr, kGlooWait);
      } catch (const std::exception&) {
        failed = true;
      }
      ticker_.End();
    }
    if (complete) return Status();
    if (failed) {
      status = Broken();
      if (status.ok()) status = Ending(transfer->peer);
      return status;
    }
    status = LookAround(transfer->peer);
    // What a peer sent before it ended counts, also what came after the wait above was interrupted: with its connection
    // gone, the next wait finds it complete or fails.
    if (!status.ok() && peers_[transfer->peer]->gone && ++looks_after_end <= kLooksAfterEnd) continue;
    if (!status.ok()) return status;
    // The tick may have come at the very moment of completion, hence two looks.
    if (last_look && looks >= 1) return Status(EPL_TIMEOUT, "");
    const double waited = std::chrono::duration<double>(Clock::now() - start).count();
    if (waited > options_.timeout_s) return Status(EPL_TIMEOUT, "");
    if (options_.stall_warning_s > 0 && waited > options_.stall_warning_s && !warned) {
      warned = true;
      std::fprintf(stderr, "epl: %s: %s has waited %.0f s for %s; it gives up after %g s\n", what.c_str(),
                   options_.Name(options_.rank).c_str(), waited, options_.Name(transfer->peer).c_str(),
                   options_.timeout_s);
    }
  }
}

Status GlooMesh::Wait(Transfers* transfers, const std::string& what) {
  Transfers under_way;
  under_way.swap(*transfers);
  std::vector<int> missing;
  for (auto& one : under_way) {
    GlooTransfer* transfer = static_cast<GlooTransfer*>(one.get());
    const Status status = WaitOne(transfer, what, !missing.empty());
    if (status.ok()) continue;
    if (status.code != EPL_TIMEOUT || !status.message.empty()) {
      return status.code == EPL_PEER_LOST ? Status(status.code, what + ": " + status.message) : status;
    }
    if (std::find(missing.begin(), missing.end(), transfer->peer) == missing.end()) missing.push_back(transfer->peer);
  }
  if (missing.empty()) return Status();
  std::sort(missing.begin(), missing.end());
  return Status(EPL_TIMEOUT, Format("%s: %s waited %g s for %s", what.c_str(), options_.Name(options_.rank).c_str(),
                                    options_.timeout_s, options_.Names(missing).c_str()));
}

Status GlooMesh::Health() { return LookAround(-1); }

// Says something to every peer; waits a moment for it to leave this process.
void GlooMesh::Tell(int kind, int code, const std::string& text) {
  if (said_goodbye_.exchange(true) || context_ == nullptr) return;
  const NoSigpipe no_sigpipe;
  Control control = {};
  control.kind = kind;
  control.code = code;
  std::snprintf(control.text, sizeof(control.text), "%s", text.c_str());
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank || peers_.size() <= static_cast<size_t>(rank) || peers_[rank]->ending == nullptr)
      continue;
    try {
      buffers.push_back(context_->createUnboundBuffer(&control, sizeof(control)));
      buffers.back()->send(rank, static_cast<uint64_t>(Slot::kControl));
    } catch (const std::exception&) {
      buffers.pop_back();  // that peer is gone and needs no word
    }
  }
  for (auto& buffer : buffers) {
    try {
      buffer->waitSend(nullptr, kGoodbyeWait);
    } catch (const std::exception&) {
      continue;  // a peer that does not read is not waited for
    }
  }
}

void GlooMesh::Break(int code, const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_broken_) return;
    broken_ = Status(code, reason);
    is_broken_ = true;
  }
  ticker_.TickNow();
  Tell(Control::kAbort, code, reason);
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank != options_.rank) context_->getPair(rank)->close();
  }
  ticker_.TickNow();
}

void GlooMesh::Leave() { Tell(Control::kGoodbye, EPL_OK, ""); }

bool HasGloo() { return true; }

Status CreateGlooCommunicator(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  std::unique_ptr<Mesh> mesh;
  Status status = GlooMesh::Create(options, rendezvous, &mesh);
  if (status.ok()) *result = std::make_unique<MeshCommunicator>(options, "gloo", std::move(mesh));
  return status;
}

}  // namespace epl
#endif  // EPL_WITH_GLOO
