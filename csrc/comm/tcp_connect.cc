#include "tcp_connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <random>

#include "sha256.h"

namespace epl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kNumChannels = 2;
constexpr char kMagic[8] = {'E', 'P', 'L', 't', 'c', 'p', '0', '1'};
constexpr size_t kNonceBytes = 32;
constexpr size_t kMaxGuests = 64;  // besides the ranks that are expected
constexpr std::chrono::seconds kGuestPatience(5);

struct Hello {
  char magic[8];
  uint32_t rank;
  uint32_t channel;
  char nonce[kNonceBytes];
  uint8_t proof[32];
};
static_assert(sizeof(Hello) == 80, "what is read before a proof has a fixed size");

struct Link {
  int from, to;  // `from` connects
  uint32_t channel;
};

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

int MillisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(left, 1000)));
}

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

Status Resolve(const std::string& host, const std::string& port, Addresses* addresses) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &addresses->first);
  if (error == 0) return Status();
  return Status(EPL_INTERNAL, Format("address '%s' is unknown: %s", host.c_str(), gai_strerror(error)));
}

// Listens at a free port; `address` becomes "ip port".
Status Listen(const Options& options, Socket* listener, std::string* address) {
  Addresses addresses;
  Status status = Resolve(options.host, "0", &addresses);
  if (!status.ok()) return status;
  *listener = Socket(socket(addresses.first->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (!listener->valid() || bind(listener->fd(), addresses.first->ai_addr, addresses.first->ai_addrlen) != 0 ||
      listen(listener->fd(), static_cast<int>(kMaxGuests + kNumChannels * options.size)) != 0 ||
      getsockname(listener->fd(), reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return Status(EPL_INTERNAL, Format("communicator '%s': %s cannot listen on '%s': %s", options.name.c_str(),
                                       options.Name(options.rank).c_str(), options.host.c_str(), std::strerror(errno)));
  }
  *address = std::string(host) + " " + port;
  return Status();
}

// Every rank publishes its address, signed with the token.
Status ShareAddresses(const Options& options, Rendezvous* rendezvous, const std::string& mine,
                      std::vector<std::string>* all) {
  const auto sign = [&](int rank, const std::string& text) {
    return HmacSha256(options.token, Format("tcp %s %d\n", options.name.c_str(), rank) + text);
  };
  const Digest proof = sign(options.rank, mine);
  Status status = rendezvous->AllGather("tcp", std::string(proof.begin(), proof.end()) + mine, all);
  for (int rank = 0; rank < options.size && status.ok(); ++rank) {
    std::string& card = (*all)[rank];
    const std::string body = card.size() < 32 ? "" : card.substr(32);
    if (body.empty() || !SameDigest(sign(rank, body), reinterpret_cast<const uint8_t*>(card.data()))) {
      status = Status(EPL_INTERNAL, Format("communicator '%s': %s did not prove the job's token", options.name.c_str(),
                                           options.Name(rank).c_str()));
    }
    card = body;
  }
  return status;
}

// Moves `bytes` bytes, waiting as long as the deadline allows.
bool Move(int fd, bool send_it, void* data, size_t bytes, Clock::time_point deadline) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t moved = send_it ? send(fd, at, bytes, MSG_NOSIGNAL) : recv(fd, at, bytes, 0);
    if (moved > 0) {
      at += moved;
      bytes -= static_cast<size_t>(moved);
      continue;
    }
    if (moved == 0 || (errno != EAGAIN && errno != EINTR) || Clock::now() >= deadline) return false;
    pollfd one = {fd, static_cast<short>(send_it ? POLLOUT : POLLIN), 0};
    poll(&one, 1, MillisecondsUntil(deadline));
  }
  return true;
}

// One attempt to connect and to prove the token, both ways.
bool Visit(const Options& options, const addrinfo& address, const Link& link, Clock::time_point deadline,
           Socket* result) {
  Socket made(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.valid()) return false;
  if (connect(made.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return false;
    int error = ETIMEDOUT;
    socklen_t length = sizeof(error);
    pollfd one = {made.fd(), POLLOUT, 0};
    while (poll(&one, 1, MillisecondsUntil(deadline)) == 0 && Clock::now() < deadline) continue;
    if ((one.revents & (POLLOUT | POLLERR | POLLHUP)) == 0) return false;
    if (getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) return false;
  }
  Prepare(made.fd());
  char host_nonce[kNonceBytes];
  Digest answer;
  Hello hello;
  std::memcpy(hello.magic, kMagic, sizeof(kMagic));
  hello.rank = static_cast<uint32_t>(link.from);
  hello.channel = link.channel;
  MakeNonce(hello.nonce);
  const Clock::time_point patience = std::min(deadline, Clock::now() + kGuestPatience);
  if (!Move(made.fd(), false, host_nonce, sizeof(host_nonce), patience)) return false;
  const Digest proof = Prove(options, "guest", link, host_nonce, hello.nonce);
  std::memcpy(hello.proof, proof.data(), proof.size());
  if (!Move(made.fd(), true, &hello, sizeof(hello), patience)) return false;
  if (!Move(made.fd(), false, answer.data(), answer.size(), patience)) return false;
  if (!SameDigest(Prove(options, "host", link, host_nonce, hello.nonce), answer.data())) return false;
  *result = std::move(made);
  return true;
}

Status ConnectTo(const Options& options, int rank, const std::string& address, Clock::time_point deadline,
                 TcpChannels* channels) {
  const size_t space = address.find(' ');
  Addresses addresses;
  Status status = space == std::string::npos
                      ? Status(EPL_INTERNAL, Format("%s sent a damaged address", options.Name(rank).c_str()))
                      : Resolve(address.substr(0, space), address.substr(space + 1), &addresses);
  for (uint32_t channel = 0; channel < kNumChannels && status.ok(); ++channel) {
    const Link link = {options.rank, rank, channel};
    while (!Visit(options, *addresses.first, link, deadline, &channels->at(channel))) {
      if (Clock::now() >= deadline) {
        return Status(
            EPL_TIMEOUT,
            Format("communicator '%s': %s cannot connect to %s at %s within %g s: see the network between them",
                   options.name.c_str(), options.Name(options.rank).c_str(), options.Name(rank).c_str(),
                   address.c_str(), options.timeout_s));
      }
      usleep(10000);
    }
  }
  return status;
}

struct Guest {
  Socket socket;
  Clock::time_point until;
  char nonce[kNonceBytes];
  Hello hello;
  size_t received = 0;
};

// The ranks above this one connect to it.
class Host {
 public:
  Host(const Options& options, int listener, std::vector<TcpChannels>* channels)
      : options_(options), listener_(listener), channels_(channels) {}

  Status AcceptAll(Clock::time_point deadline) {
    std::vector<int> missing;
    while (!(missing = Missing()).empty()) {
      if (Clock::now() >= deadline) {
        return Status(EPL_TIMEOUT,
                      Format("communicator '%s': %s did not connect to %s at %s within %g s", options_.name.c_str(),
                             options_.Names(missing).c_str(), options_.Name(options_.rank).c_str(),
                             options_.host.c_str(), options_.timeout_s));
      }
      std::vector<pollfd> fds(1, pollfd{listener_, POLLIN, 0});
      for (const Guest& guest : guests_) fds.push_back({guest.socket.fd(), POLLIN, 0});
      poll(fds.data(), fds.size(), std::min(200, MillisecondsUntil(deadline)));
      size_t i = 1;
      for (auto guest = guests_.begin(); guest != guests_.end(); ++i) {
        const bool stays = fds[i].revents == 0 ? Clock::now() < guest->until : Hear(&*guest);
        guest = stays ? std::next(guest) : guests_.erase(guest);
      }
      if (fds[0].revents != 0) Welcome();
    }
    return Status();
  }

 private:
  std::vector<int> Missing() const {
    std::vector<int> ranks;
    for (int rank = options_.rank + 1; rank < options_.size; ++rank) {
      if ((*channels_)[rank].data.valid() && (*channels_)[rank].control.valid()) continue;
      ranks.push_back(rank);
    }
    return ranks;
  }

  void Welcome() {
    Guest guest;
    guest.socket = Socket(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!guest.socket.valid()) return;
    Prepare(guest.socket.fd());
    guest.until = Clock::now() + kGuestPatience;
    MakeNonce(guest.nonce);
    if (send(guest.socket.fd(), guest.nonce, kNonceBytes, MSG_NOSIGNAL) != static_cast<ssize_t>(kNonceBytes)) return;
    if (guests_.size() >= kMaxGuests + kNumChannels * static_cast<size_t>(options_.size)) guests_.pop_front();
    guests_.push_back(std::move(guest));
  }

  // Whether the guest has to be heard further.
  bool Hear(Guest* guest) {
    char* to = reinterpret_cast<char*>(&guest->hello);
    const ssize_t got = recv(guest->socket.fd(), to + guest->received, sizeof(Hello) - guest->received, 0);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    guest->received += static_cast<size_t>(got);
    if (guest->received < sizeof(Hello)) return Clock::now() < guest->until;
    const Hello& hello = guest->hello;
    if (std::memcmp(hello.magic, kMagic, sizeof(kMagic)) != 0 || hello.channel >= kNumChannels ||
        hello.rank <= static_cast<uint32_t>(options_.rank) || hello.rank >= static_cast<uint32_t>(options_.size)) {
      return false;
    }
    const Link link = {static_cast<int>(hello.rank), options_.rank, hello.channel};
    if (!SameDigest(Prove(options_, "guest", link, guest->nonce, hello.nonce), hello.proof)) return false;
    const Digest answer = Prove(options_, "host", link, guest->nonce, hello.nonce);
    // A second one of the same rank and channel takes the place of the first, which its rank has given up.
    if (send(guest->socket.fd(), answer.data(), answer.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(answer.size())) {
      (*channels_)[hello.rank].at(hello.channel) = std::move(guest->socket);
    }
    return false;
  }

  const Options& options_;
  const int listener_;
  std::vector<TcpChannels>* const channels_;
  std::list<Guest> guests_;
};

}  // namespace

void Socket::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Status TcpConnect(const Options& options, Rendezvous* rendezvous, std::vector<TcpChannels>* channels) {
  channels->resize(options.size);
  Socket listener;
  std::string address;
  Status status = Listen(options, &listener, &address);
  std::vector<std::string> addresses;
  // Who cannot listen has nothing to say, and the others see that.
  if (status.ok()) status = ShareAddresses(options, rendezvous, address, &addresses);
  if (!status.ok()) return status;
  const Clock::time_point deadline =
      Clock::now() + std::chrono::microseconds(static_cast<int64_t>(std::min(rendezvous->TimeLeft(), 1e9) * 1e6));
  // Rank 0 only accepts, rank 1 connects to it and then accepts, and so on: nobody waits in a circle.
  for (int rank = 0; rank < options.rank && status.ok(); ++rank) {
    status = ConnectTo(options, rank, addresses[rank], deadline, &(*channels)[rank]);
  }
  if (status.ok()) status = Host(options, listener.fd(), channels).AcceptAll(deadline);
  return status;
}

}  // namespace epl
