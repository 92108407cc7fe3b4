#include "tcp_mesh.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "backends.h"
#include "mesh_communicator.h"

namespace epl {
namespace {

using Clock = std::chrono::steady_clock;

// A sleeping wait looks at its time-out this often; everything else wakes it.
constexpr int kSliceMilliseconds = 200;
// How long a broken connection's peer has to say why, on its other connection.
constexpr int kReasonMilliseconds = 200;
constexpr uint32_t kFrameMagic = 0x65706c66;

bool Again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

struct TcpMesh::Frame {
  uint32_t magic = kFrameMagic;
  uint32_t slot = 0;
  uint64_t bytes = 0;
};

struct TcpMesh::Ending {
  enum Kind : int32_t { kNothing = 0, kAbort = 1, kGoodbye = 2 };
  int32_t kind = kNothing;
  int32_t code = 0;
  char text[1000] = "";
};

class TcpMesh::TcpTransfer : public Mesh::Transfer {
 public:
  TcpTransfer(TcpMesh* mesh, bool send_in, int peer_in, Slot slot_in, char* data_in, size_t bytes_in)
      : send(send_in), peer(peer_in), slot(slot_in), data(data_in), bytes(bytes_in), mesh_(mesh) {}
  ~TcpTransfer() override { mesh_->Forget(this); }

  const bool send;
  const int peer;
  const Slot slot;
  char* const data;
  size_t bytes;
  size_t moved = 0;
  size_t* received = nullptr;  // where the number of bytes goes that came; NULL: as many as are expected, or none
  bool done = false;

 private:
  TcpMesh* const mesh_;
};

struct TcpMesh::Peer {
  TcpChannels channels;
  std::deque<TcpTransfer*> sends;
  std::deque<TcpTransfer*> receives[kNumSlots];
  Frame out, in;  // of the messages that are moving
  size_t out_moved = 0, in_moved = 0;
  TcpTransfer* incoming = nullptr;  // whose frame has been read
  bool lost = false;                // the data connection
  bool closed = false;              // the control connection
  Ending ending;
  size_t ending_moved = 0;

  bool said_goodbye() const { return ending_moved == sizeof(Ending) && ending.kind == Ending::kGoodbye; }
  bool aborted() const { return ending_moved == sizeof(Ending) && ending.kind == Ending::kAbort; }
  // Whether more bytes are wanted: without a receiver for the next message they stay where they are.
  bool wants() const {
    return !lost && (incoming != nullptr || in_moved < sizeof(Frame) || !receives[in.slot].empty());
  }
};

TcpMesh::TcpMesh(const Options& options) : options_(options), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

TcpMesh::~TcpMesh() { Leave(); }

Status TcpMesh::Create(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Mesh>* result) {
  std::unique_ptr<TcpMesh> mesh(new TcpMesh(options));
  if (!mesh->wake_.valid()) return Status(EPL_INTERNAL, Format("eventfd: %s", std::strerror(errno)));
  std::vector<TcpChannels> channels;
  Status status = TcpConnect(options, rendezvous, &channels);
  if (!status.ok()) return status;
  for (TcpChannels& one : channels) {
    mesh->peers_.push_back(std::make_unique<Peer>());
    mesh->peers_.back()->channels = std::move(one);
  }
  *result = std::move(mesh);
  return Status();
}

void TcpMesh::Send(int to, Slot slot, const void* data, size_t bytes, Transfers* transfers) {
  auto transfer =
      std::make_unique<TcpTransfer>(this, true, to, slot, static_cast<char*>(const_cast<void*>(data)), bytes);
  peers_[to]->sends.push_back(transfer.get());
  transfers->push_back(std::move(transfer));
  Push(peers_[to].get());
}

void TcpMesh::Receive(int from, Slot slot, void* data, size_t bytes, Transfers* transfers, size_t* received) {
  auto transfer = std::make_unique<TcpTransfer>(this, false, from, slot, static_cast<char*>(data), bytes);
  transfer->received = received;
  peers_[from]->receives[static_cast<size_t>(slot)].push_back(transfer.get());
  transfers->push_back(std::move(transfer));
}

// A transfer that ends early leaves a message in the middle, and its connection with it.
void TcpMesh::Forget(TcpTransfer* transfer) {
  if (transfer->done) return;
  Peer* peer = peers_[transfer->peer].get();
  auto& queue = transfer->send ? peer->sends : peer->receives[static_cast<size_t>(transfer->slot)];
  if (peer->incoming == transfer || (transfer->send && peer->sends.front() == transfer && peer->out_moved > 0)) {
    peer->lost = true;
    peer->incoming = nullptr;
  }
  queue.erase(std::remove(queue.begin(), queue.end(), transfer), queue.end());
}

// Writes what the socket takes. False: nothing moved.
bool TcpMesh::Push(Peer* peer) {
  bool moved_any = false;
  while (!peer->lost && !peer->sends.empty()) {
    TcpTransfer* transfer = peer->sends.front();
    if (peer->out_moved == 0) {
      peer->out.slot = static_cast<uint32_t>(transfer->slot);
      peer->out.bytes = transfer->bytes;
    }
    iovec parts[2] = {{reinterpret_cast<char*>(&peer->out) + peer->out_moved, sizeof(Frame) - peer->out_moved},
                      {transfer->data + transfer->moved, transfer->bytes - transfer->moved}};
    msghdr message = {};
    message.msg_iov = parts[0].iov_len > 0 ? parts : parts + 1;
    message.msg_iovlen = parts[0].iov_len > 0 ? 2 : 1;
    const ssize_t sent = sendmsg(peer->channels.data.fd(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      peer->lost = !Again();
      return moved_any;
    }
    moved_any = true;
    const size_t of_frame = std::min(parts[0].iov_len, static_cast<size_t>(sent));
    peer->out_moved += of_frame;
    transfer->moved += static_cast<size_t>(sent) - of_frame;
    if (peer->out_moved < sizeof(Frame) || transfer->moved < transfer->bytes) continue;
    transfer->done = true;
    peer->out_moved = 0;
    peer->sends.pop_front();
  }
  return moved_any;
}

// Reads what is there for those who wait for it. False: nothing moved.
bool TcpMesh::Pull(Peer* peer) {
  bool moved_any = false;
  while (peer->wants()) {
    if (peer->in_moved == sizeof(Frame) && peer->incoming == nullptr) {
      TcpTransfer* transfer = peer->receives[peer->in.slot].front();
      if (peer->in.bytes > transfer->bytes || (transfer->received == nullptr && peer->in.bytes < transfer->bytes)) {
        peer->lost = true;
        return true;
      }
      transfer->bytes = peer->in.bytes;
      if (transfer->received != nullptr) *transfer->received = peer->in.bytes;
      peer->incoming = transfer;
    }
    TcpTransfer* transfer = peer->incoming;
    if (transfer == nullptr || transfer->moved < transfer->bytes) {
      char* to =
          transfer == nullptr ? reinterpret_cast<char*>(&peer->in) + peer->in_moved : transfer->data + transfer->moved;
      const size_t wanted = transfer == nullptr ? sizeof(Frame) - peer->in_moved : transfer->bytes - transfer->moved;
      const ssize_t got = recv(peer->channels.data.fd(), to, wanted, 0);
      if (got <= 0) {
        peer->lost = got == 0 || !Again();
        return moved_any || peer->lost;
      }
      moved_any = true;
      (transfer == nullptr ? peer->in_moved : transfer->moved) += static_cast<size_t>(got);
    }
    if (transfer == nullptr) {
      const bool whole = peer->in_moved == sizeof(Frame);
      if (whole && (peer->in.magic != kFrameMagic || peer->in.slot >= kNumSlots)) peer->lost = true;
    } else if (transfer->moved == transfer->bytes) {
      transfer->done = true;
      peer->receives[static_cast<size_t>(transfer->slot)].pop_front();
      peer->incoming = nullptr;
      peer->in_moved = 0;
    }
  }
  return moved_any;
}

bool TcpMesh::Move(int rank) {
  const bool pushed = Push(peers_[rank].get());
  return Pull(peers_[rank].get()) || pushed;
}

// Reads what `rank` says at its end, if it has said anything; waits for it as long as `wait_ms`.
void TcpMesh::ReadEnding(int rank, int wait_ms) {
  Peer* peer = peers_[rank].get();
  while (!peer->closed && peer->ending_moved < sizeof(Ending)) {
    char* to = reinterpret_cast<char*>(&peer->ending) + peer->ending_moved;
    const ssize_t got = recv(peer->channels.control.fd(), to, sizeof(Ending) - peer->ending_moved, 0);
    if (got > 0) {
      peer->ending_moved += static_cast<size_t>(got);
    } else if (got == 0 || !Again()) {
      peer->closed = true;
    } else {
      pollfd one = {peer->channels.control.fd(), POLLIN, 0};
      if (wait_ms == 0 || poll(&one, 1, wait_ms) <= 0) return;
    }
  }
  peer->closed = true;  // nothing follows
  peer->ending.text[sizeof(peer->ending.text) - 1] = '\0';
}

// Why `rank` is gone: in its own words if it had time for any.
Status TcpMesh::Reason(int rank) {
  ReadEnding(rank, kReasonMilliseconds);
  const Peer& peer = *peers_[rank];
  if (peer.aborted() && peer.ending.code > EPL_OK && peer.ending.code <= EPL_INTERNAL) {
    return Status(peer.ending.code, Format("%s: %s", options_.Name(rank).c_str(), peer.ending.text));
  }
  if (peer.said_goodbye()) {
    return Status(EPL_PEER_LOST,
                  Format("%s has closed communicator '%s'", options_.Name(rank).c_str(), options_.name.c_str()));
  }
  return Status(EPL_PEER_LOST, Format("%s has ended, or the network between it and %s is cut",
                                      options_.Name(rank).c_str(), options_.Name(options_.rank).c_str()));
}

Status TcpMesh::Broken() {
  if (!is_broken_.load(std::memory_order_acquire)) return Status();
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

// Whether this rank or another has ended the communicator, or is gone without a word.
Status TcpMesh::LookAround() {
  Status status = Broken();
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) {
    if (rank == options_.rank) continue;
    ReadEnding(rank, 0);
    if (peers_[rank]->closed && !peers_[rank]->said_goodbye()) status = Reason(rank);
  }
  return status;
}

// Whether some transfer can never end. All that a peer sent before it left has been read when its connection is lost.
Status TcpMesh::Failure(const Transfers& transfers) {
  for (const auto& one : transfers) {
    const TcpTransfer& transfer = *static_cast<const TcpTransfer*>(one.get());
    const Peer& peer = *peers_[transfer.peer];
    if (!transfer.done && (peer.lost || (transfer.send && peer.said_goodbye()))) return Reason(transfer.peer);
  }
  return Status();
}

// Until something can move or somebody has something to say.
void TcpMesh::Sleep() {
  std::vector<pollfd> fds(1, pollfd{wake_.fd(), POLLIN, 0});
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) continue;
    const Peer& peer = *peers_[rank];
    const bool send = !peer.lost && !peer.sends.empty();
    const short events = static_cast<short>((send ? POLLOUT : 0) | (peer.wants() ? POLLIN : 0));
    fds.push_back({events == 0 ? -1 : peer.channels.data.fd(), events, 0});
    fds.push_back({peer.closed ? -1 : peer.channels.control.fd(), POLLIN, 0});
  }
  poll(fds.data(), fds.size(), kSliceMilliseconds);
}

Status TcpMesh::Wait(Transfers* transfers, const std::string& what) {
  Transfers under_way;
  under_way.swap(*transfers);
  const auto done = [](const std::unique_ptr<Transfer>& one) { return static_cast<TcpTransfer*>(one.get())->done; };
  const Clock::time_point start = Clock::now();
  bool warned = false;
  for (;;) {
    bool moved = false;
    for (int rank = 0; rank < options_.size; ++rank) moved |= rank != options_.rank && Move(rank);
    if (std::all_of(under_way.begin(), under_way.end(), done)) return Status();
    Status status = Broken();
    if (!status.ok()) return status;
    if (moved) continue;
    status = LookAround();
    // What a peer sent before it ended counts.
    for (int rank = 0; rank < options_.size && !status.ok(); ++rank) moved |= rank != options_.rank && Move(rank);
    if (moved) continue;
    if (status.ok()) status = Failure(under_way);
    if (status.code == EPL_PEER_LOST) return Status(status.code, what + ": " + status.message);
    if (!status.ok()) return status;

    const double waited = std::chrono::duration<double>(Clock::now() - start).count();
    const bool warn = options_.stall_warning_s > 0 && waited > options_.stall_warning_s && !warned;
    if (waited <= options_.timeout_s && !warn) {
      Sleep();
      continue;
    }
    std::vector<int> missing;
    for (const auto& one : under_way) {
      if (!done(one)) missing.push_back(static_cast<TcpTransfer*>(one.get())->peer);
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    const std::string me = options_.Name(options_.rank), others = options_.Names(missing);
    if (waited > options_.timeout_s) {
      return Status(EPL_TIMEOUT,
                    Format("%s: %s waited %g s for %s", what.c_str(), me.c_str(), options_.timeout_s, others.c_str()));
    }
    warned = true;
    std::fprintf(stderr, "epl: %s: %s has waited %.0f s for %s; it gives up after %g s\n", what.c_str(), me.c_str(),
                 waited, others.c_str(), options_.timeout_s);
  }
}

Status TcpMesh::Health() { return LookAround(); }

// Says something to every peer, once. It is the only message on these connections, so the sockets have room for it.
void TcpMesh::Tell(int kind, int code, const std::string& text) {
  if (has_told_.exchange(true)) return;
  Ending ending;
  ending.kind = kind;
  ending.code = code;
  std::snprintf(ending.text, sizeof(ending.text), "%s", text.c_str());
  for (const auto& peer : peers_) {
    if (!peer->channels.control.valid()) continue;
    const ssize_t sent = send(peer->channels.control.fd(), &ending, sizeof(ending), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) continue;  // that peer is gone and needs no word
    shutdown(peer->channels.control.fd(), SHUT_WR);
    // After an abort nothing that is under way counts; else the peer still reads what it has been sent.
    shutdown(peer->channels.data.fd(), kind == Ending::kAbort ? SHUT_RDWR : SHUT_WR);
  }
}

void TcpMesh::Break(int code, const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_broken_) return;
    broken_ = Status(code, reason);
    is_broken_ = true;
  }
  Tell(Ending::kAbort, code, reason);
  const uint64_t one = 1;
  if (write(wake_.fd(), &one, sizeof(one)) < 0) return;  // it is readable already
}

void TcpMesh::Leave() { Tell(Ending::kGoodbye, EPL_OK, ""); }

Status CreateTcpCommunicator(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  std::unique_ptr<Mesh> mesh;
  Status status = TcpMesh::Create(options, rendezvous, &mesh);
  if (status.ok()) *result = std::make_unique<MeshCommunicator>(options, "tcp", std::move(mesh));
  return status;
}

}  // namespace epl
