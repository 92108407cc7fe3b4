#include "request.h"

#include <cstring>

#include "communicator.h"

namespace epl {
namespace {

Status Invalid(const Request& request, const std::string& problem) {
  return Status(EPL_INVALID,
                Format("%s '%s': %s", CollectiveName(request.collective), request.name.c_str(), problem.c_str()));
}

Status CheckReduction(const Request& request) {
  if (static_cast<unsigned>(request.reduce_op) >= kNumReduceOps) {
    return Invalid(request, Format("reduce_op %d is unknown; use EPL_SUM to EPL_PROD", request.reduce_op));
  }
  if (request.dtype == EPL_BOOL && request.reduce_op != EPL_MIN && request.reduce_op != EPL_MAX) {
    return Invalid(request, "bool can be reduced with min (all) or max (any) only");
  }
  if (request.scale != 1.0 && !IsFloating(request.dtype)) {
    return Invalid(request, Format("scale %g needs a floating dtype, got %s", request.scale, DtypeName(request.dtype)));
  }
  return Status();
}

bool OneSegment(const Request& request) { return request.segments.size() == 1; }

Status CheckSendCounts(const Request& request, int rank, int size) {
  const bool wanted = request.collective == EPL_ALL_TO_ALL_V;
  if (request.send_counts.empty()) {
    return wanted ? Invalid(request, "send_counts is required, one entry a rank") : Status();
  }
  if (!wanted && request.collective != EPL_REDUCE_SCATTER) return Invalid(request, "send_counts is not for this one");
  if (wanted && !OneSegment(request)) return Invalid(request, "send_counts needs exactly one segment");
  size_t sum = 0;
  for (size_t n : request.send_counts) {
    if (n > request.count - sum) return Invalid(request, "send_counts add up to more than the segment's count");
    sum += n;
  }
  if (sum != request.count || request.send_counts.size() != static_cast<size_t>(size)) {
    return Invalid(request, Format("send_counts add up to %zu, the segments have %zu elements", sum, request.count));
  }
  if (!wanted && request.send_counts[rank] > 0 && request.segments[0].out == nullptr) {
    return Invalid(request, "the first segment has no 'out' buffer for this rank's share");
  }
  return Status();
}

Status CheckDivides(const Request& request, int size) {
  for (const epl_segment& segment : request.segments) {
    if (segment.count % static_cast<size_t>(size) != 0) {
      return Invalid(request, Format("%zu elements do not divide by %d ranks; %s", segment.count, size,
                                     request.collective == EPL_REDUCE_SCATTER ? "give send_counts for uneven shares"
                                                                              : "use all_to_all_v"));
    }
  }
  return Status();
}

// Which sides of a segment must point somewhere on this rank.
void NeededBuffers(const Request& request, int rank, bool* in, bool* out) {
  const bool root = rank == request.peer;
  *in = *out = true;
  switch (request.collective) {
    case EPL_BROADCAST:
      *in = root;
      *out = !root && request.allocate == nullptr;
      break;
    case EPL_REDUCE:
      *out = root;
      break;
    case EPL_REDUCE_SCATTER:  // CheckSendCounts looks at where an uneven share goes
      *out = request.send_counts.empty();
      break;
    case EPL_SEND:
      *out = false;
      break;
    case EPL_RECV:
      *in = false;
      *out = request.allocate == nullptr;
      break;
    case EPL_ALL_GATHER_V:
    case EPL_ALL_TO_ALL_V:
      *out = false;
      break;
    default:
      break;
  }
}

Status CheckBuffers(const Request& request, int rank) {
  bool in, out;
  NeededBuffers(request, rank, &in, &out);
  for (size_t i = 0; i < request.segments.size(); ++i) {
    const epl_segment& segment = request.segments[i];
    if (segment.count == 0) continue;
    if ((in && segment.in == nullptr) || (out && segment.out == nullptr)) {
      return Invalid(request, Format("segment %zu has %zu elements and no '%s' buffer", i, segment.count,
                                     in && segment.in == nullptr ? "in" : "out"));
    }
  }
  return Status();
}

Status Check(const Request& request, int rank, int size) {
  if (static_cast<unsigned>(request.dtype) >= kNumDtypes) {
    return Invalid(request, Format("dtype %d is unknown; use EPL_FLOAT16 to EPL_BOOL", request.dtype));
  }
  if ((request.HasRoot() || request.IsPointToPoint()) && (request.peer < 0 || request.peer >= size)) {
    return Invalid(request, Format("peer %d is no rank of this communicator of %d", request.peer, size));
  }
  if (request.IsPointToPoint() && request.peer == rank) return Invalid(request, "a rank cannot exchange with itself");
  if (request.header.size() > kMaxHeaderBytes) {
    return Invalid(request,
                   Format("header has %zu bytes, at most %zu are possible", request.header.size(), kMaxHeaderBytes));
  }
  const bool sized_by_peers = request.collective == EPL_ALL_GATHER_V || request.collective == EPL_ALL_TO_ALL_V;
  if (sized_by_peers && request.allocate == nullptr) return Invalid(request, "allocate is required");
  if (request.collective == EPL_BARRIER && request.count != 0) return Invalid(request, "a barrier carries no data");
  Status status = CheckBuffers(request, rank);
  if (status.ok() && IsReduction(request.collective)) status = CheckReduction(request);
  if (status.ok()) status = CheckSendCounts(request, rank, size);
  const bool equal_shares =
      request.collective == EPL_ALL_TO_ALL || (request.collective == EPL_REDUCE_SCATTER && request.send_counts.empty());
  if (status.ok() && equal_shares) status = CheckDivides(request, size);
  return status;
}

}  // namespace

std::vector<Shares> SharesOf(const Request& request, size_t size) {
  std::vector<Shares> found;
  const auto add = [&](size_t start, const std::vector<size_t>& counts, void* out) {
    Shares shares{{}, counts, *std::max_element(counts.begin(), counts.end()), out};
    for (size_t count : counts) {
      shares.starts.push_back(start);
      start += count;
    }
    found.push_back(shares);
  };
  if (!request.send_counts.empty()) {
    add(0, request.send_counts, request.segments[0].out);
    return found;
  }
  for (size_t i = 0; i < request.segments.size(); ++i) {
    const epl_segment& segment = request.segments[i];
    add(request.offsets[i], std::vector<size_t>(size, segment.count / size), segment.out);
  }
  return found;
}

const char* Request::InputOf(size_t begin, size_t end, std::vector<char>* buffer) const {
  if (begin < end) {
    const size_t i = std::upper_bound(offsets.begin(), offsets.end(), begin) - offsets.begin() - 1;
    if (end <= offsets[i + 1]) return static_cast<const char*>(segments[i].in) + (begin - offsets[i]) * element;
  }
  buffer->resize((end - begin) * element + 1);
  Gather(begin, end, buffer->data());
  return buffer->data();
}

void Request::Gather(size_t begin, size_t end, void* to) const {
  char* cursor = static_cast<char*>(to);
  ForRange(begin, end, [&](const epl_segment& segment, size_t first, size_t last) {
    const size_t bytes = (last - first) * element;
    std::memcpy(cursor, static_cast<const char*>(segment.in) + first * element, bytes);
    cursor += bytes;
  });
}

void Request::Scatter(size_t begin, size_t end, const void* from) const {
  const char* cursor = static_cast<const char*>(from);
  ForRange(begin, end, [&](const epl_segment& segment, size_t first, size_t last) {
    const size_t bytes = (last - first) * element;
    std::memcpy(static_cast<char*>(segment.out) + first * element, cursor, bytes);
    cursor += bytes;
  });
}

Status MakeRequest(const epl_request& from, int rank, int size, Request* to) {
  to->tag = from.tag;
  to->name = from.name == nullptr ? "" : from.name;
  to->collective = from.collective;
  to->dtype = from.dtype;
  to->reduce_op = from.reduce_op;
  to->peer = from.peer;
  to->scale = from.scale;
  to->allocate = from.allocate;
  to->refusal = from.refusal;
  to->done = from.done;
  to->arg = from.arg;
  to->stream = from.stream;
  if (from.done == nullptr) return Invalid(*to, "done is required");
  if (static_cast<unsigned>(from.collective) >= kNumCollectives) {
    return Invalid(*to, Format("collective %d is unknown", from.collective));
  }
  if ((from.num_segments != 0 && from.segments == nullptr) || (from.header_length != 0 && from.header == nullptr)) {
    return Invalid(*to, "segments or header is NULL but its length is not 0");
  }
  to->segments.assign(from.segments, from.segments + from.num_segments);
  if (from.send_counts != nullptr) to->send_counts.assign(from.send_counts, from.send_counts + size);
  to->element = SizeOf(from.dtype);
  to->offsets.assign(1, 0);
  for (const epl_segment& segment : to->segments) {
    if (segment.count > (SIZE_MAX / 16 - to->count)) return Invalid(*to, "segments are too long");
    to->count += segment.count;
    to->offsets.push_back(to->count);
  }
  if (from.header_length > kMaxHeaderBytes) {
    return Invalid(*to, Format("header has %zu bytes, at most %zu are possible", from.header_length, kMaxHeaderBytes));
  }
  to->header.assign(from.header, from.header + from.header_length);
  return Check(*to, rank, size);
}

Status Refused(const Request& request, const std::string& prefix) {
  if (request.refusal == nullptr) return Status(EPL_INTERNAL, prefix + "allocate returned NULL");
  char message[1024] = "";
  const int code = request.refusal(request.arg, message, sizeof(message));
  return Status(code, prefix + message);
}

std::string Describe(int collective, const std::string& name, int dtype, uint64_t count, int op,
                     const std::string& peer) {
  std::string text = Format("%s '%s'", CollectiveName(collective), name.c_str());
  if (collective == EPL_BARRIER) return text;
  text += Format(" (%s, %llu elements", DtypeName(dtype), static_cast<unsigned long long>(count));
  if (IsReduction(collective)) text += Format(", %s", ReduceOpName(op));
  if (collective == EPL_BROADCAST || collective == EPL_REDUCE) text += Format(", root %s", peer.c_str());
  if (collective == EPL_SEND) text += Format(", to %s", peer.c_str());
  if (collective == EPL_RECV) text += Format(", from %s", peer.c_str());
  return text + ")";
}

std::string Describe(const Request& request) {
  if (!request.shown.empty()) return request.shown;
  return Describe(request.collective, request.name, request.dtype, request.count, request.reduce_op,
                  Format("rank %d", request.peer));
}

std::string Describe(const Request& request, const Options& options) {
  if (!request.shown.empty()) return request.shown;
  return Describe(request.collective, request.name, request.dtype, request.count, request.reduce_op,
                  options.Name(request.peer));
}

}  // namespace epl
