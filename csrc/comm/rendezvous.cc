#include "rendezvous.h"

#include <algorithm>

namespace epl {
namespace {

constexpr size_t kMaxValueBytes = 64 * 1024;

}  // namespace

Rendezvous::Rendezvous(const Options& options, const epl_store& store)
    : options_(options),
      store_(store),
      deadline_(std::chrono::steady_clock::now() +
                std::chrono::microseconds(static_cast<int64_t>(std::min(options.timeout_s, 1e9) * 1e6))) {}

double Rendezvous::TimeLeft() const {
  const std::chrono::duration<double> left = deadline_ - std::chrono::steady_clock::now();
  return std::max(0.01, left.count());
}

Status Rendezvous::Set(const std::string& topic, const std::string& value) {
  const std::string key = "comm/" + options_.name + "/" + topic;
  if (store_.set(store_.context, key.c_str(), reinterpret_cast<const uint8_t*>(value.data()), value.size()) != 0) {
    return Status(EPL_INTERNAL,
                  Format("communicator '%s': the store refused key '%s'", options_.name.c_str(), key.c_str()));
  }
  return Status();
}

Status Rendezvous::Get(const std::string& topic, std::string* value) {
  const std::string key = "comm/" + options_.name + "/" + topic;
  value->resize(kMaxValueBytes);
  size_t length = 0;
  if (store_.get(store_.context, key.c_str(), reinterpret_cast<uint8_t*>(&(*value)[0]), value->size(), &length,
                 TimeLeft()) != 0) {
    return Status(EPL_TIMEOUT, Format("communicator '%s': key '%s' was not in the store within %g s",
                                      options_.name.c_str(), key.c_str(), options_.timeout_s));
  }
  if (length > value->size()) {
    return Status(EPL_INTERNAL,
                  Format("communicator '%s': key '%s' has %zu bytes in the store, at most %zu are expected",
                         options_.name.c_str(), key.c_str(), length, value->size()));
  }
  value->resize(length);
  return Status();
}

Status Rendezvous::AllGather(const std::string& topic, const std::string& mine, std::vector<std::string>* all) {
  Status status = Set(Format("%s/%d", topic.c_str(), options_.rank), mine);
  if (!status.ok()) return status;
  all->assign(options_.size, std::string());
  std::vector<int> missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    status = Get(Format("%s/%d", topic.c_str(), rank), &(*all)[rank]);
    if (status.code == EPL_TIMEOUT) {
      missing.push_back(rank);
    } else if (!status.ok()) {
      return status;
    }
  }
  if (missing.empty()) return Status();
  return Status(EPL_TIMEOUT,
                Format("communicator '%s': %s did not join %s within %g s", options_.name.c_str(),
                       options_.Names(missing).c_str(), options_.Name(options_.rank).c_str(), options_.timeout_s));
}

}  // namespace epl
