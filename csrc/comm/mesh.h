// Point-to-point transfers between all pairs of ranks: what a network has to offer to the collectives that
// mesh_communicator.cc builds on it.
#ifndef EPL_COMM_MESH_H_
#define EPL_COMM_MESH_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "status.h"

namespace epl {

// Independent queues between two ranks. Within one, messages arrive in the order in which they were sent.
enum class Slot : unsigned { kProof, kHead, kData, kControl, kCanary };

class Mesh {
 public:
  // A transfer under way; ends with the object. The memory belongs to the transfer until then.
  class Transfer {
   public:
    virtual ~Transfer() = default;
  };
  using Transfers = std::vector<std::unique_ptr<Transfer>>;

  virtual ~Mesh() = default;

  // Begin a transfer. A broken connection is reported by Wait.
  virtual void Send(int to, Slot slot, const void* data, size_t bytes, Transfers* transfers) = 0;
  // The message has `bytes` bytes; or fewer where the caller gives `received`, which gets their number, or stays as it
  // is with a network that does not tell.
  virtual void Receive(int from, Slot slot, void* data, size_t bytes, Transfers* transfers, size_t* received) = 0;
  void Receive(int from, Slot slot, void* data, size_t bytes, Transfers* transfers) {
    Receive(from, slot, data, bytes, transfers, nullptr);
  }

  // Waits for all of them and empties the list. `what` begins the message of an error. EPL_TIMEOUT names the ranks that
  // were waited for, EPL_PEER_LOST the one whose connection broke; if a peer said why it ended, that is the error.
  virtual Status Wait(Transfers* transfers, const std::string& what) = 0;

  // OK while no connection is broken.
  virtual Status Health() = 0;

  // Tells the peers why, breaks all connections and wakes a Wait in progress. Any thread; the first reason wins.
  virtual void Break(int code, const std::string& reason) = 0;

  // Tells the peers that nothing more will come from here.
  virtual void Leave() = 0;
};

}  // namespace epl
#endif  // EPL_COMM_MESH_H_
