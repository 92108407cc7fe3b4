// Meeting of the ranks over the caller's store, before they share anything else.
#ifndef EPL_COMM_RENDEZVOUS_H_
#define EPL_COMM_RENDEZVOUS_H_

#include <chrono>
#include <string>
#include <vector>

#include "communicator.h"
#include "epl_comm.h"
#include "status.h"

namespace epl {

class Rendezvous {
 public:
  Rendezvous(const Options& options, const epl_store& store);

  // Publishes `mine` under `topic` and collects what every rank published there, in rank order. Texts are at most
  // 64 KiB. EPL_TIMEOUT names the ranks that published nothing in time.
  Status AllGather(const std::string& topic, const std::string& mine, std::vector<std::string>* all);

  Status Set(const std::string& topic, const std::string& value);
  Status Get(const std::string& topic, std::string* value);

  const epl_store& store() const { return store_; }

  // Seconds left of options.timeout_s, counted from construction; at least 0.01.
  double TimeLeft() const;

 private:
  struct Gathered;
  Status GatherOneByOne(const std::string& topic, const std::string& mine, Gathered* gathered);

  const Options& options_;
  epl_store store_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace epl
#endif  // EPL_COMM_RENDEZVOUS_H_
