// Transfers over TCP connections of our own, each made when it is first needed (tcp_keeper.h). They move on the thread
// that waits for any of them, and as far as the sockets take them when they begin.
//
// A message is a frame of fixed size, which says slot and length, and its bytes. One that nobody has asked for yet
// stays in the socket; one that is longer than what was asked for ends the connection.
#ifndef EPL_COMM_TCP_MESH_H_
#define EPL_COMM_TCP_MESH_H_

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "communicator.h"
#include "mesh.h"
#include "rendezvous.h"
#include "tcp_handshake.h"
#include "tcp_keeper.h"

namespace epl {

class TcpMesh : public Mesh {
 public:
  // `strides`: the distances between ranks that hear of each other's ends directly (host_layout.h).
  static Status Create(const Options& options, const std::vector<int>& strides, Rendezvous* rendezvous,
                       std::unique_ptr<Mesh>* result);
  ~TcpMesh() override;

  void Send(int to, Slot slot, const void* data, size_t bytes, Transfers* transfers) override;
  using Mesh::Receive;
  void Receive(int from, Slot slot, void* data, size_t bytes, Transfers* transfers, size_t* received) override;
  Status Wait(Transfers* transfers, const std::string& what) override;
  Status Health() override;
  void Break(int code, const std::string& reason) override;
  void Leave() override;

 private:
  static constexpr size_t kNumSlots = static_cast<size_t>(Slot::kCanary) + 1;

  struct Frame;
  struct Peer;
  class TcpTransfer;

  explicit TcpMesh(const Options& options);
  Peer* Find(int rank);
  Peer* Need(int rank);
  void Welcome();
  bool MoveAll();
  bool Push(Peer* peer);
  bool Pull(Peer* peer);
  void Forget(TcpTransfer* transfer);
  void Sleep();
  void Wake();
  Status Broken();
  Status LookAround();
  Status Failure(const Transfers& transfers);

  const Options options_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; NULL: not needed yet
  std::vector<Peer*> connected_;
  Socket wake_;       // an eventfd: there are connections or news, or this rank has ended the communicator
  std::mutex mutex_;  // guards broken_
  Status broken_;     // why this rank ended the communicator
  std::atomic<bool> is_broken_{false};
  std::unique_ptr<TcpKeeper> keeper_;  // after what it wakes
};

}  // namespace epl
#endif  // EPL_COMM_TCP_MESH_H_
