// A checked copy of an epl_request, and views of its segments as one stream of bytes.
#ifndef EPL_COMM_REQUEST_H_
#define EPL_COMM_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtype.h"
#include "epl_comm.h"
#include "status.h"

namespace epl {

// The most bytes that epl_request.header may hold: it travels in a fixed slot beside the request's description.
constexpr size_t kMaxHeaderBytes = 4096;

struct Options;

struct Request {
  int64_t tag = -1;
  std::string name;
  epl_collective collective = EPL_BARRIER;
  epl_dtype dtype = EPL_UINT8;
  epl_reduce_op reduce_op = EPL_SUM;
  int peer = 0;
  std::vector<epl_segment> segments;
  double scale = 1.0;
  std::vector<size_t> send_counts;
  std::vector<uint8_t> header;
  epl_allocate allocate = nullptr;
  epl_refusal refusal = nullptr;
  epl_done done = nullptr;
  void* arg = nullptr;
  void* stream = nullptr;
  std::shared_ptr<void> ready;  // an event on `stream` behind the inputs; set by Communicator::Prepare
  // For a part of another request: what messages call it, and how much longer than the communicator's timeout_s it may
  // wait.
  std::string shown;
  double extra_wait_s = 0.0;
  std::function<void(const Status&)> completed;  // called instead of `done` when set

  std::vector<size_t> offsets;  // in elements: segment i is [offsets[i], offsets[i + 1]) of the stream
  size_t count = 0;             // elements of all segments
  size_t element = 1;           // bytes of one element

  bool IsPointToPoint() const { return collective == EPL_SEND || collective == EPL_RECV; }
  bool HasRoot() const { return collective == EPL_BROADCAST || collective == EPL_REDUCE; }

  // Calls visit(segment, begin, end) for every piece of [begin, end) of the stream; the piece's bounds are elements
  // within that segment.
  template <class Visit>
  void ForRange(size_t begin, size_t end, Visit visit) const {
    if (begin >= end) return;
    size_t i = std::upper_bound(offsets.begin(), offsets.end(), begin) - offsets.begin() - 1;
    for (; begin < end; ++i) {
      const size_t stop = std::min(end, offsets[i + 1]);
      if (stop > begin) visit(segments[i], begin - offsets[i], stop - offsets[i]);
      begin = std::max(begin, stop);
    }
  }

  // Whether what this rank gives is where it is wanted already (all_gather_v).
  bool IsInPlace() const {
    return !segments.empty() &&
           std::all_of(segments.begin(), segments.end(), [](const epl_segment& each) { return each.in == each.out; });
  }

  // The inputs of [begin, end): where they lie in one row, or a copy in `buffer`.
  const char* InputOf(size_t begin, size_t end, std::vector<char>* buffer) const;

  // Copies [begin, end) of the stream's inputs to `to`, or from `from` to its outputs.
  void Gather(size_t begin, size_t end, void* to) const;
  void Scatter(size_t begin, size_t end, const void* from) const;
};

// What a reduce_scatter gives to the ranks of one segment, or with send_counts of the stream of all of them.
struct Shares {
  std::vector<size_t> starts, counts;  // for each rank, in elements of the stream
  size_t longest;
  void* out;  // takes this rank's share
};

std::vector<Shares> SharesOf(const Request& request, size_t size);

// Copies and checks. `rank` and `size` are those of the communicator. EPL_INVALID says what to mend.
Status MakeRequest(const epl_request& from, int rank, int size, Request* to);

// Why `allocate` returned NULL, after `prefix`.
Status Refused(const Request& request, const std::string& prefix);

// "all_reduce 'grads/0' (float32, 1024 elements, sum)"
std::string Describe(int collective, const std::string& name, int dtype, uint64_t count, int op,
                     const std::string& peer);
std::string Describe(const Request& request);
std::string Describe(const Request& request, const Options& options);  // with the peer's name among these

}  // namespace epl
#endif  // EPL_COMM_REQUEST_H_
