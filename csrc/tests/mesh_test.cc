// What a network hands over may be shorter than it should be; nothing is then taken from an earlier message.
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "harness.h"
#include "mesh_communicator.h"

namespace {

using test::Contains;

// Between two ranks that do the same: what this rank says comes back as the other's, but no more than `limit` bytes of
// it.
class Echo : public epl::Mesh {
 public:
  explicit Echo(const size_t* limit) : limit_(limit) {}

  void Send(int, epl::Slot, const void* data, size_t bytes, Transfers*) override {
    const size_t length = std::min(bytes, *limit_);
    std::memcpy(to_, data, length);
    if (received_ != nullptr) *received_ = length;
  }
  void Receive(int, epl::Slot, void* data, size_t, Transfers*, size_t* received) override {
    to_ = data;
    received_ = received;
  }
  epl::Status Wait(Transfers*, const std::string&) override { return epl::Status(); }
  epl::Status Health() override { return epl::Status(); }
  void Break(int, const std::string&) override {}
  void Leave() override {}

 private:
  const size_t* limit_;
  void* to_ = nullptr;
  size_t* received_ = nullptr;
};

TEST(short_heads_are_refused) {
  epl::Options options;
  options.size = 2;
  options.name = "short";
  options.workers = {4, 7};
  size_t limit = std::numeric_limits<size_t>::max();
  epl::MeshCommunicator communicator(options, "echo", std::make_unique<Echo>(&limit));
  float value = 0;
  const epl_segment segment = {&value, &value, 1};
  epl_request request = test::MakeRequest("sum", EPL_ALL_REDUCE, EPL_FLOAT32, &segment, 1);
  request.done = [](void*, int, const char*) {};
  epl::Request checked;
  CHECK_THAT(epl::MakeRequest(request, 0, 2, &checked).ok(), "a request");
  int num_refused = 0;
  for (const size_t length : {size_t{100000}, size_t{0}, size_t{1}, size_t{20}, size_t{30}, size_t{100000}}) {
    limit = length;
    value = 3.0f;
    const epl::Status status = communicator.Run(checked);
    if (length == 100000) {
      CHECK_THAT(status.ok() && value == 6.0f, status.message);
      continue;
    }
    CHECK_THAT(status.code == EPL_INTERNAL && Contains(status.message, "worker 7 sent a damaged head"), status.message);
    ++num_refused;
  }
  // The numbers at its end are missing.
  limit = sizeof(epl::Announcement) - epl::kMaxHeaderBytes;
  CHECK_THAT(communicator.Run(checked).code == EPL_INTERNAL && num_refused == 4, "without its data");
}

}  // namespace
