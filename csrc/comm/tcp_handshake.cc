#include "tcp_handshake.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "sha256.h"

namespace epl {
namespace {

constexpr char kHelloMagic[8] = {'E', 'P', 'L', 't', 'c', 'p', '0', '2'};

Digest Prove(const Options& options, const char* side, const Link& link, const char* host_nonce,
             const char* guest_nonce) {
  return HmacSha256(options.token,
                    Format("tcp %s %s %d %d %u\n", options.name.c_str(), side, link.from, link.to, link.channel) +
                        std::string(host_nonce, kNonceBytes) + std::string(guest_nonce, kNonceBytes));
}

void MakeNonce(char* nonce) {
  std::random_device random;
  for (size_t i = 0; i < kNonceBytes; ++i) nonce[i] = static_cast<char>(random());
}

void Prepare(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
}

struct Found {
  addrinfo* first = nullptr;
  ~Found() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

Status Resolve(const std::string& host, const std::string& port, int flags, Found* found) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found->first);
  if (error == 0) return Status();
  return Status(EPL_INTERNAL, Format("address '%s' is unknown: %s", host.c_str(), gai_strerror(error)));
}

}  // namespace

void Socket::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Status Listen(const Options& options, int backlog, Socket* listener, std::string* text) {
  Found found;
  Status status = Resolve(options.host, "0", 0, &found);
  if (!status.ok()) return status;
  *listener = Socket(socket(found.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (!listener->valid() || bind(listener->fd(), found.first->ai_addr, found.first->ai_addrlen) != 0 ||
      listen(listener->fd(), backlog) != 0 ||
      getsockname(listener->fd(), reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return Status(EPL_INTERNAL, Format("communicator '%s': %s cannot listen on '%s': %s", options.name.c_str(),
                                       options.Name(options.rank).c_str(), options.host.c_str(), std::strerror(errno)));
  }
  *text = std::string(host) + " " + port;
  return Status();
}

Status ReadAddress(const std::string& text, Address* address) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) return Status(EPL_INTERNAL, "a damaged address");
  Found found;
  Status status = Resolve(text.substr(0, space), text.substr(space + 1), AI_NUMERICHOST | AI_NUMERICSERV, &found);
  if (!status.ok()) return status;
  std::memcpy(&address->bytes, found.first->ai_addr, found.first->ai_addrlen);
  address->length = found.first->ai_addrlen;
  return Status();
}

short Attempt::events() const { return stage_ == Stage::kConnect ? POLLOUT : POLLIN; }

Attempt::State Attempt::Begin() {
  socket_ = Socket(socket(address_.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.valid()) return State::kFailed;
  stage_ = Stage::kConnect;
  if (connect(socket_.fd(), reinterpret_cast<const sockaddr*>(&address_.bytes), address_.length) == 0 ||
      errno == EINPROGRESS) {
    return State::kUnderWay;
  }
  return errno == ECONNREFUSED ? State::kRefused : State::kFailed;
}

// kDone: all of it is there.
Attempt::State Attempt::Read(void* to, size_t bytes) {
  while (received_ < bytes) {
    const ssize_t got = recv(socket_.fd(), static_cast<char*>(to) + received_, bytes - received_, 0);
    if (got <= 0) return got < 0 && Again() ? State::kUnderWay : State::kFailed;
    received_ += static_cast<size_t>(got);
  }
  received_ = 0;
  return State::kDone;
}

Attempt::State Attempt::Advance() {
  State state = State::kUnderWay;
  if (stage_ == Stage::kBegin) state = Begin();
  if (stage_ == Stage::kConnect && state == State::kUnderWay) {
    int error = 0;
    socklen_t length = sizeof(error);
    pollfd one = {socket_.fd(), POLLOUT, 0};
    if (poll(&one, 1, 0) <= 0) return State::kUnderWay;
    if (getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return State::kFailed;
    if (error != 0) return error == ECONNREFUSED ? State::kRefused : State::kFailed;
    Prepare(socket_.fd());
    stage_ = Stage::kNonce;
  }
  if (stage_ == Stage::kNonce) {
    state = Read(host_nonce_, sizeof(host_nonce_));
    if (state != State::kDone) return state;
    std::memcpy(hello_.magic, kHelloMagic, sizeof(kHelloMagic));
    hello_.rank = static_cast<uint32_t>(link_.from);
    hello_.channel = link_.channel;
    MakeNonce(hello_.nonce);
    const Digest proof = Prove(options_, "guest", link_, host_nonce_, hello_.nonce);
    std::memcpy(hello_.proof, proof.data(), proof.size());
    // The first bytes on a connection: it has room for them.
    if (send(socket_.fd(), &hello_, sizeof(hello_), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello_))) {
      return State::kFailed;
    }
    stage_ = Stage::kAnswer;
  }
  if (stage_ == Stage::kAnswer) {
    state = Read(answer_, sizeof(answer_));
    if (state != State::kDone) return state;
    return SameDigest(Prove(options_, "host", link_, host_nonce_, hello_.nonce), answer_) ? State::kDone
                                                                                          : State::kFailed;
  }
  return state;
}

Guest::Guest(Socket socket, Clock::time_point until) : socket_(std::move(socket)), until_(until) {
  Prepare(socket_.fd());
  MakeNonce(nonce_);
  // One that is gone already is noticed when it is heard.
  (void)!send(socket_.fd(), nonce_, kNonceBytes, MSG_NOSIGNAL);
}

Guest::State Guest::Hear(const Options& options) {
  char* to = reinterpret_cast<char*>(&hello_);
  const ssize_t got = recv(socket_.fd(), to + received_, sizeof(Hello) - received_, 0);
  if (got <= 0) return got < 0 && Again() ? State::kSilent : State::kBad;
  received_ += static_cast<size_t>(got);
  if (received_ < sizeof(Hello)) return State::kSilent;
  if (std::memcmp(hello_.magic, kHelloMagic, sizeof(kHelloMagic)) != 0 || hello_.channel >= kNumChannels ||
      hello_.rank >= static_cast<uint32_t>(options.size) || hello_.rank == static_cast<uint32_t>(options.rank)) {
    return State::kBad;
  }
  link_.from = static_cast<int>(hello_.rank);
  link_.to = options.rank;
  link_.channel = hello_.channel;
  const Digest proof = Prove(options, "guest", link_, nonce_, hello_.nonce);
  return SameDigest(proof, hello_.proof) ? State::kProved : State::kBad;
}

bool Guest::Answer(const Options& options) {
  const Digest answer = Prove(options, "host", link_, nonce_, hello_.nonce);
  return send(socket_.fd(), answer.data(), answer.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(answer.size());
}

}  // namespace epl
