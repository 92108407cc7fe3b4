// The back end for ranks on several hosts of which some have more than one.
//
// Within a host, ranks work through shared memory; between hosts, through the same connections as the flat collectives
// of mesh_communicator.h, which take over whatever is not built here. Messages that are small go between hosts through
// one rank a host, the leader; large ones are cut into stripes, one for each of the first ranks of a host, which cross
// at the same time between the ranks with the same place in their hosts.
//
// Every collective of the group begins with a round in shared memory in which the ranks of a host compare what they are
// about to do. Then the ranks that connect the hosts compare theirs, in the same kind of head that flat collectives
// use. So a rank that does something else is found wherever it is, and before anyone's buffers are written.
//
// Waits later in a collective are longer than those before them, so that the rank whose wait ends first is one that
// waits for the culprit and not for another that waits itself.
#ifndef EPL_COMM_HIERARCHICAL_COMMUNICATOR_H_
#define EPL_COMM_HIERARCHICAL_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "announcement.h"
#include "communicator.h"
#include "hierarchical_join.h"
#include "mesh.h"
#include "reduce.h"

namespace epl {

class HierarchicalCommunicator : public Communicator {
 public:
  // `flat` works over `mesh`, which it owns; `local` connects the ranks of this host.
  HierarchicalCommunicator(const Options& options, const HostLayout& layout, Mesh* mesh,
                           std::unique_ptr<Communicator> flat, std::unique_ptr<Communicator> local);

  const char* backend() const override { return "hierarchical"; }
  Status Run(const Request& request) override;
  void Abort(int code, const std::string& reason) override;
  Status Health() override;
  void Leave() override;

 private:
  struct Range {
    size_t begin, end;
    size_t size() const { return end - begin; }
  };
  // What another rank announced, as it came over the network, and its data if that is small.
  struct Head {
    std::vector<char> message;
    size_t received = 0;  // bytes of it that were sent; what lies behind them is of an earlier one
    Announcement announcement;
    const char* data = nullptr;
    bool Has(size_t bytes) const {
      return bytes == 0 || received >= static_cast<size_t>(data - message.data()) + bytes;
    }
  };
  // The buffers of one piece of a long message; several are under way at once.
  struct Stage {
    std::vector<char> whole, stripe, arrived;
    Mesh::Transfers scatter, gather;
  };
  static constexpr size_t kStages = 3;

  // hierarchical_communicator.cc: agreement
  Status Dispatch(const Request& request);
  bool Built(const Request& request) const;
  Status Agree(const Request& request);
  void StartHeads(const std::vector<int>& to, const std::vector<int>& from, const Announcement& mine, const void* data,
                  size_t bytes);
  Status WaitHeads(const std::vector<int>& from);
  Status Damaged(int rank) const;
  Status ReadHead(int rank);
  Status Compare(int rank, const Announcement& other) const;
  Request Local(epl_collective collective, epl_dtype dtype, const void* in, void* out, size_t count) const;
  Status LocalGatherV(epl_dtype dtype, const void* in, size_t count, void* out);
  Status LocalBroadcast(int root, void* data, size_t bytes);

  // hierarchical_collectives.cc
  Status SmallAllReduce(const Request& request);
  Status LargeAllReduce(const Request& request);
  Status Barrier();
  Status Broadcast(const Request& request);
  Status BroadcastPieces(const Request& request, size_t count, size_t near, char* out);
  Status AllGather(const Request& request);
  Status GatherCounts(const Request& request, const std::vector<int>& from, std::vector<size_t>* counts);

  bool Crosses() const { return place_ < layout_.stripes; }
  const std::vector<int>& Host() const { return layout_.ranks[host_]; }

  const Options options_;
  const HostLayout layout_;
  const int host_, place_;  // of this rank: which host, and which rank there
  Mesh* const mesh_;
  const std::unique_ptr<Communicator> flat_, local_;
  std::vector<Announcement> announcements_;  // of the ranks of this host
  std::vector<Head> heads_;                  // of all ranks
  std::string shown_, what_;                 // the request under way, for errors
  std::string head_;                         // on its way
  std::vector<char> small_, result_;
  Stage stages_[kStages];
  Mesh::Transfers head_sends_, head_receives_;  // after the memory that they use
};

}  // namespace epl
#endif  // EPL_COMM_HIERARCHICAL_COMMUNICATOR_H_
