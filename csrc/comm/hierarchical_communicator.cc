#include "hierarchical_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace epl {
namespace {

// Returns the buffer that the caller knows already.
void* TakeBuffer(void* arg, const size_t*, int, const uint8_t*, size_t) { return arg; }

}  // namespace

HierarchicalCommunicator::HierarchicalCommunicator(const Options& options, const HostLayout& layout, Mesh* mesh,
                                                   std::unique_ptr<Communicator> flat,
                                                   std::unique_ptr<Communicator> local)
    : options_(options),
      layout_(layout),
      host_(layout.HostOf(options.rank)),
      place_(layout.PlaceOf(options.rank)),
      mesh_(mesh),
      flat_(std::move(flat)),
      local_(std::move(local)),
      announcements_(layout.ranks[host_].size()),
      heads_(options.size) {}

void HierarchicalCommunicator::Abort(int code, const std::string& reason) {
  local_->Abort(code, reason);
  flat_->Abort(code, reason);
}

void HierarchicalCommunicator::Leave() {
  local_->Leave();
  flat_->Leave();
}

Status HierarchicalCommunicator::Health() {
  Status status = flat_->Health();
  if (status.ok()) status = local_->Health();
  if (!status.ok()) Abort(status.code, status.message);
  return status;
}

// A part of the request under way, between the ranks of this host. They have agreed on the whole already.
Request HierarchicalCommunicator::Local(epl_collective collective, epl_dtype dtype, const void* in, void* out,
                                        size_t count) const {
  Request request;
  request.collective = collective;
  request.dtype = dtype;
  request.segments.push_back({in, out, count});
  request.offsets = {0, count};
  request.count = count;
  request.element = SizeOf(dtype);
  request.shown = shown_;
  request.extra_wait_s = 2 * std::min(1.0, options_.timeout_s / 4);
  return request;
}

// `out` gets what the ranks of this host give, in their order; it must not be NULL.
Status HierarchicalCommunicator::LocalGatherV(epl_dtype dtype, const void* in, size_t count, void* out) {
  Request request = Local(EPL_ALL_GATHER_V, dtype, in, nullptr, count);
  request.allocate = &TakeBuffer;
  request.arg = out;
  return local_->Run(request);
}

Status HierarchicalCommunicator::LocalBroadcast(int root, void* data, size_t bytes) {
  Request request = Local(EPL_BROADCAST, EPL_UINT8, data, data, bytes);
  request.peer = root;
  return local_->Run(request);
}

Status HierarchicalCommunicator::Compare(int rank, const Announcement& other) const {
  return CompareAnnouncements(options_, announcements_[place_], rank, other);
}

// The ranks of this host tell each other what they are about to do.
Status HierarchicalCommunicator::Agree(const Request& request) {
  Announcement mine = {};
  Announce(request, options_.rank, &mine);
  Request round = Local(EPL_ALL_GATHER, EPL_UINT8, &mine, announcements_.data(), sizeof(mine));
  round.extra_wait_s = 0;
  Status status = local_->Run(round);
  for (size_t i = 0; i < Host().size() && status.ok(); ++i) {
    if (static_cast<int>(i) != place_) status = Compare(Host()[i], announcements_[i]);
  }
  return status;
}

void HierarchicalCommunicator::StartHeads(const std::vector<int>& to, const std::vector<int>& from,
                                          const Announcement& mine, const void* data, size_t bytes) {
  head_.assign(reinterpret_cast<const char*>(&mine), kHeadBytes + mine.header_length);
  if (bytes > 0) {
    const size_t at = AlignInHead(head_.size());
    head_.resize(at + bytes);
    std::memcpy(&head_[at], data, bytes);
  }
  for (int rank : from) {
    heads_[rank].message.resize(MaxHeadBytes(options_.size));
    Head& head = heads_[rank];
    head.received = head.message.size();
    mesh_->Receive(rank, Slot::kHead, head.message.data(), head.message.size(), &head_receives_, &head.received);
  }
  for (int rank : to) mesh_->Send(rank, Slot::kHead, head_.data(), head_.size(), &head_sends_);
}

Status HierarchicalCommunicator::Damaged(int rank) const {
  return Status(EPL_INTERNAL, Format("%s sent a damaged head", options_.Name(rank).c_str()));
}

// Reads what rank `rank` has sent. The lengths in it are not trusted: they stay within the buffer that was offered.
Status HierarchicalCommunicator::ReadHead(int rank) {
  Head& head = heads_[rank];
  if (head.received < kHeadBytes) return Damaged(rank);
  std::memcpy(&head.announcement, head.message.data(), kHeadBytes);
  const uint32_t length = head.announcement.header_length;
  if (length > kMaxHeaderBytes || SizeOf(head.announcement.dtype) == 0 || head.received < kHeadBytes + length) {
    return Damaged(rank);
  }
  std::memcpy(head.announcement.header, head.message.data() + kHeadBytes, length);
  head.data = head.message.data() + AlignInHead(kHeadBytes + length);
  return Status();
}

Status HierarchicalCommunicator::WaitHeads(const std::vector<int>& from) {
  Status status = mesh_->Wait(&head_receives_, what_);
  for (size_t i = 0; i < from.size() && status.ok(); ++i) {
    status = ReadHead(from[i]);
    if (status.ok()) status = Compare(from[i], heads_[from[i]].announcement);
  }
  // Last, for a rank that calls something else may never take this one's head.
  return status.ok() ? mesh_->Wait(&head_sends_, what_) : status;
}

// Whether the request is split over hosts and their ranks. Reductions are not where a partial result would lose what
// the whole has: 16-bit floats would be rounded twice, and integers cannot be averaged in parts.
bool HierarchicalCommunicator::Built(const Request& request) const {
  switch (request.collective) {
    case EPL_BROADCAST:
    case EPL_ALL_GATHER:
    case EPL_ALL_GATHER_V:
    case EPL_BARRIER:
      return true;
    case EPL_ALL_REDUCE: {
      const bool exact = request.reduce_op == EPL_MIN || request.reduce_op == EPL_MAX;
      const bool wide = request.dtype == EPL_FLOAT32 || request.dtype == EPL_FLOAT64;
      if (request.scale != 1.0 && !wide) return false;
      return exact || wide || (request.reduce_op != EPL_MEAN && !IsFloating(request.dtype));
    }
    default:
      return false;
  }
}

Status HierarchicalCommunicator::Dispatch(const Request& request) {
  if (request.IsPointToPoint()) return flat_->Run(request);
  Status status = Agree(request);
  if (!status.ok()) return status;
  if (!Built(request)) return flat_->Run(request);
  switch (request.collective) {
    case EPL_ALL_REDUCE:
      return request.count * request.element <= kInlineBytes ? SmallAllReduce(request) : LargeAllReduce(request);
    case EPL_BROADCAST:
      return Broadcast(request);
    case EPL_BARRIER:
      return Barrier();
    default:
      return AllGather(request);
  }
}

Status HierarchicalCommunicator::Run(const Request& request) {
  shown_ = Describe(request, options_);
  what_ = shown_ + " on communicator '" + options_.name + "'";
  Status status = mesh_->Health();  // as in MeshCommunicator::Run
  if (status.ok()) status = Dispatch(request);
  if (!status.ok()) Abort(status.code, status.message);
  return status;
}

}  // namespace epl
