#include "hierarchical_join.h"

#include <algorithm>
#include <cstdio>

#include "backends.h"
#include "hierarchical_communicator.h"
#include "mesh_communicator.h"
#include "process.h"
#include "shm_communicator.h"
#include "tcp_mesh.h"

namespace epl {

Status FindHosts(const Options& options, int ranks_a_host, Rendezvous* rendezvous, HostLayout* layout) {
  const std::string mine = ranks_a_host > 0 ? Format("%d", options.rank / ranks_a_host) : HostIdentity();
  std::vector<std::string> hosts;
  Status status = rendezvous->AllGather("host", mine, &hosts);
  if (status.ok()) *layout = LayoutOf(hosts);
  return status;
}

namespace {

// Later waits of a collective are this much longer than earlier ones.
double Patience(const Options& options) { return std::min(1.0, options.timeout_s / 4); }

Status CreateLocal(const Options& options, const HostLayout& layout, Mesh* mesh, Rendezvous* rendezvous,
                   std::unique_ptr<Communicator>* result) {
  const int host = layout.HostOf(options.rank);
  Options local = options;
  local.rank = layout.PlaceOf(options.rank);
  local.size = static_cast<int>(layout.ranks[host].size());
  local.global_ranks = layout.ranks[host];
  local.name = Format("%s/host%d", options.name.c_str(), host);
  local.watch = [mesh] { return mesh->Health(); };
  Rendezvous meeting(local, rendezvous->store());
  return ShmCommunicator::Create(local, &meeting, result);
}

}  // namespace

Status CreateHierarchicalCommunicator(const Options& options, const HostLayout& layout, bool always,
                                      Rendezvous* rendezvous, std::unique_ptr<Communicator>* result) {
  Options between = options;
  between.timeout_s += Patience(options);
  std::unique_ptr<Mesh> owned;
  const std::vector<int> strides = Strides(options.size, NumStrides(options.size, layout.stripes));
  Status status = TcpMesh::Create(between, strides, rendezvous, &owned);
  if (!status.ok()) return status;
  Mesh* mesh = owned.get();
  auto flat = std::make_unique<MeshCommunicator>(between, "tcp", std::move(owned));
  std::unique_ptr<Communicator> local;
  const Status mine = CreateLocal(options, layout, mesh, rendezvous, &local);
  // The verdicts are exchanged, so that all take the same way.
  std::vector<std::string> verdicts;
  status = rendezvous->AllGather("hierarchical", mine.message, &verdicts);
  if (!status.ok()) return status;
  for (const std::string& verdict : verdicts) {
    if (verdict.empty()) continue;
    if (always || mine.code == EPL_TIMEOUT) return Status(EPL_INTERNAL, verdict);
    if (options.rank == 0) {
      std::fprintf(stderr, "epl: communicator '%s' is not hierarchical: %s\n", options.name.c_str(), verdict.c_str());
    }
    *result = std::move(flat);
    return Status();
  }
  *result = std::make_unique<HierarchicalCommunicator>(options, layout, mesh, std::move(flat), std::move(local));
  return Status();
}

}  // namespace epl
