// How ranks hear of each other's ends, also of those to which they have no connection.
//
// Every rank has a few links, to ranks at certain distances round the ring of all ranks (host_layout.h says which).
// What a rank says at its end goes over its links, and everybody who hears of it for the first time passes it on. A
// link that breaks without a word means that the rank at its other end is gone, and is passed on as well. So a word
// reaches all who live, in a number of hops that depends on the links a rank has, and never waits behind data.
//
// Any thread may call; a thread of the communicator (tcp_keeper.h) passes words on while its rank computes.
#ifndef EPL_COMM_TCP_WATCH_H_
#define EPL_COMM_TCP_WATCH_H_

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "communicator.h"
#include "status.h"
#include "tcp_handshake.h"

namespace epl {

// How one rank's part ended. Travels as it is: all ranks run the same build.
struct Ending {
  enum Kind : int32_t { kNothing = 0, kAbort = 1, kGoodbye = 2, kLost = 3 };
  int32_t kind = kNothing;
  int32_t rank = 0;
  int32_t by = 0;    // kLost: who noticed
  int32_t code = 0;  // kAbort: an epl_code
  char text[1000] = "";
};

class Watch {
 public:
  // `heard` is called when something new is known, from any thread and with no lock of the caller's to take.
  Watch(const Options& options, std::function<void()> heard);

  // A link to `rank`, which gets to know all that is known here.
  void Add(int rank, Socket socket);
  bool Has(int rank);

  // Tells everybody how this rank's part ends, once. Written before it returns, as far as the sockets have room. An
  // abort after another failure says nothing new: that is on its way to all.
  void Tell(Ending::Kind kind, int code, const std::string& text);

  // Reads what has come and passes it on.
  void Pump();
  // What a thread waits for that passes words on.
  void Await(std::vector<pollfd>* fds);
  // Until everybody on the other ends has read all of it and closed the links too, or the time is over.
  void Drain(int milliseconds);

  // The first failure that was heard of, if any: another rank's abort, or one that is gone.
  Status Failure();
  // Why the connection to `rank` broke; waits a while for word of that.
  Status Reason(int rank, int milliseconds);
  bool SaidGoodbye(int rank);

 private:
  struct Neighbour {
    int rank;
    Socket socket;
    std::string out;  // not yet written
    Ending in;        // being read
    size_t in_moved = 0;
  };

  void Read(Neighbour* from);
  void Write(Neighbour* to);
  void Learn(const Ending& ending, const Neighbour* from);
  Status Describe(const Ending& ending) const;

  const Options options_;
  const std::function<void()> heard_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Neighbour> links_;
  std::vector<Ending> known_;  // in the order of hearing; one a rank
  std::vector<bool> ended_;    // by rank
  int failure_ = -1;           // index in known_
  bool told_ = false;
  std::atomic<bool> any_{false};  // whether something is known
};

}  // namespace epl
#endif  // EPL_COMM_TCP_WATCH_H_
