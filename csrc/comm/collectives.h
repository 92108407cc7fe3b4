// The collectives that a back end brings, and which of them a request is for.
#ifndef EPL_COMM_COLLECTIVES_H_
#define EPL_COMM_COLLECTIVES_H_

#include "request.h"
#include "status.h"

namespace epl {

class Collectives {
 protected:
  virtual ~Collectives() = default;
  Status RunCollective(const Request& request);

 private:
  virtual Status Reductions(const Request& request) = 0;  // to all ranks or to one
  virtual Status ReduceScatter(const Request& request) = 0;
  virtual Status Broadcast(const Request& request) = 0;
  virtual Status AllGather(const Request& request) = 0;
  virtual Status AllGatherV(const Request& request) = 0;
  virtual Status AllToAll(const Request& request) = 0;
  virtual Status AllToAllV(const Request& request) = 0;
  virtual Status Barrier(const Request& request) = 0;
  virtual Status SendMessage(const Request& request) = 0;
  virtual Status ReceiveMessage(const Request& request) = 0;
};

}  // namespace epl
#endif  // EPL_COMM_COLLECTIVES_H_
