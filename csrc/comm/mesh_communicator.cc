#include "mesh_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace epl {
namespace {

bool HasCounts(int collective) { return collective == EPL_ALL_TO_ALL_V; }

}  // namespace

MeshCommunicator::MeshCommunicator(const Options& options, const char* backend, std::unique_ptr<Mesh> mesh)
    : options_(options), backend_(backend), mesh_(std::move(mesh)), heads_(options.size) {}

MeshCommunicator::~MeshCommunicator() { Leave(); }

Reduction MeshCommunicator::ReductionOf(const Request& request) const {
  return Reduction{request.dtype, request.reduce_op, request.scale, options_.size};
}

// Whether the sender of such an announcement has put its data into the head.
bool MeshCommunicator::Inline(int collective, uint64_t count, size_t element) const {
  switch (collective) {
    case EPL_ALL_REDUCE:
    case EPL_REDUCE:
    case EPL_BROADCAST:
    case EPL_ALL_GATHER:
    case EPL_ALL_GATHER_V:
    case EPL_SEND:
      return count <= kInlineBytes / element;
    default:
      return false;
  }
}

std::string MeshCommunicator::MakeHead(const Request& request) const {
  Announcement announcement = {};
  Announce(request, options_.rank, &announcement);
  std::string message(reinterpret_cast<const char*>(&announcement), kHeadBytes + request.header.size());
  if (HasCounts(request.collective)) {
    for (size_t n : request.send_counts) {
      const uint64_t count = n;
      message.append(reinterpret_cast<const char*>(&count), sizeof(count));
    }
  }
  const bool receiver = request.collective == EPL_BROADCAST && request.peer != options_.rank;
  if (!receiver && Inline(request.collective, request.count, request.element)) {
    const size_t at = AlignInHead(message.size());
    message.resize(at + request.count * request.element);
    request.Gather(0, request.count, &message[at]);
  }
  return message;
}

// Reads what rank `rank` has sent. The lengths in it are not trusted: they stay within the buffer that was offered.
Status MeshCommunicator::ReadHead(int rank) {
  Head& head = heads_[rank];
  const Status bad(EPL_INTERNAL, Format("%s sent a damaged head", options_.Name(rank).c_str()));
  if (head.received < kHeadBytes) return bad;
  std::memcpy(&head.announcement, head.message.data(), kHeadBytes);
  const Announcement& sent = head.announcement;
  const uint32_t length = sent.header_length;
  const size_t element = SizeOf(sent.dtype);
  if (length > kMaxHeaderBytes || element == 0) return bad;
  const bool counts = HasCounts(sent.collective);
  const size_t lists = kHeadBytes + length + (counts ? static_cast<size_t>(options_.size) * sizeof(uint64_t) : 0);
  if (head.received < lists) return bad;
  std::memcpy(head.announcement.header, head.message.data() + kHeadBytes, length);
  const char* at = head.message.data() + kHeadBytes + length;
  head.counts.clear();
  if (counts) {
    uint64_t sum = 0;
    for (int i = 0; i < options_.size; ++i) {
      uint64_t count;
      std::memcpy(&count, at, sizeof(count));
      at += sizeof(count);
      if (count > sent.count - sum) return bad;
      sum += count;
      head.counts.push_back(count);
    }
  }
  head.inline_data = head.message.data() + AlignInHead(lists);
  const bool has_data =
      Inline(sent.collective, sent.count, element) && (sent.collective != EPL_BROADCAST || sent.peer == rank);
  return has_data && head.received < AlignInHead(lists) + sent.count * element ? bad : Status();
}

void MeshCommunicator::ReceiveHead(int rank, Mesh::Transfers* transfers) {
  Head& head = heads_[rank];
  head.message.resize(MaxHeadBytes(options_.size));
  head.received = head.message.size();
  mesh_->Receive(rank, Slot::kHead, head.message.data(), head.message.size(), transfers, &head.received);
}

Status MeshCommunicator::Heads(const Request& request) {
  const std::string mine = MakeHead(request);
  Mesh::Transfers sends, receives;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (rank == options_.rank) {
      heads_[rank].message.assign(mine.begin(), mine.end());
      heads_[rank].received = mine.size();
    } else {
      ReceiveHead(rank, &receives);
    }
  }
  for (int i = 1; i < options_.size; ++i) {
    mesh_->Send((options_.rank + i) % options_.size, Slot::kHead, mine.data(), mine.size(), &sends);
  }
  Status status = mesh_->Wait(&receives, what_);
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) status = ReadHead(rank);
  for (int rank = 0; rank < options_.size && status.ok(); ++rank) {
    if (rank == options_.rank) continue;
    status = CompareAnnouncements(options_, heads_[options_.rank].announcement, rank, heads_[rank].announcement);
  }
  // Last, for a rank that calls something else may never take this one's head.
  return status.ok() ? mesh_->Wait(&sends, what_) : status;
}

void MeshCommunicator::Start(const std::vector<Block>& sends, const std::vector<Block>& receives,
                             Mesh::Transfers* transfers) {
  for (const Block& block : receives) {
    if (block.bytes > 0) mesh_->Receive(block.peer, Slot::kData, block.data, block.bytes, transfers);
  }
  for (const Block& block : sends) {
    if (block.bytes > 0) mesh_->Send(block.peer, Slot::kData, block.data, block.bytes, transfers);
  }
}

Status MeshCommunicator::Exchange(const std::vector<Block>& sends, const std::vector<Block>& receives) {
  Mesh::Transfers transfers;
  Start(sends, receives, &transfers);
  return mesh_->Wait(&transfers, what_);
}

Status MeshCommunicator::Allocate(const Request& request, const std::vector<size_t>& counts, int root, char** out) {
  const Announcement* announcement = root >= 0 ? &heads_[root].announcement : nullptr;
  *out = static_cast<char*>(request.allocate(request.arg, counts.data(), options_.size,
                                             announcement == nullptr ? nullptr : announcement->header,
                                             announcement == nullptr ? 0 : announcement->header_length));
  return *out != nullptr ? Status() : Refused(request, what_ + ": ");
}

Status MeshCommunicator::Reductions(const Request& request) {
  return Inline(request.collective, request.count, request.element) ? SmallReduce(request) : LargeReduce(request);
}

Status MeshCommunicator::Dispatch(const Request& request) {
  const Status status = request.IsPointToPoint() ? Status() : Heads(request);
  return status.ok() ? RunCollective(request) : status;
}

Status MeshCommunicator::Run(const Request& request) {
  what_ = Describe(request, options_) + " on communicator '" + options_.name + "'";
  // What this rank needs may have come long ago, but the others may have given up since.
  Status status = mesh_->Health();
  if (status.ok()) status = Dispatch(request);
  if (!status.ok()) Abort(status.code, status.message);
  return status;
}

Status MeshCommunicator::Health() {
  Status status = mesh_->Health();
  if (!status.ok()) Abort(status.code, status.message);
  return status;
}

}  // namespace epl
