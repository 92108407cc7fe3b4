#include "nccl_join.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "nccl_communicator.h"
#include "nccl_libraries.h"
#include "process.h"

namespace epl {
namespace {

// A name of this rank's GPU that no other GPU has. Ranks that NCCL_HOSTID tells to be on different hosts may share one,
// as for NCCL itself: it is how several are tried on a machine with a single GPU.
Status FindDevice(const Options& options, const GpuLibraries& libraries, std::string* name) {
  int count = 0;
  Status status = libraries.Check("cudaGetDeviceCount", libraries.cuda.GetDeviceCount(&count));
  libraries.cuda.GetLastError();
  if (status.ok() && (options.device < 0 || options.device >= count)) {
    status = Status(EPL_INVALID, Format("this process sees %d GPUs, so it has no number %d", count, options.device));
  }
  char bus[32] = "";
  if (status.ok()) {
    status = libraries.Check("cudaDeviceGetPCIBusId", libraries.cuda.GetPciBusId(bus, sizeof(bus), options.device));
  }
  const char* host = std::getenv("NCCL_HOSTID");
  *name = Format("GPU %s of %s", bus, host != nullptr && *host != '\0' ? host : HostIdentity().c_str());
  return status;
}

// The same verdict at every rank: OK, or what is wrong at the first rank where something is. NCCL would refuse two
// ranks on one GPU as well, but too late for another choice.
Status Vote(const Options& options, const char* topic, const Status& mine, const std::string& device,
            Rendezvous* rendezvous) {
  std::vector<std::string> votes;
  const Status status = rendezvous->AllGather(topic, mine.ok() ? "+" + device : "-" + mine.message, &votes);
  if (!status.ok()) return mine.ok() ? status : mine;
  const auto refuse = [&](size_t rank, const std::string& why) {
    return Status(EPL_INVALID, Format("communicator '%s' cannot use NCCL: %s: %s", options.name.c_str(),
                                      options.Name(static_cast<int>(rank)).c_str(), why.c_str()));
  };
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (votes[rank].empty() || votes[rank][0] != '+') {
      return refuse(rank, votes[rank].empty() ? "damaged vote" : votes[rank].substr(1));
    }
    for (size_t other = 0; other < rank && !device.empty(); ++other) {
      if (votes[other] == votes[rank])
        return refuse(rank, "it has the same GPU as " + options.Name(static_cast<int>(other)));
    }
  }
  return Status();
}

// Rank 0 makes up the identity of the communicator and the others read it: "+" and the bytes, or "-" and an error.
Status ShareIdentity(const Options& options, const GpuLibraries& libraries, Rendezvous* rendezvous,
                     nccl::UniqueId* id) {
  std::string text;
  Status status;
  if (options.rank == 0) {
    const CurrentDevice current(libraries, options.device);
    status = current.status();
    if (status.ok()) status = libraries.CheckNccl("ncclGetUniqueId", libraries.nccl.GetUniqueId(id));
    text = status.ok() ? "+" + std::string(id->bytes, sizeof(id->bytes)) : "-" + status.message;
    const Status set = rendezvous->Set("nccl/id", text);
    return status.ok() ? set : status;
  }
  status = rendezvous->Get("nccl/id", &text);
  if (!status.ok()) return status;
  if (text.size() == 1 + sizeof(id->bytes) && text[0] == '+') {
    std::memcpy(id->bytes, text.data() + 1, sizeof(id->bytes));
    return Status();
  }
  return Status(EPL_INTERNAL, text.empty() || text[0] != '-' ? "the identity in the store is damaged" : text.substr(1));
}

}  // namespace

Status CreateNcclCommunicator(const Options& options, std::unique_ptr<Communicator> host, bool always,
                              Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  const GpuLibraries* libraries = nullptr;
  std::string device;
  Status mine = LoadGpuLibraries(options.cuda_library, options.nccl_library, &libraries);
  if (mine.ok()) mine = FindDevice(options, *libraries, &device);
  // Before joining, which waits for all ranks: none may begin it that must go on without others.
  Status all = Vote(options, "nccl/ready", mine, device, rendezvous);
  if (!all.ok() && !always && all.code == EPL_INVALID) {
    if (options.rank == 0) {
      std::fprintf(stderr, "epl: What GPUs exchange goes through host memory: %s\n", all.message.c_str());
    }
    *result = std::move(host);
    return Status();
  }
  if (!all.ok()) return all;
  auto joined = std::make_unique<NcclCommunicator>(options, *libraries, std::move(host));
  nccl::UniqueId id;
  mine = ShareIdentity(options, *libraries, rendezvous, &id);
  if (mine.ok()) mine = joined->Join(id, rendezvous->TimeLeft());
  all = Vote(options, "nccl/joined", mine, "", rendezvous);
  if (all.ok()) *result = std::move(joined);
  return all;
}

}  // namespace epl
