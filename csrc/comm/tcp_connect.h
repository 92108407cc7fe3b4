// Connections between all pairs of ranks, of which both ends have proved the job's token before anything else is read.
//
// Who connects gets 32 random bytes and answers with a message of fixed size: who it is, 32 random bytes of its own,
// and the HMAC-SHA256 of all of that under the token. The other end answers with such a code of its own. What does not
// fit is closed without an answer; a guest that is slow or one too many is closed as well, and honest ones come again.
// The listening socket is closed when every rank is there.
#ifndef EPL_COMM_TCP_CONNECT_H_
#define EPL_COMM_TCP_CONNECT_H_

#include <vector>

#include "communicator.h"
#include "rendezvous.h"
#include "status.h"

namespace epl {

// A file descriptor that is closed with its owner.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket() { Reset(); }
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = other.fd_;
      other.fd_ = -1;
    }
    return *this;
  }
  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_;
};

// To one peer: one for data, one for what a rank says at its end, so that this never waits behind data.
struct TcpChannels {
  Socket data, control;
  Socket& at(uint32_t channel) { return channel == 0 ? data : control; }
};

// Connects all ranks; the entry of this rank itself stays empty. The sockets do not block.
Status TcpConnect(const Options& options, Rendezvous* rendezvous, std::vector<TcpChannels>* channels);

}  // namespace epl
#endif  // EPL_COMM_TCP_CONNECT_H_
