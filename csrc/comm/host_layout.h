// Which ranks share a host, and which ranks therefore need connections to each other. Pure functions.
#ifndef EPL_COMM_HOST_LAYOUT_H_
#define EPL_COMM_HOST_LAYOUT_H_

#include <string>
#include <vector>

namespace epl {

struct HostLayout {
  std::vector<std::vector<int>> ranks;  // by host, in the order of their first ranks; ascending within a host
  int stripes = 1;                      // the ranks that every host has at least
  int size() const { return static_cast<int>(ranks.size()); }
  bool OneRankEach() const;

  int HostOf(int rank) const;
  int PlaceOf(int rank) const;  // within its host

  // The ranks of the other hosts with this place, from the next host on; `place` < stripes. They exchange heads, small
  // data and stripes with the one at `place` of `host`.
  std::vector<int> Counterparts(int host, int place) const;
  // Whose data the rank at `place` of `host` brings to its host in an all-gather, its own first: every rank's data
  // goes to one rank of each other host.
  std::vector<int> Carried(int host, int place) const;
  // Those ranks of the other hosts, from the next host on, for the data of the rank at `place`.
  std::vector<int> Carriers(int host, int place) const;
};

// Ranks with the same text are on one host.
HostLayout LayoutOf(const std::vector<std::string>& hosts);

// The ranks with which `rank` has links for news of ranks' ends, out of `size` ranks with the distances of `strides`
// between them; ascending. Who is in the list of a rank has that rank in its own.
std::vector<int> Neighbours(int rank, int size, const std::vector<int>& strides);

// Distances for `Neighbours` such that a rank has at most 2 * count links and a word comes round in about
// count * size^(1 / count) / 2 hops. The first is 1, so that all are connected.
std::vector<int> Strides(int size, int count);

// How many distances leave a rank with at most as many sockets as its host has ranks and there are hosts, where each
// host has `ranks_a_host` or more: one socket to each other host, one that listens, and the links.
int NumStrides(int size, int ranks_a_host);

}  // namespace epl
#endif  // EPL_COMM_HOST_LAYOUT_H_
