// The collectives of hierarchical_communicator.h, after the ranks of this host have agreed.
#include <algorithm>
#include <cstring>

#include "bytes.h"
#include "hierarchical_communicator.h"

namespace epl {
namespace {

// The stripe of one rank in one piece of a long message: several pieces are on their way at once.
constexpr size_t kStripeBytes = 512 * 1024;

// Where elements [begin, end) of the stream lie in one row; NULL if they do not.
const epl_segment* SegmentWith(const Request& request, size_t begin, size_t end, size_t* at) {
  if (begin >= end) return nullptr;
  const size_t i =
      std::upper_bound(request.offsets.begin(), request.offsets.end(), begin) - request.offsets.begin() - 1;
  if (end > request.offsets[i + 1]) return nullptr;
  *at = (begin - request.offsets[i]) * request.element;
  return &request.segments[i];
}

}  // namespace

// The sum of each host goes to its leader, with the heads to the other leaders, and from the leader to its host.
Status HierarchicalCommunicator::SmallAllReduce(const Request& request) {
  const size_t bytes = request.count * request.element;
  small_.resize(kInlineBytes);
  result_.resize(kInlineBytes);
  request.Gather(0, request.count, small_.data());
  Request sum = Local(EPL_REDUCE, request.dtype, small_.data(), result_.data(), request.count);
  sum.reduce_op = request.reduce_op == EPL_MEAN ? EPL_SUM : request.reduce_op;
  Status status = local_->Run(sum);
  if (status.ok() && place_ == 0) {
    const std::vector<int> leaders = layout_.Counterparts(host_, 0);
    StartHeads(leaders, leaders, announcements_[place_], result_.data(), bytes);
    status = WaitHeads(leaders);
    for (int leader : leaders) {
      if (status.ok() && !heads_[leader].Has(bytes)) status = Damaged(leader);
    }
    if (status.ok()) {
      std::vector<const void*> sources;
      for (int host = 0; host < layout_.size(); ++host) {
        sources.push_back(host == host_ ? result_.data() : heads_[layout_.ranks[host][0]].data);
      }
      Reduce(Reduction{request.dtype, request.reduce_op, request.scale, options_.size}, sources.data(), layout_.size(),
             result_.data(), nullptr, request.count);
    }
  }
  if (status.ok()) status = LocalBroadcast(0, result_.data(), bytes);
  if (status.ok()) request.Scatter(0, request.count, result_.data());
  return status;
}

// Each piece goes through: reduce-scatter within the host, which gives each crossing rank its stripe; shares of the
// stripe to the counterparts, which reduce them; their results back; all-gather within the host. Three pieces are under
// way at once, so that the network is busy while ranks work in memory.
Status HierarchicalCommunicator::LargeAllReduce(const Request& request) {
  const size_t element = request.element, count = request.count;
  const size_t stripes = static_cast<size_t>(layout_.stripes), hosts = static_cast<size_t>(layout_.size());
  const size_t stripe = std::min(CeilDivide(count, stripes), kStripeBytes / element);
  const size_t step = stripe * stripes, pieces = CeilDivide(count, step);
  const size_t share = CeilDivide(stripe, hosts), me = static_cast<size_t>(host_);
  const auto piece_of = [&](size_t p) { return Range{p * step, std::min(count, (p + 1) * step)}; };
  const auto stripe_length = [&](size_t p, size_t place) {
    const size_t length = piece_of(p).size();
    return place < stripes ? std::min(length, (place + 1) * stripe) - std::min(length, place * stripe) : 0;
  };
  const auto share_of = [&](size_t p, size_t host) {  // within this rank's stripe
    const size_t length = stripe_length(p, static_cast<size_t>(place_));
    return Range{std::min(length, host * share), std::min(length, (host + 1) * share)};
  };
  const auto each_host = [&](const auto& visit) {  // but this one
    for (size_t i = 1; i < hosts; ++i) visit((me + i) % hosts, layout_.ranks[(me + i) % hosts][place_]);
  };
  const auto scatter = [&](size_t p) {  // sums of this host to those who reduce them over the hosts
    Stage& stage = stages_[p % kStages];
    stage.arrived.resize(share * hosts * element);
    each_host([&](size_t host, int rank) {
      const size_t bytes = share_of(p, me).size() * element;
      if (bytes == 0) return;
      mesh_->Receive(rank, Slot::kData, stage.arrived.data() + host * share * element, bytes, &stage.scatter);
    });
    each_host([&](size_t host, int rank) {
      const Range range = share_of(p, host);
      if (range.size() == 0) return;
      mesh_->Send(rank, Slot::kData, stage.stripe.data() + range.begin * element, range.size() * element,
                  &stage.scatter);
    });
  };
  std::vector<const void*> sources(hosts);
  const auto reduce = [&](size_t p) {  // and the results back
    Stage& stage = stages_[p % kStages];
    Status status = mesh_->Wait(&stage.scatter, what_);
    if (!status.ok()) return status;
    const Range mine = share_of(p, me);
    char* result = stage.stripe.data() + mine.begin * element;
    for (size_t host = 0; host < hosts; ++host) sources[host] = stage.arrived.data() + host * share * element;
    sources[me] = result;
    Reduce(Reduction{request.dtype, request.reduce_op, request.scale, options_.size}, sources.data(),
           static_cast<int>(hosts), result, nullptr, mine.size());
    each_host([&](size_t host, int rank) {
      const Range range = share_of(p, host);
      if (range.size() == 0) return;
      mesh_->Receive(rank, Slot::kData, stage.stripe.data() + range.begin * element, range.size() * element,
                     &stage.gather);
    });
    each_host([&](size_t, int rank) {
      if (mine.size() > 0) mesh_->Send(rank, Slot::kData, result, mine.size() * element, &stage.gather);
    });
    return Status();
  };
  const auto local_sum = [&](size_t p) {
    Stage& stage = stages_[p % kStages];
    const Range range = piece_of(p);
    stage.stripe.resize(stripe * element);
    const char* in = request.InputOf(range.begin, range.end, &stage.whole);
    Request sum = Local(EPL_REDUCE_SCATTER, request.dtype, in, stage.stripe.data(), range.size());
    sum.reduce_op = request.reduce_op == EPL_MEAN ? EPL_SUM : request.reduce_op;
    for (size_t i = 0; i < Host().size(); ++i) sum.send_counts.push_back(stripe_length(p, i));
    return local_->Run(sum);
  };
  const auto finish = [&](size_t p) {
    Stage& stage = stages_[p % kStages];
    const Range range = piece_of(p);
    Status status = mesh_->Wait(&stage.gather, what_);
    if (!status.ok()) return status;
    size_t at;
    const epl_segment* segment = SegmentWith(request, range.begin, range.end, &at);
    if (segment == nullptr) stage.whole.resize(range.size() * element + 1);
    char* out = segment == nullptr ? stage.whole.data() : static_cast<char*>(segment->out) + at;
    const size_t mine = stripe_length(p, static_cast<size_t>(place_));
    status = LocalGatherV(request.dtype, stage.stripe.data(), mine, out);
    if (status.ok() && segment == nullptr) request.Scatter(range.begin, range.end, out);
    return status;
  };

  const std::vector<int> others = Crosses() ? layout_.Counterparts(host_, place_) : std::vector<int>();
  if (Crosses()) StartHeads(others, others, announcements_[place_], nullptr, 0);
  for (size_t p = 0; p < pieces + 2; ++p) {
    if (p < pieces) {
      Status status = local_sum(p);
      // Nothing reaches a caller's buffer before all descriptions have been compared.
      if (status.ok() && p == 0) status = WaitHeads(others);
      if (!status.ok()) return status;
      if (Crosses()) scatter(p);
    }
    if (p >= 1 && p - 1 < pieces && Crosses()) {
      Status status = reduce(p - 1);
      if (!status.ok()) return status;
    }
    if (p >= 2) {
      Status status = finish(p - 2);
      if (!status.ok()) return status;
    }
  }
  return Status();
}

// All of this host have come, by their agreement; the leaders meet; the host hears of it.
Status HierarchicalCommunicator::Barrier() {
  if (place_ == 0) {
    const std::vector<int> leaders = layout_.Counterparts(host_, 0);
    StartHeads(leaders, leaders, announcements_[place_], nullptr, 0);
    Status status = WaitHeads(leaders);
    if (!status.ok()) return status;
  }
  Request barrier = Local(EPL_BARRIER, EPL_UINT8, nullptr, nullptr, 0);
  return local_->Run(barrier);
}

// The leaders exchange heads, the root's leader with the root's own description and its data if that is small. Each
// leader passes these on to its host, so that every rank compares itself with the root.
Status HierarchicalCommunicator::Broadcast(const Request& request) {
  const std::vector<int>& ranks = Host();
  const bool root = request.peer == options_.rank;
  const size_t near = std::find(ranks.begin(), ranks.end(), request.peer) - ranks.begin();  // the root, if it is here
  const bool at_root = near < ranks.size();
  Announcement info = {};
  small_.assign(sizeof(info) + kInlineBytes, 0);
  char* data = small_.data() + sizeof(info);
  Status status;
  if (at_root) {
    info = announcements_[near];
    const size_t bytes = info.count * request.element;
    if (bytes <= kInlineBytes) {
      if (root) request.Gather(0, request.count, data);
      status = LocalBroadcast(static_cast<int>(near), data, bytes);
      if (!status.ok()) return status;
    }
  }
  if (place_ == 0) {
    const std::vector<int> leaders = layout_.Counterparts(host_, 0);
    const bool small = at_root && info.count * request.element <= kInlineBytes;
    StartHeads(leaders, leaders, at_root ? info : announcements_[0], data, small ? info.count * request.element : 0);
    status = WaitHeads(leaders);
    if (!status.ok()) return status;
    for (int host = 0; host < layout_.size() && !at_root; ++host) {
      const std::vector<int>& there = layout_.ranks[host];
      if (std::find(there.begin(), there.end(), request.peer) == there.end()) continue;
      info = heads_[there[0]].announcement;
      const size_t bytes = info.count * request.element;
      if (info.count > kInlineBytes / request.element) continue;
      if (!heads_[there[0]].Has(bytes)) return Damaged(there[0]);
      std::memcpy(data, heads_[there[0]].data, bytes);
    }
    std::memcpy(small_.data(), &info, sizeof(info));
  }
  status = LocalBroadcast(0, small_.data(), small_.size());
  if (!status.ok()) return status;
  std::memcpy(&info, small_.data(), sizeof(info));
  if (!root) status = Compare(request.peer, info);
  if (!status.ok()) return status;

  char* out = nullptr;
  if (!root && request.allocate != nullptr) {
    std::vector<size_t> counts(options_.size, 0);
    counts[request.peer] = info.count;
    out = static_cast<char*>(
        request.allocate(request.arg, counts.data(), options_.size, info.header, info.header_length));
    if (out == nullptr) return Refused(request, what_ + ": ");
  }
  if (info.count > kInlineBytes / request.element) return BroadcastPieces(request, info.count, near, out);
  if (root) return Status();
  if (out != nullptr) CopyBytes(out, data, info.count * request.element);
  if (out == nullptr) request.Scatter(0, info.count, data);
  return Status();
}

// On the root's host each piece goes round in memory, and its stripes to the counterparts; on the others the stripes
// arrive and are gathered. `out`: the whole result, or NULL when the segments take it.
Status HierarchicalCommunicator::BroadcastPieces(const Request& request, size_t count, size_t near, char* out) {
  const size_t element = request.element, stripes = static_cast<size_t>(layout_.stripes);
  const bool at_root = near < Host().size(), root = request.peer == options_.rank;
  const size_t stripe = std::min(CeilDivide(count, stripes), kStripeBytes / element);
  const size_t step = stripe * stripes, pieces = CeilDivide(count, step);
  const std::vector<int> others = Crosses() ? layout_.Counterparts(host_, place_) : std::vector<int>();
  int source = -1;
  for (const std::vector<int>& there : layout_.ranks) {
    if (Crosses() && std::find(there.begin(), there.end(), request.peer) != there.end()) source = there[place_];
  }
  const auto piece_of = [&](size_t p) { return Range{p * step, std::min(count, (p + 1) * step)}; };
  const auto mine_of = [&](size_t p) {  // this rank's stripe, within the piece
    const size_t length = piece_of(p).size(), place = static_cast<size_t>(place_);
    return Crosses() ? Range{std::min(length, place * stripe), std::min(length, (place + 1) * stripe)} : Range{0, 0};
  };
  const auto memory_of = [&](size_t p) -> char* {
    const Range range = piece_of(p);
    if (out != nullptr) return out + range.begin * element;
    size_t at;
    const epl_segment* segment = SegmentWith(request, range.begin, range.end, &at);
    if (segment != nullptr) return static_cast<char*>(root ? const_cast<void*>(segment->in) : segment->out) + at;
    stages_[p % kStages].whole.resize(range.size() * element);
    return stages_[p % kStages].whole.data();
  };
  const auto receive = [&](size_t p) {
    Stage& stage = stages_[p % kStages];
    stage.stripe.resize(stripe * element);
    const size_t bytes = mine_of(p).size() * element;
    if (bytes > 0) mesh_->Receive(source, Slot::kData, stage.stripe.data(), bytes, &stage.gather);
  };
  for (size_t p = 0; p < kStages - 1 && p < pieces && !at_root; ++p) receive(p);
  for (size_t p = 0; p < pieces; ++p) {
    Stage& stage = stages_[p % kStages];
    // What was sent from the memory of this stage before has left it.
    Status status = mesh_->Wait(&stage.gather, what_);
    if (!status.ok()) return status;
    const Range range = piece_of(p), mine = mine_of(p);
    char* memory = memory_of(p);
    const bool staged = memory == stage.whole.data();
    if (at_root) {
      if (root && staged) request.Gather(range.begin, range.end, memory);
      status = LocalBroadcast(static_cast<int>(near), memory, range.size() * element);
      for (size_t i = 0; status.ok() && i < others.size() && mine.size() > 0; ++i) {
        mesh_->Send(others[i], Slot::kData, memory + mine.begin * element, mine.size() * element, &stage.gather);
      }
    } else {
      status = LocalGatherV(request.dtype, stage.stripe.data(), mine.size(), memory);
      if (p + kStages - 1 < pieces) receive(p + kStages - 1);
    }
    if (!status.ok()) return status;
    if (!root && staged) request.Scatter(range.begin, range.end, memory);
  }
  for (Stage& stage : stages_) {
    Status status = mesh_->Wait(&stage.gather, what_);
    if (!status.ok()) return status;
  }
  return Status();
}

// How many elements every rank gives.
Status HierarchicalCommunicator::GatherCounts(const Request& request, const std::vector<int>& from,
                                              std::vector<size_t>* counts) {
  counts->assign(options_.size, request.count);
  if (request.collective == EPL_ALL_GATHER) return Status();
  const size_t size = static_cast<size_t>(options_.size);
  std::vector<uint64_t> mine(size, 0), all(size * Host().size());
  mine[options_.rank] = request.count;
  for (int rank : from) mine[rank] = heads_[rank].announcement.count;
  Request round = Local(EPL_ALL_GATHER, EPL_INT64, mine.data(), all.data(), size);
  Status status = local_->Run(round);
  if (!status.ok()) return status;
  std::fill(counts->begin(), counts->end(), 0);
  for (size_t i = 0; i < all.size(); ++i) (*counts)[i % size] += all[i];
  return status;
}

// Every rank's data crosses to each other host once, and is gathered there in memory with what the others brought.
Status HierarchicalCommunicator::AllGather(const Request& request) {
  const size_t element = request.element;
  const std::vector<int> carried = layout_.Carried(host_, place_);
  const std::vector<int> from(carried.begin() + 1, carried.end());
  const std::vector<int> to = layout_.Carriers(host_, place_);
  const auto is_inline = [&](size_t count) { return count <= kInlineBytes / element; };
  const size_t inline_bytes = is_inline(request.count) ? request.count * element : 0;
  const char* whole = request.InputOf(0, is_inline(request.count) ? request.count : 0, &small_);
  StartHeads(to, from, announcements_[place_], whole, inline_bytes);
  std::vector<size_t> counts, starts(options_.size, 0);
  Status status = WaitHeads(from);
  if (status.ok()) status = GatherCounts(request, from, &counts);
  if (!status.ok()) return status;
  char* out = nullptr;
  if (request.collective == EPL_ALL_GATHER_V) {
    for (int rank = 1; rank < options_.size; ++rank) starts[rank] = starts[rank - 1] + counts[rank - 1];
    out = static_cast<char*>(request.allocate(request.arg, counts.data(), options_.size, nullptr, 0));
    if (out == nullptr) return Refused(request, what_ + ": ");
  }
  const size_t step = kStripeBytes / element;
  const size_t pieces = std::max<size_t>(1, CeilDivide(*std::max_element(counts.begin(), counts.end()), step));
  const auto part = [&](size_t p, int rank) {
    return Range{std::min(counts[rank], p * step), std::min(counts[rank], (p + 1) * step)};
  };
  const auto put = [&](size_t p, int rank, const char* data) {
    const Range range = part(p, rank);
    if (out != nullptr) return CopyBytes(out + (starts[rank] + range.begin) * element, data, range.size() * element);
    request.ForRange(range.begin, range.end, [&](const epl_segment& segment, size_t begin, size_t end) {
      char* block = static_cast<char*>(segment.out) + static_cast<size_t>(rank) * segment.count * element;
      CopyBytes(block + begin * element, data, (end - begin) * element);
      data += (end - begin) * element;
    });
  };
  // stripe: what this rank brings, in the order of `carried`.
  const auto start = [&](size_t p) {
    Stage& stage = stages_[p % kStages];
    size_t bytes = 1;
    for (int rank : carried) bytes += part(p, rank).size() * element;
    stage.stripe.resize(bytes);
    char* at = stage.stripe.data();
    for (int rank : carried) {
      const Range range = part(p, rank);
      const size_t length = range.size() * element;
      if (rank == options_.rank) {
        request.Gather(range.begin, range.end, at);
      } else if (is_inline(counts[rank])) {
        CopyBytes(at, heads_[rank].data, length);
      } else if (length > 0) {
        mesh_->Receive(rank, Slot::kData, at, length, &stage.gather);
      }
      at += length;
    }
    const size_t mine = part(p, options_.rank).size() * element;
    for (int rank : to) {
      if (!is_inline(request.count) && mine > 0)
        mesh_->Send(rank, Slot::kData, stage.stripe.data(), mine, &stage.gather);
    }
  };
  for (size_t p = 0; p < kStages - 1 && p < pieces; ++p) start(p);
  for (size_t p = 0; p < pieces; ++p) {
    Stage& stage = stages_[p % kStages];
    status = mesh_->Wait(&stage.gather, what_);
    if (!status.ok()) return status;
    size_t bytes = 1;
    for (int rank = 0; rank < options_.size; ++rank) bytes += part(p, rank).size() * element;
    stage.whole.resize(bytes);
    size_t mine = 0;
    for (int rank : carried) mine += part(p, rank).size();
    status = LocalGatherV(request.dtype, stage.stripe.data(), mine, stage.whole.data());
    if (!status.ok()) return status;
    if (p + kStages - 1 < pieces) start(p + kStages - 1);
    const char* at = stage.whole.data();
    for (size_t place = 0; place < Host().size(); ++place) {
      for (int rank : layout_.Carried(host_, static_cast<int>(place))) {
        put(p, rank, at);
        at += part(p, rank).size() * element;
      }
    }
  }
  return Status();
}

}  // namespace epl
