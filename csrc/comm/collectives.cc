#include "collectives.h"

namespace epl {

Status Collectives::RunCollective(const Request& request) {
  switch (request.collective) {
    case EPL_ALL_REDUCE:
    case EPL_REDUCE:
      return Reductions(request);
    case EPL_BROADCAST:
      return Broadcast(request);
    case EPL_ALL_GATHER:
      return AllGather(request);
    case EPL_ALL_GATHER_V:
      return AllGatherV(request);
    case EPL_REDUCE_SCATTER:
      return ReduceScatter(request);
    case EPL_ALL_TO_ALL:
      return AllToAll(request);
    case EPL_ALL_TO_ALL_V:
      return AllToAllV(request);
    case EPL_SEND:
      return SendMessage(request);
    case EPL_RECV:
      return ReceiveMessage(request);
    case EPL_BARRIER:
      return Barrier(request);
  }
  return Status(EPL_INVALID, "unknown collective");
}

}  // namespace epl
