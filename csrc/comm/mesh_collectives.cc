// The collectives of mesh_communicator.h, after the round of heads.
#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "mesh_communicator.h"

namespace epl {
namespace {

// Large reductions go through pieces of this size, so that one is on its way while another is reduced.
constexpr size_t kPieceBytes = 4 * 1024 * 1024;

}  // namespace

// All data has come with the heads.
Status MeshCommunicator::SmallReduce(const Request& request) {
  if (request.collective == EPL_REDUCE && request.peer != options_.rank) return Status();
  std::vector<const void*> sources(options_.size);
  size_t at = 0;
  request.ForRange(0, request.count, [&](const epl_segment& segment, size_t begin, size_t end) {
    for (int rank = 0; rank < options_.size; ++rank) sources[rank] = heads_[rank].inline_data + at;
    Reduce(ReductionOf(request), sources.data(), options_.size,
           static_cast<char*>(segment.out) + begin * request.element, nullptr, end - begin);
    at += (end - begin) * request.element;
  });
  return Status();
}

// Piece by piece: shares to those who reduce them, then results to those who want them. The shares of the next piece
// are on their way while this one is reduced and its results travel.
Status MeshCommunicator::LargeReduce(const Request& request) {
  const size_t size = static_cast<size_t>(options_.size), me = static_cast<size_t>(options_.rank);
  const size_t element = request.element;
  const bool to_all = request.collective == EPL_ALL_REDUCE;
  const size_t share = std::min(CeilDivide(request.count, size), std::max<size_t>(1, kPieceBytes / size / element));
  const size_t step = share * size;
  const size_t pieces = CeilDivide(request.count, step);
  const auto bounds = [&](size_t piece, size_t rank, size_t* begin) {  // returns the length of a share, in elements
    *begin = std::min(request.count, piece * step + rank * share);
    return std::min(request.count, *begin + share) - *begin;
  };
  for (int i = 0; i < 2; ++i) {
    stage_[i].resize(step * element);
    arrived_[i].resize(step * element);
  }
  result_.resize(share * element);
  Mesh::Transfers shares[2];
  const auto scatter = [&](size_t piece) {
    std::vector<Block> sends, receives;
    size_t begin;
    const size_t first = piece * step;
    request.Gather(first, std::min(request.count, first + step), stage_[piece % 2].data());
    for (size_t i = 1; i < size; ++i) {
      const size_t to = (me + i) % size, from = (me + size - i) % size;
      const size_t length = bounds(piece, to, &begin);
      sends.push_back({static_cast<int>(to), stage_[piece % 2].data() + to * share * element, length * element});
      receives.push_back({static_cast<int>(from), arrived_[piece % 2].data() + from * share * element,
                          bounds(piece, me, &begin) * element});
    }
    Start(sends, receives, &shares[piece % 2]);
  };
  std::vector<const void*> sources(size);
  if (pieces > 0) scatter(0);
  for (size_t piece = 0; piece < pieces; ++piece) {
    if (piece + 1 < pieces) scatter(piece + 1);
    Status status = mesh_->Wait(&shares[piece % 2], what_);
    if (!status.ok()) return status;
    char* stage = stage_[piece % 2].data();
    size_t begin;
    const size_t mine = bounds(piece, me, &begin);
    for (size_t rank = 0; rank < size; ++rank) sources[rank] = arrived_[piece % 2].data() + rank * share * element;
    sources[me] = stage + me * share * element;
    Reduce(ReductionOf(request), sources.data(), options_.size, result_.data(), nullptr, mine);

    std::vector<Block> sends, receives;
    for (size_t i = 1; i < size; ++i) {
      const size_t to = (me + i) % size, from = (me + size - i) % size;
      if (to_all || static_cast<int>(to) == request.peer) {
        sends.push_back({static_cast<int>(to), result_.data(), mine * element});
      }
      if (to_all || options_.rank == request.peer) {
        size_t unused;
        receives.push_back(
            {static_cast<int>(from), stage + from * share * element, bounds(piece, from, &unused) * element});
      }
    }
    status = Exchange(sends, receives);
    if (!status.ok()) return status;
    if (!to_all && options_.rank != request.peer) continue;
    std::memcpy(stage + me * share * element, result_.data(), mine * element);
    request.Scatter(piece * step, std::min(request.count, (piece + 1) * step), stage);
  }
  return Status();
}

Status MeshCommunicator::Broadcast(const Request& request) {
  const bool root = request.peer == options_.rank;
  const Head& head = heads_[request.peer];
  const size_t count = head.announcement.count;
  const size_t bytes = count * request.element;
  char* out = nullptr;
  if (!root && request.allocate != nullptr) {
    std::vector<size_t> counts(options_.size, 0);
    counts[request.peer] = count;
    Status status = Allocate(request, counts, request.peer, &out);
    if (!status.ok()) return status;
  }
  if (Inline(EPL_BROADCAST, count, request.element)) {
    if (!root && out != nullptr) CopyBytes(out, head.inline_data, bytes);
    if (!root && out == nullptr) request.Scatter(0, count, head.inline_data);
    return Status();
  }
  const bool whole = request.segments.size() == 1;
  std::vector<Block> sends, receives;
  if (root) {
    char* data = whole ? static_cast<char*>(const_cast<void*>(request.segments[0].in)) : nullptr;
    if (!whole) {
      stage_[0].resize(bytes);
      data = stage_[0].data();
      request.Gather(0, count, data);
    }
    for (int i = 1; i < options_.size; ++i) sends.push_back({(options_.rank + i) % options_.size, data, bytes});
    return Exchange(sends, receives);
  }
  char* to = out != nullptr ? out : (whole ? static_cast<char*>(request.segments[0].out) : nullptr);
  if (to == nullptr) {
    stage_[0].resize(bytes);
    to = stage_[0].data();
  }
  receives.push_back({request.peer, to, bytes});
  Status status = Exchange(sends, receives);
  if (status.ok() && out == nullptr && !whole) request.Scatter(0, count, to);
  return status;
}

Status MeshCommunicator::AllGather(const Request& request) {
  const size_t element = request.element;
  const bool small = Inline(EPL_ALL_GATHER, request.count, element);
  size_t at = 0;
  for (const epl_segment& segment : request.segments) {
    const size_t bytes = segment.count * element;
    char* out = static_cast<char*>(segment.out);
    std::vector<Block> sends, receives;
    if (bytes == 0) continue;
    CopyBytes(out + options_.rank * bytes, segment.in, bytes);
    for (int i = 1; i < options_.size; ++i) {
      const int to = (options_.rank + i) % options_.size;
      if (small) {
        CopyBytes(out + to * bytes, heads_[to].inline_data + at, bytes);
      } else {
        sends.push_back({to, out + options_.rank * bytes, bytes});
        receives.push_back({to, out + to * bytes, bytes});
      }
    }
    at += bytes;
    Status status = Exchange(sends, receives);
    if (!status.ok()) return status;
  }
  return Status();
}

Status MeshCommunicator::AllGatherV(const Request& request) {
  const size_t element = request.element;
  std::vector<size_t> counts(options_.size), starts(options_.size, 0);
  for (int rank = 0; rank < options_.size; ++rank) {
    counts[rank] = heads_[rank].announcement.count;
    if (rank > 0) starts[rank] = starts[rank - 1] + counts[rank - 1];
  }
  char* out = nullptr;
  Status status = Allocate(request, counts, -1, &out);
  if (!status.ok()) return status;
  char* mine = out + starts[options_.rank] * element;
  request.Gather(0, request.count, mine);
  std::vector<Block> sends, receives;
  for (int i = 1; i < options_.size; ++i) {
    const int to = (options_.rank + i) % options_.size;
    const size_t bytes = counts[to] * element;
    if (!Inline(EPL_ALL_GATHER_V, request.count, element)) sends.push_back({to, mine, request.count * element});
    if (!Inline(EPL_ALL_GATHER_V, counts[to], element)) {
      receives.push_back({to, out + starts[to] * element, bytes});
    } else {
      CopyBytes(out + starts[to] * element, heads_[to].inline_data, bytes);
    }
  }
  return Exchange(sends, receives);
}

// Even shares: every segment by itself. Uneven ones: one segment, whose shares lie in rank order.
Status MeshCommunicator::ReduceScatter(const Request& request) {
  const size_t size = static_cast<size_t>(options_.size), me = static_cast<size_t>(options_.rank);
  const size_t element = request.element;
  std::vector<std::vector<char>> copies(size);
  for (const Shares& part : SharesOf(request, size)) {
    const size_t step = std::max<size_t>(1, kPieceBytes / size / element);
    for (size_t first = 0; first < part.longest; first += step) {
      const auto length = [&](size_t rank) {
        return part.counts[rank] > first ? std::min(step, part.counts[rank] - first) : 0;
      };
      const auto input = [&](size_t rank) {
        const size_t begin = part.starts[rank] + first;
        return const_cast<char*>(request.InputOf(begin, begin + length(rank), &copies[rank]));
      };
      std::vector<Block> sends, receives;
      std::vector<const void*> sources(size);
      arrived_[0].resize(size * step * element);
      for (size_t i = 1; i < size; ++i) {
        const size_t to = (me + i) % size, from = (me + size - i) % size;
        sends.push_back({static_cast<int>(to), input(to), length(to) * element});
        receives.push_back({static_cast<int>(from), arrived_[0].data() + from * step * element, length(me) * element});
        sources[from] = receives.back().data;
      }
      Status status = Exchange(sends, receives);
      if (!status.ok()) return status;
      if (length(me) == 0) continue;
      sources[me] = input(me);
      Reduce(ReductionOf(request), sources.data(), options_.size, static_cast<char*>(part.out) + first * element,
             nullptr, length(me));
    }
  }
  return Status();
}

Status MeshCommunicator::AllToAll(const Request& request) {
  const size_t me = static_cast<size_t>(options_.rank), size = static_cast<size_t>(options_.size);
  for (const epl_segment& segment : request.segments) {
    const size_t bytes = segment.count / size * request.element;
    if (bytes == 0) continue;
    char* out = static_cast<char*>(segment.out);
    char* in = static_cast<char*>(const_cast<void*>(segment.in));
    if (in == out) {
      stage_[0].assign(in, in + bytes * size);
      in = stage_[0].data();
    }
    std::vector<Block> sends, receives;
    CopyBytes(out + me * bytes, in + me * bytes, bytes);
    for (size_t i = 1; i < size; ++i) {
      const size_t to = (me + i) % size, from = (me + size - i) % size;
      sends.push_back({static_cast<int>(to), in + to * bytes, bytes});
      receives.push_back({static_cast<int>(from), out + from * bytes, bytes});
    }
    Status status = Exchange(sends, receives);
    if (!status.ok()) return status;
  }
  return Status();
}

Status MeshCommunicator::AllToAllV(const Request& request) {
  const size_t me = static_cast<size_t>(options_.rank), size = static_cast<size_t>(options_.size);
  const size_t element = request.element;
  std::vector<size_t> counts(size), starts(size, 0), out_starts(size, 0);
  for (size_t rank = 0; rank < size; ++rank) {
    counts[rank] = heads_[rank].counts[me];
    if (rank == 0) continue;
    starts[rank] = starts[rank - 1] + request.send_counts[rank - 1];
    out_starts[rank] = out_starts[rank - 1] + counts[rank - 1];
  }
  char* out = nullptr;
  Status status = Allocate(request, counts, -1, &out);
  if (!status.ok()) return status;
  char* in = static_cast<char*>(const_cast<void*>(request.segments[0].in));
  CopyBytes(out + out_starts[me] * element, in + starts[me] * element, counts[me] * element);
  std::vector<Block> sends, receives;
  for (size_t i = 1; i < size; ++i) {
    const size_t to = (me + i) % size, from = (me + size - i) % size;
    sends.push_back({static_cast<int>(to), in + starts[to] * element, request.send_counts[to] * element});
    receives.push_back({static_cast<int>(from), out + out_starts[from] * element, counts[from] * element});
  }
  return Exchange(sends, receives);
}

Status MeshCommunicator::SendMessage(const Request& request) {
  const std::string head = MakeHead(request);
  Mesh::Transfers transfers;
  mesh_->Send(request.peer, Slot::kHead, head.data(), head.size(), &transfers);
  Status status = mesh_->Wait(&transfers, what_);
  if (!status.ok() || Inline(EPL_SEND, request.count, request.element)) return status;
  char* data = static_cast<char*>(const_cast<void*>(request.segments[0].in));
  const size_t bytes = request.count * request.element;
  if (request.segments.size() != 1) {
    stage_[0].resize(bytes);
    data = stage_[0].data();
    request.Gather(0, request.count, data);
  }
  return Exchange({{request.peer, data, bytes}}, {});
}

Status MeshCommunicator::ReceiveMessage(const Request& request) {
  Head& head = heads_[request.peer];
  Mesh::Transfers transfers;
  ReceiveHead(request.peer, &transfers);
  Status status = mesh_->Wait(&transfers, what_);
  if (status.ok()) status = ReadHead(request.peer);
  if (status.ok()) status = CompareMessage(options_, request, head.announcement);
  if (!status.ok()) return status;
  const size_t count = head.announcement.count;
  const size_t bytes = count * request.element;
  char* out = nullptr;
  if (request.allocate != nullptr) {
    std::vector<size_t> counts(options_.size, 0);
    counts[request.peer] = count;
    status = Allocate(request, counts, request.peer, &out);
    if (!status.ok()) return status;
  }
  if (Inline(EPL_SEND, count, request.element)) {
    if (out != nullptr) CopyBytes(out, head.inline_data, bytes);
    if (out == nullptr) request.Scatter(0, count, head.inline_data);
    return Status();
  }
  if (out != nullptr) return Exchange({}, {{request.peer, out, bytes}});
  stage_[0].resize(bytes);
  status = Exchange({}, {{request.peer, stage_[0].data(), bytes}});
  if (status.ok()) request.Scatter(0, count, stage_[0].data());
  return status;
}

}  // namespace epl
