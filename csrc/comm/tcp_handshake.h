// How the two ends of a new connection prove the job's token to each other, before anything else is read.
//
// Who connects gets 32 random bytes and answers with a message of fixed size: who it is, 32 random bytes of its own,
// and the HMAC-SHA256 of all of that under the token. The other end answers with such a code of its own. Nothing here
// waits: both sides move on as far as their sockets allow.
#ifndef EPL_COMM_TCP_HANDSHAKE_H_
#define EPL_COMM_TCP_HANDSHAKE_H_

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "communicator.h"
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

// After a call on a socket that does not wait has failed: whether it need only be made again later.
inline bool Again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

// What a connection is for: tensors, or what ranks hear of each other's ends.
enum Channel : uint32_t { kDataChannel = 0, kWatchChannel = 1, kNumChannels = 2 };

struct Link {
  int from = -1, to = -1;  // `from` connects
  uint32_t channel = kDataChannel;
};

struct Address {
  sockaddr_storage bytes = {};
  socklen_t length = 0;
};

// Listens at a free port of options.host; `text` becomes "ip port". `backlog`: connections that may wait.
Status Listen(const Options& options, int backlog, Socket* listener, std::string* text);

// Reads such a text.
Status ReadAddress(const std::string& text, Address* address);

constexpr size_t kNonceBytes = 32;

struct Hello {
  char magic[8];
  uint32_t rank;
  uint32_t channel;
  char nonce[kNonceBytes];
  uint8_t proof[32];
};
static_assert(sizeof(Hello) == 80, "what is read before a proof has a fixed size");

// The side that connects.
class Attempt {
 public:
  enum class State { kUnderWay, kDone, kRefused, kFailed };  // refused: nothing listens there

  Attempt(const Options& options, const Link& link, const Address& address)
      : options_(options), link_(link), address_(address) {}

  State Advance();
  int fd() const { return socket_.fd(); }
  short events() const;  // that it waits for
  const Link& link() const { return link_; }
  Socket Take() { return std::move(socket_); }

 private:
  enum class Stage { kBegin, kConnect, kNonce, kAnswer };
  State Begin();
  State Read(void* to, size_t bytes);

  const Options& options_;
  const Link link_;
  const Address address_;
  Stage stage_ = Stage::kBegin;
  Socket socket_;
  size_t received_ = 0;  // of what this stage reads
  char host_nonce_[kNonceBytes];
  Hello hello_;
  uint8_t answer_[32];
};

// The side that was connected to.
class Guest {
 public:
  using Clock = std::chrono::steady_clock;
  enum class State { kSilent, kBad, kProved };

  // Takes the connection and sends the random bytes.
  Guest(Socket socket, Clock::time_point until);

  State Hear(const Options& options);
  // Proves the token in turn; false: the guest is gone.
  bool Answer(const Options& options);

  int fd() const { return socket_.fd(); }
  Clock::time_point until() const { return until_; }
  const Link& link() const { return link_; }  // once it is proved
  Socket Take() { return std::move(socket_); }

 private:
  Socket socket_;
  Clock::time_point until_;
  Link link_;
  char nonce_[kNonceBytes];
  Hello hello_;
  size_t received_ = 0;
};

}  // namespace epl
#endif  // EPL_COMM_TCP_HANDSHAKE_H_
