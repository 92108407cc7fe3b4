// Which ranks share a host, and the making of a hierarchical communicator.
#ifndef EPL_COMM_HIERARCHICAL_JOIN_H_
#define EPL_COMM_HIERARCHICAL_JOIN_H_

#include <memory>
#include <string>
#include <vector>

#include "communicator.h"
#include "rendezvous.h"

namespace epl {

struct HostLayout {
  std::vector<std::vector<int>> ranks;  // by host, in the order of their first ranks; ascending within a host
  int stripes = 1;                      // the ranks that every host has at least
  int size() const { return static_cast<int>(ranks.size()); }
  bool OneRankEach() const;
};

// Ranks with the same text are on one host.
HostLayout LayoutOf(const std::vector<std::string>& hosts);

// What every rank calls its host. `ranks_a_host` > 0 instead takes so many ranks in a row as a host, wherever they are.
Status FindHosts(const Options& options, int ranks_a_host, Rendezvous* rendezvous, HostLayout* layout);

// All ranks get a communicator or an error. Where the ranks of some host cannot share memory, that is an error if
// `always`, and else rank 0 says so on stderr and everything is flat.
Status CreateHierarchicalCommunicator(const Options& options, const HostLayout& layout, bool always,
                                      Rendezvous* rendezvous, std::unique_ptr<Communicator>* result);

}  // namespace epl
#endif  // EPL_COMM_HIERARCHICAL_JOIN_H_
