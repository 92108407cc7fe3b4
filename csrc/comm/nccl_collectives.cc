// The collectives of nccl_communicator.h, after the ranks have agreed. Everything here only puts work on the stream.
//
// Segments are not copied together: each is a call by itself, and calls in a group are launched as one. Only where
// ranks have cut the same stream in different ways, or where buffers overlap, does data go through memory of the
// communicator. What NCCL does not have is a group of what it has: all-to-all of sends and receives, all-gather of
// uneven parts of broadcasts, reduce-scatter of uneven shares of reductions.
#include <algorithm>

#include "nccl_communicator.h"
#include "reduce.h"

namespace epl {
namespace {

nccl::DataType TypeOf(epl_dtype dtype) {
  switch (dtype) {
    case EPL_FLOAT16:
      return nccl::kFloat16;
    case EPL_BFLOAT16:
      return nccl::kBfloat16;
    case EPL_FLOAT32:
      return nccl::kFloat32;
    case EPL_FLOAT64:
      return nccl::kFloat64;
    case EPL_INT32:
      return nccl::kInt32;
    case EPL_INT64:
      return nccl::kInt64;
    default:
      return nccl::kUint8;  // of booleans, 0 and 1, min and max are "all" and "any"
  }
}

nccl::RedOp OpOf(epl_reduce_op op) {
  switch (op) {
    case EPL_MEAN:
      return nccl::kAvg;
    case EPL_MIN:
      return nccl::kMin;
    case EPL_MAX:
      return nccl::kMax;
    case EPL_PROD:
      return nccl::kProd;
    default:
      return nccl::kSum;
  }
}

bool Overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const char* first = static_cast<const char*>(a);
  const char* second = static_cast<const char*>(b);
  return a_bytes != 0 && b_bytes != 0 && first < second + b_bytes && second < first + a_bytes;
}

const char* At(const void* data, size_t bytes) { return static_cast<const char*>(data) + bytes; }
char* At(void* data, size_t bytes) { return static_cast<char*>(data) + bytes; }

// Starts of parts that lie one behind the other.
std::vector<size_t> StartsOf(const std::vector<size_t>& counts) {
  std::vector<size_t> starts(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); ++i) starts[i] = starts[i - 1] + counts[i - 1];
  return starts;
}

// `scale` as an element of `dtype`, a floating type.
void EncodeFactor(epl_dtype dtype, double scale, char* to) {
  static const uint16_t kOneHalf = 0x3c00, kOneBfloat = 0x3f80;
  static const float kOneFloat = 1.0f;
  static const double kOneDouble = 1.0;
  const void* one = dtype == EPL_FLOAT16    ? static_cast<const void*>(&kOneHalf)
                    : dtype == EPL_BFLOAT16 ? static_cast<const void*>(&kOneBfloat)
                    : dtype == EPL_FLOAT32  ? static_cast<const void*>(&kOneFloat)
                                            : static_cast<const void*>(&kOneDouble);
  Reduce(Reduction{dtype, EPL_SUM, scale, 1}, &one, 1, to, nullptr, 1);
}

// Why a reduction cannot be done on GPUs, or NULL. The same on all ranks that agree on the request.
const char* Unsupported(const Request& request) {
  if (!IsReduction(request.collective)) return nullptr;
  if (request.reduce_op == EPL_MEAN && !IsFloating(request.dtype)) {
    return "NCCL has no mean of integers that truncates towards zero; sum, or cast to a floating type";
  }
  if (request.scale != 1.0 && request.reduce_op != EPL_SUM && request.reduce_op != EPL_MEAN) {
    return "with GPU memory a scale goes with sum and mean only";
  }
  return nullptr;
}

}  // namespace

// Whether all ranks have cut the stream in the same way, so that segment i of one meets segment i of the others. Ranks
// whose size comes from the root take its data in one piece.
bool NcclCommunicator::SameCuts(const Request& request) const {
  Request whole;
  whole.segments.push_back({nullptr, nullptr, peers_[request.HasRoot() ? request.peer : 0].announcement.count});
  const uint64_t one_piece = CutOf(whole);
  const auto cut = [&](const Peer& peer) { return peer.announcement.sized_by_peers != 0 ? one_piece : peer.cut; };
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return cut(peer) == cut(peers_[0]); });
}

Status NcclCommunicator::Group(const std::function<nccl::Result()>& calls) {
  Status status = libraries_.CheckNccl("ncclGroupStart", libraries_.nccl.GroupStart());
  if (!status.ok()) return status;
  status = libraries_.CheckNccl("a call in a group of NCCL", calls());
  // Also after an error: a group that is open would take in the calls of other communicators.
  const Status end = libraries_.CheckNccl("ncclGroupEnd", libraries_.nccl.GroupEnd());
  if (status.ok()) status = end;
  return status.ok() ? AwaitLaunch() : status;
}

// What the segments become on the stream: themselves, or one piece in memory of the communicator if `pack`.
Status NcclCommunicator::Pieces(const Request& request, bool pack, bool with_input, std::vector<epl_segment>* pieces) {
  pieces->clear();
  if (!pack) {
    for (const epl_segment& segment : request.segments) {
      if (segment.count != 0) pieces->push_back(segment);
    }
    return Status();
  }
  char* memory = nullptr;
  Status status = stream_.Reserve(request.count * request.element, &memory);
  pieces->push_back({memory, memory, request.count});
  for (size_t i = 0; i < request.segments.size() && with_input && status.ok(); ++i) {
    const epl_segment& segment = request.segments[i];
    status = stream_.Copy(memory + request.offsets[i] * request.element, segment.in, segment.count * request.element);
  }
  return status;
}

// Takes the result out of the piece that Pieces() has packed.
Status NcclCommunicator::Unpack(const Request& request, const epl_segment& packed) {
  Status status;
  for (size_t i = 0; i < request.segments.size() && status.ok(); ++i) {
    const epl_segment& segment = request.segments[i];
    status = stream_.Copy(segment.out, At(packed.out, request.offsets[i] * request.element),
                          segment.count * request.element);
  }
  return status;
}

// For collectives whose output must not overlap the input: moves inputs that do out of the way.
Status NcclCommunicator::Separate(const Request& request, size_t out_count, std::vector<epl_segment>* pieces) {
  Status status = Pieces(request, false, true, pieces);
  const auto overlaps = [&](const epl_segment& piece) {
    const bool one = !request.send_counts.empty();  // output for all pieces
    const size_t outs = request.collective == EPL_ALL_GATHER ? piece.count * options_.size
                        : one || pieces->size() == 1         ? out_count
                                                             : piece.count;
    const void* out = one ? request.segments[0].out : piece.out;
    return Overlap(piece.in, piece.count * request.element, out, outs * request.element);
  };
  size_t bytes = 0;
  for (const epl_segment& piece : *pieces) bytes += overlaps(piece) ? piece.count * request.element : 0;
  if (bytes == 0) return status;
  char* memory = nullptr;
  status = stream_.Reserve(bytes, &memory);
  for (size_t i = 0; i < pieces->size() && status.ok(); ++i) {
    epl_segment& piece = (*pieces)[i];
    if (!overlaps(piece)) continue;
    status = stream_.Copy(memory, piece.in, piece.count * request.element);
    piece.in = memory;
    memory += piece.count * request.element;
  }
  return status;
}

// Asks the caller for the output; its memory may still be in use by what is on the caller's stream by now.
Status NcclCommunicator::AllocateOutput(const Request& request, const std::vector<size_t>& counts, void** output) {
  const Announcement* root = request.collective == EPL_BROADCAST ? &peers_[request.peer].announcement : nullptr;
  *output = request.allocate(request.arg, counts.data(), options_.size, root == nullptr ? nullptr : root->header,
                             root == nullptr ? 0 : root->header_length);
  if (*output == nullptr) return Refused(request, "");
  std::shared_ptr<void> free;
  Status status = events_->Record(request.stream, &free);
  return status.ok() ? stream_.WaitFor(free) : status;
}

Status NcclCommunicator::Launch(const Request& request) {
  const char* problem = Unsupported(request);
  if (problem != nullptr) return Status(EPL_INVALID, Format("%s: %s", what_.c_str(), problem));
  return RunCollective(request);
}

Status NcclCommunicator::Reductions(const Request& request) {
  nccl::RedOp op = OpOf(request.reduce_op);
  bool created = false;
  if (request.scale != 1.0) {
    // A factor on each rank's data: NCCL multiplies while it reads.
    alignas(8) char factor[8] = {};
    const double scale = request.reduce_op == EPL_MEAN ? request.scale / options_.size : request.scale;
    EncodeFactor(request.dtype, scale, factor);
    Status status = libraries_.CheckNccl(
        "ncclRedOpCreatePreMulSum",
        libraries_.nccl.CreatePreMulSum(&op, factor, TypeOf(request.dtype), nccl::kScalarHostImmediate, comm_));
    if (!status.ok()) return status;
    created = true;
  }
  Status status = request.collective == EPL_REDUCE_SCATTER ? ReduceScatter(request, op) : AllReduce(request, op);
  if (created && status.ok()) {
    status = libraries_.CheckNccl("ncclRedOpDestroy", libraries_.nccl.RedOpDestroy(op, comm_));
  }
  return status;
}

// all_reduce and reduce
Status NcclCommunicator::AllReduce(const Request& request, nccl::RedOp op) {
  const nccl::DataType type = TypeOf(request.dtype);
  const bool pack = !SameCuts(request), to_all = request.collective == EPL_ALL_REDUCE;
  std::vector<epl_segment> pieces;
  Status status = Pieces(request, pack, true, &pieces);
  if (!status.ok() || request.count == 0) return status;
  status = Group([&] {
    nccl::Result result = nccl::kSuccess;
    for (const epl_segment& piece : pieces) {
      result = to_all ? libraries_.nccl.AllReduce(piece.in, piece.out, piece.count, type, op, comm_, stream_.get())
                      : libraries_.nccl.Reduce(piece.in, piece.out, piece.count, type, op, request.peer, comm_,
                                               stream_.get());
      if (result != nccl::kSuccess && result != nccl::kInProgress) break;
    }
    return result;
  });
  const bool gets = to_all || request.peer == options_.rank;
  return status.ok() && pack && gets ? Unpack(request, pieces[0]) : status;
}

Status NcclCommunicator::ReduceScatter(const Request& request, nccl::RedOp op) {
  const nccl::DataType type = TypeOf(request.dtype);
  const size_t size = static_cast<size_t>(options_.size);
  const bool uneven = !request.send_counts.empty();
  const size_t own = uneven ? request.send_counts[options_.rank] : request.count;
  std::vector<epl_segment> pieces;
  Status status = Separate(request, own, &pieces);
  if (!status.ok() || request.count == 0) return status;
  const std::vector<size_t> starts = StartsOf(request.send_counts);
  return Group([&] {
    nccl::Result result = nccl::kSuccess;
    size_t first = 0;  // of the piece in the stream
    for (const epl_segment& piece : pieces) {
      if (!uneven) {
        result = libraries_.nccl.ReduceScatter(piece.in, piece.out, piece.count / size, type, op, comm_, stream_.get());
      }
      for (size_t rank = 0; uneven && rank < size; ++rank) {
        const size_t begin = std::max(first, starts[rank]);
        const size_t end = std::min(first + piece.count, starts[rank] + request.send_counts[rank]);
        if (begin >= end) continue;
        char* out = static_cast<char*>(request.segments[0].out) + (begin - starts[rank]) * request.element;
        result = libraries_.nccl.Reduce(At(piece.in, (begin - first) * request.element), out, end - begin, type, op,
                                        static_cast<int>(rank), comm_, stream_.get());
        if (result != nccl::kSuccess && result != nccl::kInProgress) break;
      }
      if (result != nccl::kSuccess && result != nccl::kInProgress) break;
      first += piece.count;
    }
    return result;
  });
}

Status NcclCommunicator::Broadcast(const Request& request) {
  const bool root = request.peer == options_.rank, unknown = !root && request.allocate != nullptr;
  const size_t count = peers_[request.peer].announcement.count;
  const bool pack = !unknown && !SameCuts(request);
  std::vector<epl_segment> pieces;
  Status status;
  if (unknown) {
    std::vector<size_t> counts(options_.size, 0);
    counts[request.peer] = count;
    void* output = nullptr;
    status = AllocateOutput(request, counts, &output);
    pieces.push_back({output, output, count});
  } else {
    status = Pieces(request, pack, root, &pieces);
  }
  if (!status.ok() || count == 0) return status;
  status = Group([&] {
    nccl::Result result = nccl::kSuccess;
    for (const epl_segment& piece : pieces) {
      // The root's own output is not written, and the others' input not read: in place for both.
      void* data = root ? const_cast<void*>(piece.in) : piece.out;
      result = libraries_.nccl.Broadcast(data, data, piece.count * request.element, nccl::kUint8, request.peer, comm_,
                                         stream_.get());
      if (result != nccl::kSuccess && result != nccl::kInProgress) break;
    }
    return result;
  });
  return status.ok() && pack && !root ? Unpack(request, pieces[0]) : status;
}

Status NcclCommunicator::AllGather(const Request& request) {
  std::vector<epl_segment> pieces;
  Status status = Separate(request, 0, &pieces);
  if (!status.ok() || request.count == 0) return status;
  return Group([&] {
    nccl::Result result = nccl::kSuccess;
    for (const epl_segment& piece : pieces) {
      result = libraries_.nccl.AllGather(piece.in, piece.out, piece.count * request.element, nccl::kUint8, comm_,
                                         stream_.get());
      if (result != nccl::kSuccess && result != nccl::kInProgress) break;
    }
    return result;
  });
}

Status NcclCommunicator::AllGatherV(const Request& request) {
  std::vector<size_t> counts;
  for (const Peer& peer : peers_) counts.push_back(peer.announcement.count);
  void* output = nullptr;
  Status status = AllocateOutput(request, counts, &output);
  std::vector<epl_segment> pieces;
  if (status.ok()) status = Pieces(request, request.segments.size() > 1, true, &pieces);
  const std::vector<size_t> starts = StartsOf(counts);
  if (!status.ok() || starts.back() + counts.back() == 0) return status;
  return Group([&] {
    nccl::Result result = nccl::kSuccess;
    for (int rank = 0; rank < options_.size; ++rank) {
      if (counts[rank] == 0) continue;
      char* to = At(output, starts[rank] * request.element);
      result = libraries_.nccl.Broadcast(rank == options_.rank ? pieces[0].in : to, to, counts[rank] * request.element,
                                         nccl::kUint8, rank, comm_, stream_.get());
      if (result != nccl::kSuccess && result != nccl::kInProgress) break;
    }
    return result;
  });
}

// Sends and receives in one group, so that no rank waits for another in a circle; a rank's own part too.
Status NcclCommunicator::Exchange(const std::vector<epl_segment>& sends, const std::vector<epl_segment>& receives,
                                  size_t element) {
  return Group([&] {
    nccl::Result result = nccl::kSuccess;
    for (size_t i = 0; i < sends.size() && (result == nccl::kSuccess || result == nccl::kInProgress); ++i) {
      const int rank = static_cast<int>(i % options_.size);
      if (sends[i].count != 0) {
        result = libraries_.nccl.Send(sends[i].in, sends[i].count * element, nccl::kUint8, rank, comm_, stream_.get());
      }
      if (result != nccl::kSuccess && result != nccl::kInProgress) break;
      if (receives[i].count != 0) {
        result = libraries_.nccl.Recv(receives[i].out, receives[i].count * element, nccl::kUint8, rank, comm_,
                                      stream_.get());
      }
    }
    return result;
  });
}

Status NcclCommunicator::AllToAll(const Request& request) {
  std::vector<epl_segment> pieces, sends, receives;
  Status status = Separate(request, request.count, &pieces);
  if (!status.ok() || request.count == 0) return status;
  for (const epl_segment& piece : pieces) {
    const size_t block = piece.count / options_.size;
    for (int rank = 0; rank < options_.size; ++rank) {
      sends.push_back({At(piece.in, rank * block * request.element), nullptr, block});
      receives.push_back({nullptr, At(piece.out, rank * block * request.element), block});
    }
  }
  return Exchange(sends, receives, request.element);
}

Status NcclCommunicator::AllToAllV(const Request& request) {
  std::vector<size_t> counts;
  for (const Peer& peer : peers_) counts.push_back(peer.send_counts[options_.rank]);
  void* output = nullptr;
  Status status = AllocateOutput(request, counts, &output);
  if (!status.ok()) return status;
  const std::vector<size_t> from = StartsOf(request.send_counts), to = StartsOf(counts);
  std::vector<epl_segment> sends, receives;
  for (int rank = 0; rank < options_.size; ++rank) {
    sends.push_back({At(request.segments[0].in, from[rank] * request.element), nullptr, request.send_counts[rank]});
    receives.push_back({nullptr, At(output, to[rank] * request.element), counts[rank]});
  }
  return Exchange(sends, receives, request.element);
}

Status NcclCommunicator::SendMessage(const Request& request) {
  std::vector<epl_segment> pieces;
  Status status = Pieces(request, request.segments.size() > 1, true, &pieces);
  if (!status.ok() || request.count == 0) return status;
  return Group([&] {
    return libraries_.nccl.Send(pieces[0].in, request.count * request.element, nccl::kUint8, request.peer, comm_,
                                stream_.get());
  });
}

Status NcclCommunicator::ReceiveMessage(const Request& request) {
  const size_t count = peers_[request.peer].announcement.count;
  const bool pack = request.allocate == nullptr && request.segments.size() > 1;
  std::vector<epl_segment> pieces;
  Status status;
  if (request.allocate != nullptr) {
    std::vector<size_t> counts(options_.size, 0);
    counts[request.peer] = count;
    void* output = nullptr;
    status = AllocateOutput(request, counts, &output);
    pieces.push_back({nullptr, output, count});
  } else {
    status = Pieces(request, pack, false, &pieces);
  }
  if (!status.ok() || count == 0) return status;
  status = Group([&] {
    return libraries_.nccl.Recv(pieces[0].out, count * request.element, nccl::kUint8, request.peer, comm_,
                                stream_.get());
  });
  return status.ok() && pack ? Unpack(request, pieces[0]) : status;
}

}  // namespace epl
