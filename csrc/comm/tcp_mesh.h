// Transfers over TCP connections of our own (tcp_connect.h). There is no thread: transfers move while a rank waits for
// any of them, and as far as the sockets take them when they begin.
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
#include "tcp_connect.h"

namespace epl {

class TcpMesh : public Mesh {
 public:
  static Status Create(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Mesh>* result);
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
  struct Ending;  // what a rank says before it closes its connections
  struct Peer;
  class TcpTransfer;

  explicit TcpMesh(const Options& options);
  bool Move(int rank);
  bool Push(Peer* peer);
  bool Pull(Peer* peer);
  void ReadEnding(int rank, int wait_ms);
  void Forget(TcpTransfer* transfer);
  void Sleep();
  Status Broken();
  Status LookAround();
  Status Failure(const Transfers& transfers);
  Status Reason(int rank);
  void Tell(int kind, int code, const std::string& text);

  const Options options_;
  std::vector<std::unique_ptr<Peer>> peers_;
  Socket wake_;       // an eventfd, readable once this rank has ended the communicator
  std::mutex mutex_;  // guards broken_
  Status broken_;     // why this rank ended the communicator
  std::atomic<bool> is_broken_{false};
  std::atomic<bool> has_told_{false};
};

}  // namespace epl
#endif  // EPL_COMM_TCP_MESH_H_
