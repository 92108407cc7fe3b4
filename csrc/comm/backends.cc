#include "backends.h"

#include <cstdio>

#include "shm_communicator.h"

namespace epl {

#ifndef EPL_WITH_GLOO
bool HasGloo() { return false; }

Status CreateGlooCommunicator(const Options& options, Rendezvous*, std::unique_ptr<Communicator>*) {
  return Status(EPL_INVALID,
                Format("communicator '%s': this build has no Gloo back end, which ranks on several hosts need; install "
                       "Gloo's headers (Debian and Ubuntu: apt-get install libgloo-dev) and build this library again",
                       options.name.c_str()));
}
#endif

Status CreateCommunicator(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  if (options.backend == "gloo") return CreateGlooCommunicator(options, rendezvous, result);
  if (options.backend != "shm" && options.backend != "auto") {
    return Status(EPL_INVALID, Format("communicator '%s': backend is '%s', expected auto, shm or gloo",
                                      options.name.c_str(), options.backend.c_str()));
  }
  Status status = ShmCommunicator::Create(options, rendezvous, result);
  if (status.ok() || options.backend == "shm" || status.code == EPL_TIMEOUT) return status;
  // Every rank has come to the same verdict, so every rank goes on with Gloo.
  const Status gloo = CreateGlooCommunicator(options, rendezvous, result);
  if (!gloo.ok()) return Status(gloo.code, gloo.message + " (" + status.message + ")");
  if (options.rank == 0) {
    std::fprintf(stderr, "epl: communicator '%s' uses Gloo: %s\n", options.name.c_str(), status.message.c_str());
  }
  return Status();
}

}  // namespace epl
