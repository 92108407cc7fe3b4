// Which connections there are: counted for thousands of ranks, and as open sockets of a few; and that ranks without a
// connection between them hear of each other's ends all the same.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "harness.h"
#include "host_layout.h"

namespace {

using test::Contains;
using test::Now;
using test::Outcome;
using test::Rank;

epl::HostLayout Hosts(const std::vector<int>& ranks_of_hosts) {
  std::vector<std::string> hosts;
  for (size_t host = 0; host < ranks_of_hosts.size(); ++host) {
    hosts.insert(hosts.end(), static_cast<size_t>(ranks_of_hosts[host]), std::to_string(host));
  }
  return epl::LayoutOf(hosts);
}

int NumRanks(const epl::HostLayout& layout) {
  int size = 0;
  for (const std::vector<int>& host : layout.ranks) size += static_cast<int>(host.size());
  return size;
}

// With whom the collectives over hosts exchange data.
std::set<int> Partners(const epl::HostLayout& layout, int rank) {
  const int host = layout.HostOf(rank), place = layout.PlaceOf(rank);
  std::set<int> found;
  const auto add = [&](const std::vector<int>& ranks) { found.insert(ranks.begin(), ranks.end()); };
  if (place < layout.stripes) add(layout.Counterparts(host, place));
  add(layout.Carried(host, place));
  add(layout.Carriers(host, place));
  found.erase(rank);
  return found;
}

std::vector<int> StridesOf(const epl::HostLayout& layout) {
  const int size = NumRanks(layout);
  return epl::Strides(size, layout.OneRankEach() ? 1 : epl::NumStrides(size, layout.stripes));
}

// All sockets of a rank that has done every collective over hosts; the one that listens is closed when all are there.
int NumSockets(const epl::HostLayout& layout, int rank) {
  const int size = NumRanks(layout), partners = static_cast<int>(Partners(layout, rank).size());
  const int links = static_cast<int>(epl::Neighbours(rank, size, StridesOf(layout)).size());
  return partners + links + (partners == size - 1 ? 0 : 1);
}

// In how many hops a word of rank 0 has come to everybody.
int NumHops(int size, const std::vector<int>& strides) {
  std::vector<bool> heard(size, false);
  std::vector<int> front = {0};
  heard[0] = true;
  int hops = -1;
  for (; !front.empty(); ++hops) {
    std::vector<int> next;
    for (const int rank : front) {
      for (const int other : epl::Neighbours(rank, size, strides)) {
        if (!heard[other]) next.push_back(other);
        heard[other] = true;
      }
    }
    front = next;
  }
  CHECK_THAT(std::find(heard.begin(), heard.end(), false) == heard.end(), "some hear nothing");
  return hops;
}

TEST(connections_of_4096_ranks) {
  struct Case {
    int hosts, ranks_a_host, hops;
  };
  for (const Case& one : {Case{64, 64, 6}, Case{512, 8, 14}, Case{32, 128, 6}, Case{2, 2048, 6}, Case{1024, 4, 64},
                          Case{4096, 1, 2048}}) {
    const std::string what = std::to_string(one.hosts) + " hosts";
    const epl::HostLayout layout = Hosts(std::vector<int>(one.hosts, one.ranks_a_host));
    CHECK_THAT(layout.size() == one.hosts && layout.stripes == one.ranks_a_host, what);
    const std::vector<int> strides = StridesOf(layout);
    for (int rank = 0; rank < 4096; rank += rank < 64 ? 1 : 63) {
      CHECK_THAT(layout.HostOf(rank) == rank / one.ranks_a_host && layout.PlaceOf(rank) == rank % one.ranks_a_host,
                 what);
      const std::set<int> partners = Partners(layout, rank);
      const std::vector<int> links = epl::Neighbours(rank, 4096, strides);
      // The socket that listens is closed when all are there.
      const size_t sockets = partners.size() + links.size() + (partners.size() == 4095 ? 0 : 1);
      CHECK_THAT(sockets <= static_cast<size_t>(one.ranks_a_host + one.hosts), what + ": " + std::to_string(sockets));
      // Both ends of a connection know of it.
      const int other = *partners.rbegin();
      CHECK_THAT(Partners(layout, other).count(rank) == 1, what);
      const std::vector<int> theirs = epl::Neighbours(links.back(), 4096, strides);
      CHECK_THAT(std::binary_search(theirs.begin(), theirs.end(), rank), what);
      if (test::AnyFailed()) return;
    }
    const int hops = NumHops(4096, strides);
    CHECK_THAT(hops <= one.hops, what + ": " + std::to_string(hops) + " hops");
  }
}

TEST(connections_of_hosts_with_different_numbers_of_ranks) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{3, 2, 2}, std::vector<int>{1, 4}, std::vector<int>{5, 1, 3}, std::vector<int>{2, 1}}) {
    const epl::HostLayout layout = Hosts(hosts);
    for (int rank = 0; rank < NumRanks(layout); ++rank) {
      std::set<int> brought;  // to this host, by any of its ranks
      const std::vector<int>& here = layout.ranks[layout.HostOf(rank)];
      for (size_t place = 0; place < here.size(); ++place) {
        for (const int from : layout.Carried(layout.HostOf(rank), static_cast<int>(place))) {
          CHECK_THAT(brought.insert(from).second, "brought twice");
          const std::vector<int> to = layout.Carriers(layout.HostOf(from), layout.PlaceOf(from));
          CHECK_THAT(from == here[place] || std::find(to.begin(), to.end(), here[place]) != to.end(), "not sent");
        }
      }
      CHECK_THAT(static_cast<int>(brought.size()) == NumRanks(layout), "not all is brought");
      for (const int other : Partners(layout, rank)) CHECK_THAT(Partners(layout, other).count(rank) == 1, "one-sided");
    }
  }
}

int CountSockets() {
  int sockets = 0;
  if (DIR* folder = opendir("/proc/self/fd")) {
    while (const dirent* entry = readdir(folder)) {
      char target[64] = "";
      const std::string path = std::string("/proc/self/fd/") + entry->d_name;
      if (readlink(path.c_str(), target, sizeof(target) - 1) > 0) sockets += Contains(target, "socket:");
    }
    closedir(folder);
  }
  return sockets;
}

// The same once it is `expected`, or a while has gone by: of two connections that begin at once, one is closed.
int CountOnce(int expected) {
  const double give_up = Now() + 10;
  int sockets;
  while ((sockets = CountSockets()) != expected && Now() < give_up) usleep(2000);
  return sockets;
}

struct Buffer : test::Ones {
  using Ones::Ones;
  epl_request Request(const char* name, epl_collective collective, int peer = 0) {
    epl_request request = test::MakeRequest(name, collective, EPL_FLOAT32, &segment, 1);
    request.peer = peer;
    return request;
  }
};

// Runs every collective over hosts, with little and with much data.
void RunAll(const Rank& me) {
  for (const size_t count : {size_t{100}, size_t{300000}}) {
    Buffer sum(count), cast(count);
    Outcome outcome = me.Run(sum.Request("sum", EPL_ALL_REDUCE));
    CHECK_THAT(outcome.code == EPL_OK && sum.data.back() == static_cast<float>(me.size), outcome.message);
    outcome = me.Run(cast.Request("cast", EPL_BROADCAST, me.size - 1));
    CHECK_THAT(outcome.code == EPL_OK, outcome.message);
    std::vector<float> all(count * static_cast<size_t>(me.size));
    Buffer one(count);
    one.segment.out = all.data();
    outcome = me.Run(one.Request("all", EPL_ALL_GATHER));
    CHECK_THAT(outcome.code == EPL_OK && all.back() == 1.0f, outcome.message);
  }
  const Outcome outcome = me.Run(test::MakeRequest("all here", EPL_BARRIER, EPL_UINT8, nullptr, 0));
  CHECK_THAT(outcome.code == EPL_OK, outcome.message);
}

// Connections that begin at both ends at once are one in the end, so numbers are exact.
TEST(connections_are_made_when_they_are_needed) {
  test::Run(6, "hierarchical/2", [](Rank& me) {
    const epl::HostLayout layout = Hosts({2, 2, 2});
    const int expected = NumSockets(layout, me.rank);
    CHECK_THAT(expected == 2 + 3, "as many as the ranks of a host and the hosts");
    RunAll(me);
    CHECK_THAT(CountOnce(expected) == expected, std::to_string(CountSockets()) + " sockets");
    CHECK_THAT(me.Run(test::MakeRequest("counted", EPL_BARRIER, EPL_UINT8, nullptr, 0)).code == EPL_OK, "counted");
    // A message between two that no collective connects.
    Buffer buffer(10);
    if (me.rank == 1) CHECK_THAT(me.Run(buffer.Request("message", EPL_SEND, 4)).code == EPL_OK, "send");
    if (me.rank == 4) CHECK_THAT(me.Run(buffer.Request("message", EPL_RECV, 1)).code == EPL_OK, "receive");
    const int one = me.rank == 1 || me.rank == 4;
    CHECK_THAT(CountOnce(expected + one) == expected + one, std::to_string(CountSockets()) + " sockets at last");
    CHECK_THAT(me.Run(buffer.Request("end", EPL_ALL_REDUCE)).code == EPL_OK, "end");
  });
  test::Run(4, "tcp", [](Rank& me) {
    RunAll(me);
    CHECK_THAT(CountOnce(4 + 1) == 4 + 1, std::to_string(CountSockets()) + " sockets");
    CHECK_THAT(me.Run(test::MakeRequest("counted", EPL_BARRIER, EPL_UINT8, nullptr, 0)).code == EPL_OK, "counted");
  });
}

// Rank 0 waits for rank 1, which is busy elsewhere. Nobody has a connection to the rank that ends.
TEST(strangers_hear_of_an_end) {
  for (const std::string backend : {"tcp", "hierarchical/2"}) {
    for (const bool killed : {true, false}) {
      if (!killed && backend == "tcp") continue;
      const test::Ranks ranks = test::Start(8, backend, 20.0, true, [&](Rank& me) {
        Buffer buffer(10);
        if (me.rank == 5) {
          usleep(200000);
          if (killed) raise(SIGKILL);
          epl_comm_abort(me.comm, "worker met OutOfRangeError");
          return;
        }
        if (me.rank % 2 == 1) return (void)usleep(1800000);
        const double start = Now();
        const Outcome outcome = me.Run(buffer.Request("message", EPL_RECV, me.rank + 1));
        if (me.rank == 4) return;
        CHECK_THAT(outcome.code == (killed ? EPL_PEER_LOST : EPL_ABORTED), std::to_string(outcome.code));
        CHECK_THAT(Contains(outcome.message, killed ? "rank 5 has ended" : "rank 5: worker met OutOfRangeError"),
                   outcome.message);
        CHECK_THAT(Now() - start < 1.5, std::to_string(Now() - start));
      });
      test::Finish(ranks, 20.0, {5});
    }
  }
}

// A rank that begins to send, or waits for word, when the other is gone already.
TEST(first_contact_with_a_rank_that_is_gone) {
  for (const bool send : {true, false}) {
    const test::Ranks ranks = test::Start(4, "tcp", 20.0, true, [&](Rank& me) {
      Buffer buffer(10);
      if (me.rank == 3) raise(SIGKILL);
      usleep(300000);
      const double start = Now();
      const Outcome outcome = me.Run(buffer.Request("message", send ? EPL_SEND : EPL_RECV, 3));
      CHECK_THAT(outcome.code == EPL_PEER_LOST && Contains(outcome.message, "rank 3 has ended"), outcome.message);
      CHECK_THAT(Now() - start < 1.5, std::to_string(Now() - start));
    });
    test::Finish(ranks, 20.0, {3});
  }
}

TEST(small_message_outlives_its_sender) {
  test::Run(3, "tcp", [](Rank& me) {
    Buffer buffer(10);
    if (me.rank == 1) return (void)usleep(500000);
    if (me.rank == 0) {
      CHECK_THAT(me.Run(buffer.Request("message", EPL_SEND, 2)).code == EPL_OK, "send");
      return;
    }
    usleep(300000);
    const Outcome outcome = me.Run(buffer.Request("message", EPL_RECV, 0));
    CHECK_THAT(outcome.code == EPL_OK, outcome.message);
    const Outcome later = me.Run(buffer.Request("another", EPL_RECV, 0));
    CHECK_THAT(later.code == EPL_PEER_LOST && Contains(later.message, "rank 0 has closed"), later.message);
  });
}

}  // namespace
