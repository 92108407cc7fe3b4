// Makes and accepts connections to other ranks, on a thread of its own, so that it makes no difference what the ranks
// are doing.
//
// A connection is made when the first of its ends needs it, and serves both directions. When both begin at once, the
// one of the lower rank stays. What does not prove the token (tcp_handshake.h) is closed without an answer; a guest
// that is slow or one too many is closed as well, and honest ones come again. The listening socket is closed when every
// rank is there.
//
// The links of the watch (tcp_watch.h) are made at the beginning; that is when ranks learn whether they can reach each
// other at all.
#ifndef EPL_COMM_TCP_KEEPER_H_
#define EPL_COMM_TCP_KEEPER_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "communicator.h"
#include "rendezvous.h"
#include "status.h"
#include "tcp_handshake.h"
#include "tcp_watch.h"

namespace epl {

class TcpKeeper {
 public:
  struct Arrival {
    int rank;
    int fd;  // the keeper's, open as long as it lives; -1: nothing listens there any more
  };

  // `strides`: see host_layout.h. `changed` is called from any thread when there are arrivals or news of an end.
  static Status Create(const Options& options, const std::vector<int>& strides, Rendezvous* rendezvous,
                       std::function<void()> changed, std::unique_ptr<TcpKeeper>* result);
  ~TcpKeeper();

  // A connection to `rank` is needed; it will be among the arrivals.
  void Want(int rank);
  bool has_arrivals() const { return has_arrivals_.load(std::memory_order_acquire); }
  std::vector<Arrival> TakeArrivals();

  // Tells all ranks how this one's part ends, and that nothing more will come from it; once. Any thread.
  void End(Ending::Kind kind, int code, const std::string& text);
  Watch* watch() { return &watch_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<int, uint32_t>;  // rank, channel
  struct Pending {
    std::unique_ptr<Attempt> attempt;  // NULL: the next one begins at `begin`
    Clock::time_point begin;
    std::chrono::milliseconds pause;
  };

  TcpKeeper(const Options& options, const std::vector<int>& strides, std::function<void()> changed);
  Status Join(Rendezvous* rendezvous);
  Status AwaitLinks(Clock::time_point deadline, double timeout_s);
  std::vector<int> MissingLinks();
  void Wake();
  void Loop();
  void BeginWanted();
  void Sleep();
  void Advance();
  void Settle(const Key& key, Attempt::State state);
  void Welcome();
  void Hear();
  void AdmitToWatch(Guest* guest);
  void AdmitForData(Guest* guest);
  void Attach(int rank, Socket socket);
  void Arrive(int rank, int fd);
  bool EverybodyIsHere();

  const Options options_;
  const std::vector<int> neighbours_;
  const std::function<void()> changed_;
  Watch watch_;
  Socket wake_;  // an eventfd for the thread
  Socket listener_;
  std::vector<std::string> addresses_;

  // Of the thread alone:
  std::map<Key, Pending> pending_;
  std::list<Guest> guests_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable joined_;
  std::vector<int> wanted_;
  std::vector<bool> asked_;  // by rank: whether this end has begun a connection
  std::vector<Socket> data_;
  std::vector<Arrival> arrivals_;
  Ending::Kind ended_ = Ending::kNothing;
  bool stopping_ = false;
  std::atomic<bool> has_arrivals_{false};
  std::thread thread_;
};

}  // namespace epl
#endif  // EPL_COMM_TCP_KEEPER_H_
