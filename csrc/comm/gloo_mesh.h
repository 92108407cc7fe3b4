// Transfers over Gloo's TCP transport. Only its connections are used, not its algorithms; see mesh_communicator.h.
#ifndef EPL_COMM_GLOO_MESH_H_
#define EPL_COMM_GLOO_MESH_H_

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "communicator.h"
#include "mesh.h"
#include "rendezvous.h"

namespace epl {

// Interrupts a wait from time to time. Gloo gives up all connections when one of its waits times out, and does not wake
// a wait for one peer when the connection to another breaks; so waits have no time-out there, and this thread ends
// them, to be begun again after a look around. It sleeps while nobody waits.
class WaitTicker {
 public:
  WaitTicker();
  ~WaitTicker();
  void Begin(gloo::transport::UnboundBuffer* buffer, bool send);
  void End();
  void TickNow();

 private:
  void Loop();
  void Tick();

  std::mutex mutex_;
  std::condition_variable changed_;
  gloo::transport::UnboundBuffer* buffer_ = nullptr;
  bool send_ = false;
  bool asleep_ = false;
  bool closing_ = false;
  std::thread thread_;
};

class GlooMesh : public Mesh {
 public:
  static Status Create(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Mesh>* result);
  ~GlooMesh() override;

  void Send(int to, Slot slot, const void* data, size_t bytes, Transfers* transfers) override;
  using Mesh::Receive;
  void Receive(int from, Slot slot, void* data, size_t bytes, Transfers* transfers, size_t* received) override;
  Status Wait(Transfers* transfers, const std::string& what) override;
  Status Health() override;
  void Break(int code, const std::string& reason) override;
  void Leave() override;

 private:
  struct Control;  // what a rank says before it closes its connections
  struct Peer;
  class GlooTransfer;

  explicit GlooMesh(const Options& options);
  Status Connect(Rendezvous* rendezvous);
  Status ProveToken();
  void ListenForEndings();
  void Begin(bool send, int peer, Slot slot, void* data, size_t bytes, Transfers* transfers);
  Status WaitOne(GlooTransfer* transfer, const std::string& what, bool last_look);
  Status LookAround(int waiting_for);
  Status Ending(int peer);
  Status Broken();
  void Tell(int kind, int code, const std::string& text);
  bool Connected(int peer);

  const Options options_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::vector<std::unique_ptr<Peer>> peers_;
  WaitTicker ticker_;
  std::mutex mutex_;  // guards broken_
  Status broken_;     // why this rank ended the communicator
  std::atomic<bool> is_broken_{false};
  std::atomic<bool> said_goodbye_{false};
};

}  // namespace epl
#endif  // EPL_COMM_GLOO_MESH_H_
