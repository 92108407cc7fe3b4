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

// Each rank's value, or that it has not come.
struct Rendezvous::Gathered {
  std::vector<std::string>* all;
  std::vector<int> missing;

  static void Take(void* self, int rank, const uint8_t* value, size_t length) {
    Gathered* gathered = static_cast<Gathered*>(self);
    if (value == nullptr) {
      gathered->missing.push_back(rank);
    } else {
      (*gathered->all)[rank].assign(reinterpret_cast<const char*>(value), length);
    }
  }
};

Status Rendezvous::GatherOneByOne(const std::string& topic, const std::string& mine, Gathered* gathered) {
  Status status = Set(Format("%s/%d", topic.c_str(), options_.rank), mine);
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) {
    status = Get(Format("%s/%d", topic.c_str(), rank), &(*gathered->all)[rank]);
    if (status.code != EPL_TIMEOUT) continue;
    gathered->missing.push_back(rank);
    status = Status();
  }
  return status;
}

Status Rendezvous::AllGather(const std::string& topic, const std::string& mine, std::vector<std::string>* all) {
  all->assign(options_.size, std::string());
  Gathered gathered{all, {}};
  if (store_.gather == nullptr) {
    const Status status = GatherOneByOne(topic, mine, &gathered);
    if (!status.ok()) return status;
  } else {
    const std::string key = "comm/" + options_.name + "/" + topic;
    if (store_.gather(store_.context, key.c_str(), options_.rank, options_.size,
                      reinterpret_cast<const uint8_t*>(mine.data()), mine.size(), TimeLeft(), &Gathered::Take,
                      &gathered) != 0) {
      return Status(EPL_INTERNAL, Format("communicator '%s': the store refused the gathering '%s'",
                                         options_.name.c_str(), key.c_str()));
    }
  }
  if (gathered.missing.empty()) return Status();
  return Status(EPL_TIMEOUT, Format("communicator '%s': %s did not join %s within %g s", options_.name.c_str(),
                                    options_.Names(gathered.missing).c_str(), options_.Name(options_.rank).c_str(),
                                    options_.timeout_s));
}

}  // namespace epl
