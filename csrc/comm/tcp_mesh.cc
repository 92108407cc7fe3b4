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
#include "host_layout.h"
#include "mesh_communicator.h"

namespace epl {
namespace {

using Clock = std::chrono::steady_clock;

// A sleeping wait looks at its time-out this often; everything else wakes it.
constexpr int kPollMilliseconds = 200;
// How long word of the reason may take when a connection has broken.
constexpr int kReasonMilliseconds = 500;
constexpr uint32_t kFrameMagic = 0x65706c66;

}  // namespace

struct TcpMesh::Frame {
  uint32_t magic = kFrameMagic;
  uint32_t slot = 0;
  uint64_t bytes = 0;
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
  explicit Peer(int rank_in) : rank(rank_in) {}

  const int rank;
  int fd = -1;  // -1: not connected yet
  std::deque<TcpTransfer*> sends;
  std::deque<TcpTransfer*> receives[kNumSlots];
  Frame out, in;  // of the messages that are moving
  size_t out_moved = 0, in_moved = 0;
  TcpTransfer* incoming = nullptr;  // whose frame has been read
  bool lost = false;                // the connection

  bool usable() const { return fd >= 0 && !lost; }
  // Whether more bytes are wanted: without a receiver for the next message they stay where they are.
  bool wants() const {
    return usable() && (incoming != nullptr || in_moved < sizeof(Frame) || !receives[in.slot].empty());
  }
};

TcpMesh::TcpMesh(const Options& options)
    : options_(options), peers_(options.size), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

TcpMesh::~TcpMesh() { Leave(); }

Status TcpMesh::Create(const Options& options, const std::vector<int>& strides, Rendezvous* rendezvous,
                       std::unique_ptr<Mesh>* result) {
  std::unique_ptr<TcpMesh> mesh(new TcpMesh(options));
  if (!mesh->wake_.valid()) return Status(EPL_INTERNAL, Format("eventfd: %s", std::strerror(errno)));
  TcpMesh* made = mesh.get();
  const Status status = TcpKeeper::Create(options, strides, rendezvous, [made] { made->Wake(); }, &mesh->keeper_);
  if (status.ok()) *result = std::move(mesh);
  return status;
}

TcpMesh::Peer* TcpMesh::Find(int rank) {
  if (peers_[rank] == nullptr) peers_[rank] = std::make_unique<Peer>(rank);
  return peers_[rank].get();
}

// The peer, to which there is a connection or will be one.
TcpMesh::Peer* TcpMesh::Need(int rank) {
  if (keeper_->has_arrivals()) Welcome();
  Peer* peer = Find(rank);
  if (peer->fd < 0 && !peer->lost) keeper_->Want(rank);
  return peer;
}

// Takes in the connections that have been made.
void TcpMesh::Welcome() {
  for (const TcpKeeper::Arrival& arrival : keeper_->TakeArrivals()) {
    Peer* peer = Find(arrival.rank);
    peer->fd = arrival.fd;
    peer->lost = arrival.fd < 0;
    if (!peer->lost) connected_.push_back(peer);
  }
}

void TcpMesh::Send(int to, Slot slot, const void* data, size_t bytes, Transfers* transfers) {
  auto transfer =
      std::make_unique<TcpTransfer>(this, true, to, slot, static_cast<char*>(const_cast<void*>(data)), bytes);
  Peer* peer = Need(to);
  peer->sends.push_back(transfer.get());
  transfers->push_back(std::move(transfer));
  Push(peer);
}

void TcpMesh::Receive(int from, Slot slot, void* data, size_t bytes, Transfers* transfers, size_t* received) {
  auto transfer = std::make_unique<TcpTransfer>(this, false, from, slot, static_cast<char*>(data), bytes);
  transfer->received = received;
  Need(from)->receives[static_cast<size_t>(slot)].push_back(transfer.get());
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
  while (peer->usable() && !peer->sends.empty()) {
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
    const ssize_t sent = sendmsg(peer->fd, &message, MSG_NOSIGNAL);
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
      const ssize_t got = recv(peer->fd, to, wanted, 0);
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

// Whether anything moved on any connection.
bool TcpMesh::MoveAll() {
  if (keeper_->has_arrivals()) Welcome();
  bool moved = false;
  for (Peer* peer : connected_) {
    moved |= Push(peer);
    moved |= Pull(peer);
  }
  return moved;
}

Status TcpMesh::Broken() {
  if (!is_broken_.load(std::memory_order_acquire)) return Status();
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

// Whether this rank or another has ended the communicator, or is gone without a word.
Status TcpMesh::LookAround() {
  const Status status = Broken();
  if (!status.ok()) return status;
  keeper_->watch()->Pump();
  return keeper_->watch()->Failure();
}

// Whether some transfer can never end. All that a peer sent before it left has been read when its connection is lost.
Status TcpMesh::Failure(const Transfers& transfers) {
  for (const auto& one : transfers) {
    const TcpTransfer& transfer = *static_cast<const TcpTransfer*>(one.get());
    const Peer& peer = *peers_[transfer.peer];
    if (transfer.done) continue;
    bool never = peer.lost;
    if (!never && (transfer.send || peer.fd < 0) && keeper_->watch()->SaidGoodbye(transfer.peer)) {
      // A connection that was made before the goodbye is among the arrivals, with what came over it.
      Welcome();
      never = transfer.send || peer.fd < 0;
    }
    if (never) return keeper_->watch()->Reason(transfer.peer, kReasonMilliseconds);
  }
  return Status();
}

// Until something can move or somebody has something to say.
void TcpMesh::Sleep() {
  std::vector<pollfd> fds(1, pollfd{wake_.fd(), POLLIN, 0});
  for (const Peer* peer : connected_) {
    const bool send = peer->usable() && !peer->sends.empty();
    const short events = static_cast<short>((send ? POLLOUT : 0) | (peer->wants() ? POLLIN : 0));
    if (events != 0) fds.push_back({peer->fd, events, 0});
  }
  poll(fds.data(), fds.size(), kPollMilliseconds);
  uint64_t count;
  if (fds[0].revents != 0 && read(wake_.fd(), &count, sizeof(count)) < 0) return;  // emptied already
}

Status TcpMesh::Wait(Transfers* transfers, const std::string& what) {
  Transfers under_way;
  under_way.swap(*transfers);
  const auto done = [](const std::unique_ptr<Transfer>& one) { return static_cast<TcpTransfer*>(one.get())->done; };
  const Clock::time_point start = Clock::now();
  bool warned = false;
  for (;;) {
    bool moved = MoveAll();
    if (std::all_of(under_way.begin(), under_way.end(), done)) return Status();
    Status status = Broken();
    if (!status.ok()) return status;
    if (moved) continue;
    status = LookAround();
    // What a peer sent before it ended counts.
    if (!status.ok()) moved = MoveAll();
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

void TcpMesh::Wake() {
  const uint64_t one = 1;
  if (write(wake_.fd(), &one, sizeof(one)) < 0) return;  // it is readable already
}

void TcpMesh::Break(int code, const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_broken_) return;
    broken_ = Status(code, reason);
    is_broken_ = true;
  }
  keeper_->End(Ending::kAbort, code, reason);
  Wake();
}

void TcpMesh::Leave() {
  if (keeper_ != nullptr) keeper_->End(Ending::kGoodbye, EPL_OK, "");
}

Status CreateTcpCommunicator(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  std::unique_ptr<Mesh> mesh;
  // All are connected with all by the first collective, and two links more are as many as a rank may have.
  Status status = TcpMesh::Create(options, Strides(options.size, 1), rendezvous, &mesh);
  if (status.ok()) *result = std::make_unique<MeshCommunicator>(options, "tcp", std::move(mesh));
  return status;
}

}  // namespace epl
