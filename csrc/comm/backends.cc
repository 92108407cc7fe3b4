#include "backends.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "hierarchical_join.h"
#include "nccl_join.h"
#include "shm_communicator.h"

namespace epl {

#ifndef EPL_WITH_GLOO
bool HasGloo() { return false; }

Status CreateGlooCommunicator(const Options& options, Rendezvous*, std::unique_ptr<Communicator>*) {
  return Status(
      EPL_INVALID,
      Format("communicator '%s': this build has no Gloo back end; take \"tcp\", or install Gloo's headers (Debian "
             "and Ubuntu: apt-get install libgloo-dev) and build this library again",
             options.name.c_str()));
}
#endif

namespace {

// "auto", "flat" and "hierarchical", with a number of ranks a host for tests ("hierarchical/2").
bool ReadKind(const std::string& backend, std::string* kind, int* ranks_a_host) {
  const size_t slash = backend.find('/');
  *kind = backend.substr(0, slash);
  *ranks_a_host = 0;
  if (*kind != "auto" && *kind != "flat" && *kind != "hierarchical") return false;
  if (slash == std::string::npos) return true;
  char* end = nullptr;
  const char* text = backend.c_str() + slash + 1;
  const long number = std::strtol(text, &end, 10);
  *ranks_a_host = static_cast<int>(number);
  return end != text && *end == '\0' && number > 0 && number < 1 << 20;
}

Status CreateOnOneHost(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  Status status = ShmCommunicator::Create(options, rendezvous, result);
  if (status.ok() || status.code == EPL_TIMEOUT) return status;
  // Every rank has come to the same verdict, so every rank goes on with TCP.
  const Status tcp = CreateTcpCommunicator(options, rendezvous, result);
  if (!tcp.ok()) return Status(tcp.code, tcp.message + " (" + status.message + ")");
  if (options.rank == 0) {
    std::fprintf(stderr, "epl: communicator '%s' uses TCP: %s\n", options.name.c_str(), status.message.c_str());
  }
  return Status();
}

// "nccl" and "gpu", alone or with a back end for host memory behind a slash.
bool ReadGpuKind(const std::string& backend, std::string* kind, std::string* host_backend) {
  const size_t slash = backend.find('/');
  *kind = backend.substr(0, slash);
  *host_backend = slash == std::string::npos ? "auto" : backend.substr(slash + 1);
  return *kind == "nccl" || *kind == "gpu";
}

Status CreateForGpus(const Options& options, const std::string& kind, const std::string& host_backend,
                     Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  Options on_host = options;
  on_host.backend = host_backend;
  std::unique_ptr<Communicator> host;
  Status status = CreateCommunicator(on_host, rendezvous, &host);
  if (!status.ok()) return status;
  return CreateNcclCommunicator(options, std::move(host), kind == "nccl", rendezvous, result);
}

}  // namespace

Status CreateCommunicator(const Options& options, Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  std::string gpu_kind, host_backend;
  if (ReadGpuKind(options.backend, &gpu_kind, &host_backend)) {
    return CreateForGpus(options, gpu_kind, host_backend, rendezvous, result);
  }
  if (options.backend == "tcp") return CreateTcpCommunicator(options, rendezvous, result);
  if (options.backend == "gloo") return CreateGlooCommunicator(options, rendezvous, result);
  if (options.backend == "shm") return ShmCommunicator::Create(options, rendezvous, result);
  std::string kind;
  int ranks_a_host = 0;
  if (!ReadKind(options.backend, &kind, &ranks_a_host)) {
    return Status(
        EPL_INVALID,
        Format("communicator '%s': backend is '%s', expected auto, shm, tcp, gloo, nccl or gpu, or auto's variants "
               "flat and hierarchical",
               options.name.c_str(), options.backend.c_str()));
  }
  HostLayout layout;
  Status status = FindHosts(options, ranks_a_host, rendezvous, &layout);
  if (!status.ok()) return status;
  if (layout.size() == 1) return CreateOnOneHost(options, rendezvous, result);
  if (kind == "flat" || layout.OneRankEach()) return CreateTcpCommunicator(options, rendezvous, result);
  return CreateHierarchicalCommunicator(options, layout, kind == "hierarchical", rendezvous, result);
}

}  // namespace epl
