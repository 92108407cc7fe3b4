// Collectives over point-to-point transfers, for ranks on different hosts.
//
// A collective begins with a round of heads: every rank sends every other its announcement, and with it the data itself
// if that is small. Only when all heads agree are buffers written. Large reductions are cut into shares: each rank gets
// its share from all others, reduces it in rank order with the kernels that shared memory uses too, so both back ends
// give the same bits, and sends the result round.
#ifndef EPL_COMM_MESH_COMMUNICATOR_H_
#define EPL_COMM_MESH_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "announcement.h"
#include "collectives.h"
#include "communicator.h"
#include "mesh.h"
#include "reduce.h"

namespace epl {

class MeshCommunicator : public Communicator, private Collectives {
 public:
  MeshCommunicator(const Options& options, const char* backend, std::unique_ptr<Mesh> mesh);
  ~MeshCommunicator() override;

  const char* backend() const override { return backend_; }
  Status Run(const Request& request) override;
  void Abort(int code, const std::string& reason) override { mesh_->Break(code, reason); }
  Status Health() override;
  void Leave() override { mesh_->Leave(); }

 private:
  struct Block {
    int peer;
    char* data;
    size_t bytes;
  };
  // A head as it was received: the announcement without its unused header bytes, then send_counts, then small data.
  struct Head {
    std::vector<char> message;
    size_t received = 0;  // bytes of it that were sent; what lies behind them is of an earlier one
    Announcement announcement;
    std::vector<size_t> counts;
    const char* inline_data = nullptr;
  };

  Status Dispatch(const Request& request);
  Status Heads(const Request& request);
  std::string MakeHead(const Request& request) const;
  void ReceiveHead(int rank, Mesh::Transfers* transfers);
  Status ReadHead(int rank);
  bool Inline(int collective, uint64_t count, size_t element) const;
  Status Exchange(const std::vector<Block>& sends, const std::vector<Block>& receives);
  void Start(const std::vector<Block>& sends, const std::vector<Block>& receives, Mesh::Transfers* transfers);
  Status Allocate(const Request& request, const std::vector<size_t>& counts, int root, char** out);

  Status Reductions(const Request& request) override;
  Status Barrier(const Request&) override { return Status(); }  // it ends with its heads
  Status SmallReduce(const Request& request);
  Status LargeReduce(const Request& request);
  Status Broadcast(const Request& request) override;
  Status AllGather(const Request& request) override;
  Status AllGatherV(const Request& request) override;
  Status ReduceScatter(const Request& request) override;
  Status AllToAll(const Request& request) override;
  Status AllToAllV(const Request& request) override;
  Status SendMessage(const Request& request) override;
  Status ReceiveMessage(const Request& request) override;
  Reduction ReductionOf(const Request& request) const;

  const Options options_;
  const char* const backend_;
  const std::unique_ptr<Mesh> mesh_;
  std::vector<Head> heads_;
  std::string what_;  // the request under way, for errors
  std::vector<char> stage_[2], arrived_[2], result_;
};

}  // namespace epl
#endif  // EPL_COMM_MESH_COMMUNICATOR_H_
