// The making of a communicator for GPUs.
#ifndef EPL_COMM_NCCL_JOIN_H_
#define EPL_COMM_NCCL_JOIN_H_

#include <memory>

#include "communicator.h"
#include "rendezvous.h"

namespace epl {

// `host` connects the same ranks. All ranks get a communicator for GPUs or, where some rank cannot have one, an error
// if `always`, and else `host` itself, of which rank 0 says so on stderr.
Status CreateNcclCommunicator(const Options& options, std::unique_ptr<Communicator> host, bool always,
                              Rendezvous* rendezvous, std::unique_ptr<Communicator>* result);

}  // namespace epl
#endif  // EPL_COMM_NCCL_JOIN_H_
