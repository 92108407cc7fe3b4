// Finds which ranks share a host, and makes a hierarchical communicator.
#ifndef EPL_COMM_HIERARCHICAL_JOIN_H_
#define EPL_COMM_HIERARCHICAL_JOIN_H_

#include <memory>
#include <string>
#include <vector>

#include "communicator.h"
#include "host_layout.h"
#include "rendezvous.h"

namespace epl {

// What every rank calls its host. `ranks_a_host` > 0 instead takes so many ranks in a row as a host, wherever they are.
Status FindHosts(const Options& options, int ranks_a_host, Rendezvous* rendezvous, HostLayout* layout);

// All ranks get a communicator or an error. Where the ranks of some host cannot share memory, that is an error if
// `always`, and else rank 0 says so on stderr and everything is flat.
Status CreateHierarchicalCommunicator(const Options& options, const HostLayout& layout, bool always,
                                      Rendezvous* rendezvous, std::unique_ptr<Communicator>* result);

}  // namespace epl
#endif  // EPL_COMM_HIERARCHICAL_JOIN_H_
