#include "tcp_watch.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

namespace epl {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Watch::Watch(const Options& options, std::function<void()> heard)
    : options_(options), heard_(std::move(heard)), ended_(options.size, false) {}

void Watch::Add(int rank, Socket socket) {
  std::lock_guard<std::mutex> lock(mutex_);
  links_.emplace_back();
  Neighbour& link = links_.back();
  link.rank = rank;
  link.socket = std::move(socket);
  for (const Ending& ending : known_) link.out.append(reinterpret_cast<const char*>(&ending), sizeof(ending));
  Write(&link);
}

bool Watch::Has(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(links_.begin(), links_.end(), [rank](const Neighbour& link) { return link.rank == rank; });
}

void Watch::Tell(Ending::Kind kind, int code, const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (told_) return;
  told_ = true;
  if (kind == Ending::kAbort && failure_ >= 0) return;
  Ending ending;
  ending.kind = kind;
  ending.rank = options_.rank;
  ending.by = options_.rank;
  ending.code = code;
  std::snprintf(ending.text, sizeof(ending.text), "%s", text.c_str());
  Learn(ending, nullptr);
}

// Takes in what is new and passes it on to all but who said it.
void Watch::Learn(const Ending& ending, const Neighbour* from) {
  if (ended_[ending.rank]) return;
  ended_[ending.rank] = true;
  known_.push_back(ending);
  if (failure_ < 0 && ending.kind != Ending::kGoodbye && ending.rank != options_.rank) {
    failure_ = static_cast<int>(known_.size()) - 1;
  }
  any_.store(true, std::memory_order_release);
  for (Neighbour& link : links_) {
    if (&link == from || !link.socket.valid()) continue;
    link.out.append(reinterpret_cast<const char*>(&ending), sizeof(ending));
    Write(&link);
  }
  changed_.notify_all();
  heard_();
}

// Writes what the socket takes. One that is broken is noticed by reading.
void Watch::Write(Neighbour* to) {
  while (to->socket.valid() && !to->out.empty()) {
    const ssize_t sent = send(to->socket.fd(), to->out.data(), to->out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && !Again()) to->out.clear();
    if (sent < 0) return;
    to->out.erase(0, static_cast<size_t>(sent));
  }
}

void Watch::Read(Neighbour* from) {
  while (from->socket.valid()) {
    char* to = reinterpret_cast<char*>(&from->in) + from->in_moved;
    const ssize_t got = recv(from->socket.fd(), to, sizeof(Ending) - from->in_moved, MSG_DONTWAIT);
    if (got < 0 && Again()) return;
    if (got <= 0) {
      from->socket.Reset();
      Ending lost;
      lost.kind = Ending::kLost;
      lost.rank = from->rank;
      lost.by = options_.rank;
      lost.code = EPL_PEER_LOST;
      // After a failure ranks end without a word of their own.
      if (failure_ < 0) Learn(lost, from);
      return;
    }
    from->in_moved += static_cast<size_t>(got);
    if (from->in_moved < sizeof(Ending)) continue;
    from->in_moved = 0;
    Ending& ending = from->in;
    ending.text[sizeof(ending.text) - 1] = '\0';
    const auto rank_is_right = [&](int rank) { return rank >= 0 && rank < options_.size; };
    if (!rank_is_right(ending.rank) || !rank_is_right(ending.by) || ending.kind < Ending::kAbort ||
        ending.kind > Ending::kLost) {
      continue;
    }
    if (ending.code < EPL_OK || ending.code > EPL_INTERNAL) ending.code = EPL_INTERNAL;
    Learn(ending, from);
  }
}

void Watch::Pump() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Neighbour& link : links_) {
    Read(&link);
    Write(&link);
  }
}

void Watch::Await(std::vector<pollfd>* fds) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Neighbour& link : links_) {
    const short events = static_cast<short>(POLLIN | (link.out.empty() ? 0 : POLLOUT));
    if (link.socket.valid()) fds->push_back({link.socket.fd(), events, 0});
  }
}

void Watch::Drain(int milliseconds) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(milliseconds);
  for (;;) {
    Pump();
    std::vector<pollfd> fds;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (Neighbour& link : links_) {
        // The other end closes too when it has read all; a link that is closed with words unread may lose its own.
        if (link.socket.valid() && link.out.empty()) shutdown(link.socket.fd(), SHUT_WR);
      }
    }
    Await(&fds);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    if (fds.empty() || left <= 0) return;
    poll(fds.data(), fds.size(), static_cast<int>(left));
  }
}

Status Watch::Describe(const Ending& ending) const {
  const std::string name = options_.Name(ending.rank);
  if (ending.kind == Ending::kAbort && ending.code != EPL_OK) {
    return Status(ending.code, Format("%s: %s", name.c_str(), ending.text));
  }
  if (ending.kind == Ending::kGoodbye) {
    return Status(EPL_PEER_LOST, Format("%s has closed communicator '%s'", name.c_str(), options_.name.c_str()));
  }
  return Status(EPL_PEER_LOST, Format("%s has ended, or the network between it and %s is cut", name.c_str(),
                                      options_.Name(ending.by).c_str()));
}

Status Watch::Failure() {
  if (!any_.load(std::memory_order_acquire)) return Status();
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_ < 0 ? Status() : Describe(known_[failure_]);
}

Status Watch::Reason(int rank, int milliseconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return ended_[rank] || failure_ >= 0; });
  for (const Ending& ending : known_) {
    if (ending.rank == rank) return Describe(ending);
  }
  if (failure_ >= 0) return Describe(known_[failure_]);
  Ending lost;
  lost.kind = Ending::kLost;
  lost.rank = rank;
  lost.by = options_.rank;
  return Describe(lost);
}

bool Watch::SaidGoodbye(int rank) {
  if (!any_.load(std::memory_order_acquire)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(known_.begin(), known_.end(),
                     [rank](const Ending& ending) { return ending.rank == rank && ending.kind == Ending::kGoodbye; });
}

}  // namespace epl
