// The group collectives of the shared-memory back end.
#include <algorithm>
#include <cstring>
#include <functional>

#include "bytes.h"
#include "shm_communicator.h"

namespace epl {
namespace {

// Up to here one round, in which every rank reduces everything, is faster than two rounds with a share each. Two ranks
// read as many bytes of each other either way, so for them one round always is.
constexpr size_t kOneRoundBytes = 16 * 1024;

// What one round works on at a time: it stays in the second-level cache between being read and being reduced.
constexpr size_t kRoundBytes = 128 * 1024;

// Results of larger messages go to memory past the caches, which hold the data on its way instead.
constexpr size_t kStreamingBytes = 8 * 1024 * 1024;

struct Range {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// The part of [begin, end) that chunk number `chunk` of `step` elements covers.
Range Piece(size_t begin, size_t end, size_t chunk, size_t step) {
  const size_t first = std::min(end, begin + chunk * step);
  return {first, std::min(end, first + step)};
}

}  // namespace

// Runs a collective whose every chunk takes one phase. fill(c, chunk) puts this rank's part of chunk c where peers can
// read it; drain(c, number) reads the peers' chunks `number` when all have filled theirs. `chunks` is how many there
// are; 0: num_chunks() says so when all descriptions have been compared, so it may use the peers' counts.
//
// While chunks of all peers are there, a rank drains them, as its own part is still in its cache; else it fills ahead,
// up to ahead_ chunks, so that ranks need not run in step:
//
//   fill 0, fill 1, [all filled 0] drain 0, fill 2, [all filled 1] drain 1, fill 3, ...
//
// There are 2 * ahead_ places for chunks. Fill c + ahead_ overwrites chunk c - ahead_; the wait for chunk c has seen
// every peer past fill c, which follows its drain of c - ahead_. The same holds across collectives, for chunks are
// numbered through, and who has filled a chunk of one collective is done with those before.
Status ShmCommunicator::Chunks(const Request& request, size_t chunks, const std::function<size_t()>& num_chunks,
                               const std::function<void(size_t, char*)>& fill,
                               const std::function<void(size_t, uint64_t)>& drain) {
  const uint64_t first_chunk = chunk_;
  const uint32_t first_step = step_;
  size_t filled = 0;
  const auto fill_next = [&] {
    fill(filled++, Me()->chunk(chunk_++));
    Advance();
  };
  Begin(request);
  fill_next();
  for (size_t c = 0; c == 0 || c < chunks; ++c) {
    const uint32_t all_filled = first_step + static_cast<uint32_t>(c) + 1;
    while (filled < std::min(chunks, c + ahead_) && (filled <= c || !AllReached(all_filled))) fill_next();
    Status status = WaitAll(all_filled, request);
    if (status.ok() && c == 0) status = Verify();
    if (!status.ok()) return status;
    if (chunks == 0) {
      chunks = num_chunks();
      if (chunks == 0) return Refused(request, Describe(request, options_) + ": ");
    }
    drain(c, first_chunk + c);
  }
  return Status();
}

Status ShmCommunicator::Barrier(const Request& request) {
  return Chunks(request, 1, nullptr, [](size_t, char*) {}, [](size_t, uint64_t) {});
}

// One round: everyone publishes everything and reduces all of it.
Status ShmCommunicator::OneRoundReduce(const Request& request) {
  const bool wanted = request.collective == EPL_ALL_REDUCE || request.peer == options_.rank;
  const size_t element = request.element;
  const size_t step = kRoundBytes / element;
  Reduction reduction = ReductionOf(request);
  std::vector<const void*> sources(options_.size);
  const auto fill = [&](size_t c, char* chunk) {
    const Range range = Piece(0, request.count, c, step);
    request.Gather(range.begin, range.end, chunk);
  };
  const auto drain = [&](size_t c, uint64_t number) {
    if (!wanted) return;
    const Range range = Piece(0, request.count, c, step);
    size_t at = 0;
    request.ForRange(range.begin, range.end, [&](const epl_segment& segment, size_t begin, size_t end) {
      for (int rank = 0; rank < options_.size; ++rank) sources[rank] = Segment(rank)->chunk(number) + at;
      sources[options_.rank] = static_cast<const char*>(segment.in) + begin * element;
      // Where the result takes the place of the input, that is in the cache already.
      reduction.streaming = request.count * element >= kStreamingBytes && segment.in != segment.out;
      Reduce(reduction, sources.data(), options_.size, static_cast<char*>(segment.out) + begin * element, nullptr,
             end - begin);
      at += (end - begin) * element;
    });
  };
  return Chunks(request, std::max<size_t>(1, CeilDivide(request.count, step)), nullptr, fill, drain);
}

// Two phases a chunk: every rank publishes the shares that others reduce; every rank reduces its own share, into the
// output and into the place of that share in its chunk; everyone copies the shares of the others from there.
// The next chunk is filled before the wait for this one, so that ranks need not run in step:
//
//   fill 0, fill 1, [all filled 0] reduce 0, [all reduced 0] take 0, fill 2, [all filled 1] reduce 1, ...
//
// Why chunks can be used in turn: fill c + 1 overwrites what peers read in reduce c - 1; take c - 1 has waited for
// that. reduce c writes its result where peers read that of c - 2 in take c - 2, which each of them did before it
// filled c. fill never touches the place of this rank's own share.
Status ShmCommunicator::TwoRoundReduce(const Request& request) {
  const int size = options_.size, me = options_.rank;
  const bool to_all = request.collective == EPL_ALL_REDUCE;
  const size_t element = request.element;
  const size_t slot_bytes = kChunkBytes / size / 64 * 64;
  const size_t step = slot_bytes / element * size;
  const size_t chunks = std::max<size_t>(1, CeilDivide(request.count, step));
  const uint64_t first_chunk = chunk_;
  const uint32_t first_step = step_;
  chunk_ += chunks;

  const auto share = [&](size_t c, int rank) {
    const Range all = Piece(0, request.count, c, step);
    const size_t line = 64 / element;
    const size_t each = CeilDivide(CeilDivide(all.size(), size), line) * line;
    return Range{std::min(all.end, all.begin + each * rank), std::min(all.end, all.begin + each * (rank + 1))};
  };
  // Where element `at` of the share of `owner` lies in the chunk of `rank`. Shares have fixed places, whatever their
  // size.
  const auto place = [&](int rank, size_t c, int owner, size_t at) {
    return Segment(rank)->chunk(first_chunk + c) + slot_bytes * owner + (at - share(c, owner).begin) * element;
  };
  const auto fill = [&](size_t c) {
    for (int rank = 0; rank < size; ++rank) {
      const Range range = share(c, rank);
      if (rank != me) request.Gather(range.begin, range.end, place(me, c, rank, range.begin));
    }
    Advance();
  };
  std::vector<const void*> sources(size);
  const auto reduce = [&](size_t c) {
    size_t at = share(c, me).begin;
    request.ForRange(at, share(c, me).end, [&](const epl_segment& segment, size_t begin, size_t end) {
      for (int rank = 0; rank < size; ++rank) sources[rank] = place(rank, c, me, at);
      sources[me] = static_cast<const char*>(segment.in) + begin * element;
      char* mine = place(me, c, me, at);
      const bool direct = to_all || request.peer == me;
      char* out = direct ? static_cast<char*>(segment.out) + begin * element : mine;
      Reduce(ReductionOf(request), sources.data(), size, out, direct && size > 1 && to_all ? mine : nullptr,
             end - begin);
      at += end - begin;
    });
    Advance();
  };
  const auto take = [&](size_t c) {
    if (!to_all && request.peer != me) return;
    for (int i = 1; i < size; ++i) {
      const int rank = (me + i) % size;
      const Range range = share(c, rank);
      request.Scatter(range.begin, range.end, place(rank, c, rank, range.begin));
    }
  };
  // Counter values after fill c and after reduce c, in the order shown above.
  const auto filled = [&](size_t c) { return first_step + static_cast<uint32_t>(c == 0 ? 1 : 2 * c); };
  const auto reduced = [&](size_t c) {
    return first_step + static_cast<uint32_t>(c + 1 < chunks ? 2 * c + 3 : 2 * chunks);
  };

  Begin(request);
  fill(0);
  for (size_t c = 0; c < chunks; ++c) {
    // Nothing after the first chunk moves before all descriptions have been compared.
    if (c == 0) {
      Status status = WaitAll(filled(0), request);
      if (status.ok()) status = Verify();
      if (!status.ok()) return status;
    }
    if (c + 1 < chunks) fill(c + 1);
    Status status = WaitAll(filled(c), request);
    if (!status.ok()) return status;
    reduce(c);
    status = WaitAll(reduced(c), request);
    if (!status.ok()) return status;
    take(c);
  }
  return Status();
}

// All outputs lie in arenas, and so may inputs. Every rank reduces its share of the stream and writes it to where all
// ranks want it. Inputs that lie elsewhere come through chunks, but for the part that their rank reduces by itself.
//
// In place is fine: an element is read and written by that rank alone whose share has it.
Status ShmCommunicator::ReduceInArenas(const Request& request) {
  const int size = options_.size, me = options_.rank;
  const size_t element = request.element;
  // The descriptions of this collective; Chunks begins a further one, whose own lie elsewhere.
  std::vector<const Places*> places(size);
  for (int rank = 0; rank < size; ++rank) places[rank] = &PlacesOf(rank);
  const bool all_inputs = std::all_of(places.begin(), places.end(), [](const Places* of) { return of->inputs != 0; });
  const size_t line = 64 / element;
  const size_t each = CeilDivide(CeilDivide(request.count, size), line) * line;
  const size_t slot_bytes = kChunkBytes / size / 64 * 64;
  const size_t step = all_inputs ? each : slot_bytes / element;
  const auto share = [&](size_t c, int rank) {
    return Piece(std::min(request.count, each * rank), std::min(request.count, each * (rank + 1)), c, step);
  };
  Reduction reduction = ReductionOf(request);
  const bool large = size == 2 && request.count * element >= kStreamingBytes;
  std::vector<const void*> sources(size);
  std::vector<char*> targets(size);
  const auto in_arena = [&](int rank, uint64_t offset) { return group_.ranks[rank]->arena->at(offset); };
  // Chunk c, which peers have put in chunks `number`.
  const auto reduce = [&](size_t c, uint64_t number) {
    const Range range = share(c, me);
    for (size_t at = range.begin, until = at; at < range.end; at = until) {
      until = std::min(range.end, at + kRoundBytes / element);
      for (int rank = 0; rank < size; ++rank) {
        const Places::Piece& piece = places[rank]->Of(at);
        until = std::min<size_t>(until, places[rank]->EndOf(piece));
        const size_t offset = (at - piece.begin) * element;
        targets[rank] = in_arena(rank, piece.out + offset);
        sources[rank] = places[rank]->inputs != 0
                            ? in_arena(rank, piece.in + offset)
                            : Segment(rank)->chunk(number) + slot_bytes * me + (at - range.begin) * element;
      }
      request.ForRange(at, until, [&](const epl_segment& segment, size_t begin, size_t) {
        sources[me] = static_cast<const char*>(segment.in) + begin * element;
      });
      reduction.streaming =
          large && std::equal(sources.begin(), sources.end(), targets.begin(), std::not_equal_to<const void*>());
      Reduce(reduction, sources.data(), size, targets[me], targets[(me + 1) % size], until - at);
      for (int i = 2; i < size; ++i) std::memcpy(targets[(me + i) % size], targets[me], (until - at) * element);
    }
  };
  if (all_inputs) {
    reduce(0, 0);
  } else {
    const auto fill = [&](size_t c, char* chunk) {
      if (places[me]->inputs != 0) return;
      for (int rank = 0; rank < size; ++rank) {
        const Range range = share(c, rank);
        if (rank != me) request.Gather(range.begin, range.end, chunk + slot_bytes * rank);
      }
    };
    Status status = Chunks(request, CeilDivide(each, step), nullptr, fill, reduce);
    if (!status.ok()) return status;
  }
  Advance();
  return WaitAll(step_, request);
}

Status ShmCommunicator::Broadcast(const Request& request) {
  const bool root = request.peer == options_.rank;
  const size_t step = kChunkBytes / request.element;
  size_t count = request.count;
  char* out = nullptr;
  const auto num_chunks = [&]() -> size_t {
    const Announcement& announcement = AnnouncementOf(request.peer);
    count = announcement.count;
    if (!root && request.allocate != nullptr) {
      std::vector<size_t> counts(options_.size, 0);
      counts[request.peer] = count;
      const size_t length = std::min<size_t>(announcement.header_length, kMaxHeaderBytes);
      out =
          static_cast<char*>(request.allocate(request.arg, counts.data(), options_.size, announcement.header, length));
      if (out == nullptr) return 0;
    }
    return std::max<size_t>(1, CeilDivide(count, step));
  };
  const auto fill = [&](size_t c, char* chunk) {
    const Range range = Piece(0, request.count, c, step);
    if (root) request.Gather(range.begin, range.end, chunk);
  };
  const auto drain = [&](size_t c, uint64_t number) {
    const Range range = Piece(0, count, c, step);
    const char* from = Segment(request.peer)->chunk(number);
    if (root) return;
    if (out != nullptr) {
      std::memcpy(out + range.begin * request.element, from, range.size() * request.element);
    } else {
      request.Scatter(range.begin, range.end, from);
    }
  };
  return Chunks(request, 0, num_chunks, fill, drain);
}

// Every segment is gathered by itself: its `out` gets one block of `count` elements from each rank.
Status ShmCommunicator::AllGather(const Request& request) {
  const size_t element = request.element;
  const size_t step = kChunkBytes / element;
  const auto fill = [&](size_t c, char* chunk) {
    const Range range = Piece(0, request.count, c, step);
    request.Gather(range.begin, range.end, chunk);
  };
  const auto drain = [&](size_t c, uint64_t number) {
    const Range range = Piece(0, request.count, c, step);
    for (int i = 0; i < options_.size; ++i) {
      const int rank = (options_.rank + i) % options_.size;
      const char* from = Segment(rank)->chunk(number);
      request.ForRange(range.begin, range.end, [&](const epl_segment& segment, size_t begin, size_t end) {
        std::memcpy(static_cast<char*>(segment.out) + (rank * segment.count + begin) * element, from,
                    (end - begin) * element);
        from += (end - begin) * element;
      });
    }
  };
  return Chunks(request, std::max<size_t>(1, CeilDivide(request.count, step)), nullptr, fill, drain);
}

Status ShmCommunicator::AllGatherV(const Request& request) {
  const size_t element = request.element;
  const size_t step = kChunkBytes / element;
  std::vector<size_t> counts(options_.size), starts(options_.size + 1, 0);
  Reduction copy = {EPL_UINT8, EPL_SUM, 1.0, 1};
  char* out = nullptr;
  const auto num_chunks = [&]() -> size_t {
    size_t longest = 0;
    for (int rank = 0; rank < options_.size; ++rank) {
      counts[rank] = AnnouncementOf(rank).count;
      starts[rank + 1] = starts[rank] + counts[rank];
      longest = std::max(longest, counts[rank]);
    }
    copy.streaming = starts[options_.size] * element >= kStreamingBytes;
    out = static_cast<char*>(request.allocate(request.arg, counts.data(), options_.size, nullptr, 0));
    return out == nullptr ? 0 : std::max<size_t>(1, CeilDivide(longest, step));
  };
  const auto fill = [&](size_t c, char* chunk) {
    const Range range = Piece(0, request.count, c, step);
    request.Gather(range.begin, range.end, chunk);
  };
  const int first = request.IsInPlace() ? 1 : 0;
  const auto drain = [&](size_t c, uint64_t number) {
    for (int i = first; i < options_.size; ++i) {
      const int rank = (options_.rank + i) % options_.size;
      const Range range = Piece(0, counts[rank], c, step);
      char* to = out + (starts[rank] + range.begin) * element;
      const void* from = Segment(rank)->chunk(number);
      if (copy.streaming) {
        Reduce(copy, &from, 1, to, nullptr, range.size() * element);
      } else {
        std::memcpy(to, from, range.size() * element);
      }
    }
  };
  return Chunks(request, 0, num_chunks, fill, drain);
}

// Even shares: every segment is scattered by itself. Uneven ones (send_counts): the stream of all segments is, and the
// first one's `out` takes the share.
Status ShmCommunicator::ReduceScatter(const Request& request) {
  const size_t element = request.element;
  const size_t size = static_cast<size_t>(options_.size), me = static_cast<size_t>(options_.rank);
  const std::vector<Shares> parts = SharesOf(request, size);
  // Pieces of one part at a time, in the order in which all ranks go through them.
  struct Row {
    const Shares* part;
    size_t begin, end;
  };  // elements of a share
  const size_t step = std::max<size_t>(1, kChunkBytes / size / 64 * 64 / element);
  std::vector<Row> rows;
  for (const Shares& part : parts) {
    for (size_t begin = 0; begin < part.longest; begin += step) {
      rows.push_back({&part, begin, std::min(part.longest, begin + step)});
    }
  }
  const auto range_of = [&](const Row& row, size_t rank) {  // elements of the stream
    const size_t start = row.part->starts[rank], length = row.part->counts[rank];
    return Range{start + std::min(length, row.begin), start + std::min(length, row.end)};
  };
  const auto fill = [&](size_t c, char* chunk) {
    for (size_t rank = 0; rank < size && !rows.empty(); ++rank) {
      const Range range = range_of(rows[c], rank);
      if (rank != me) request.Gather(range.begin, range.end, chunk + rank * step * element);
    }
  };
  std::vector<const void*> sources(size);
  Reduction reduction = ReductionOf(request);
  const auto drain = [&](size_t c, uint64_t number) {
    if (rows.empty()) return;
    const Range range = range_of(rows[c], me);
    size_t at = 0;
    request.ForRange(range.begin, range.end, [&](const epl_segment& segment, size_t begin, size_t end) {
      for (size_t rank = 0; rank < size; ++rank) {
        sources[rank] = Segment(static_cast<int>(rank))->chunk(number) + (me * step + at) * element;
      }
      sources[me] = static_cast<const char*>(segment.in) + begin * element;
      reduction.streaming = rows[c].part->counts[me] * element >= kStreamingBytes && segment.in != rows[c].part->out;
      Reduce(reduction, sources.data(), options_.size,
             static_cast<char*>(rows[c].part->out) + (rows[c].begin + at) * element, nullptr, end - begin);
      at += end - begin;
    });
  };
  return Chunks(request, std::max<size_t>(1, rows.size()), nullptr, fill, drain);
}

Status ShmCommunicator::AllToAll(const Request& request) {
  const size_t element = request.element;
  const size_t size = static_cast<size_t>(options_.size), me = static_cast<size_t>(options_.rank);
  const size_t step = std::max<size_t>(1, kChunkBytes / size / 64 * 64 / element);
  struct Row {
    const epl_segment* segment;
    size_t begin, length;
  };
  std::vector<Row> rows;
  for (const epl_segment& segment : request.segments) {
    for (size_t begin = 0; begin < segment.count / size; begin += step) {
      rows.push_back({&segment, begin, std::min(step, segment.count / size - begin)});
    }
  }
  const auto fill = [&](size_t c, char* chunk) {
    for (size_t rank = 0; rank < size && !rows.empty(); ++rank) {
      const size_t share = rows[c].segment->count / size;
      std::memcpy(chunk + rank * step * element,
                  static_cast<const char*>(rows[c].segment->in) + (rank * share + rows[c].begin) * element,
                  rows[c].length * element);
    }
  };
  const auto drain = [&](size_t c, uint64_t number) {
    for (size_t rank = 0; rank < size && !rows.empty(); ++rank) {
      const size_t share = rows[c].segment->count / size;
      std::memcpy(static_cast<char*>(rows[c].segment->out) + (rank * share + rows[c].begin) * element,
                  Segment(static_cast<int>(rank))->chunk(number) + me * step * element, rows[c].length * element);
    }
  };
  return Chunks(request, std::max<size_t>(1, rows.size()), nullptr, fill, drain);
}

Status ShmCommunicator::AllToAllV(const Request& request) {
  const size_t element = request.element;
  const size_t size = static_cast<size_t>(options_.size), me = static_cast<size_t>(options_.rank);
  const size_t step = std::max<size_t>(1, kChunkBytes / size / 64 * 64 / element);
  std::vector<size_t> starts(size, 0), counts(size), out_starts(size, 0);
  for (size_t rank = 1; rank < size; ++rank) starts[rank] = starts[rank - 1] + request.send_counts[rank - 1];
  char* out = nullptr;
  const auto num_chunks = [&]() -> size_t {
    size_t longest = 0;
    for (size_t rank = 0; rank < size; ++rank) {
      const uint64_t* sends = Segment(static_cast<int>(rank))->counts(sequence_);
      longest = std::max<size_t>(longest, *std::max_element(sends, sends + size));
      counts[rank] = sends[me];
      if (rank > 0) out_starts[rank] = out_starts[rank - 1] + counts[rank - 1];
    }
    out = static_cast<char*>(request.allocate(request.arg, counts.data(), options_.size, nullptr, 0));
    return out == nullptr ? 0 : std::max<size_t>(1, CeilDivide(longest, step));
  };
  const auto fill = [&](size_t c, char* chunk) {
    for (size_t rank = 0; rank < size; ++rank) {
      const Range range = Piece(starts[rank], starts[rank] + request.send_counts[rank], c, step);
      request.Gather(range.begin, range.end, chunk + rank * step * element);
    }
  };
  const auto drain = [&](size_t c, uint64_t number) {
    for (size_t rank = 0; rank < size; ++rank) {
      const Range range = Piece(out_starts[rank], out_starts[rank] + counts[rank], c, step);
      std::memcpy(out + range.begin * element, Segment(static_cast<int>(rank))->chunk(number) + me * step * element,
                  range.size() * element);
    }
  };
  return Chunks(request, 0, num_chunks, fill, drain);
}

// Whether all ranks want their results in arenas; they must have described this collective.
bool ShmCommunicator::InArenas() const {
  for (int rank = 0; rank < options_.size; ++rank) {
    if (PlacesOf(rank).outputs == 0) return false;
  }
  return true;
}

Status ShmCommunicator::Reductions(const Request& request) {
  if (group_.arenas && options_.size > 1 && request.collective == EPL_ALL_REDUCE &&
      request.count * request.element >= EPL_SHARED_BYTES) {
    // Ranks tell each other first where their data lies, which costs one wait.
    Begin(request);
    Me()->control()->places[sequence_ % 2].Describe(request, *group_.ranks[options_.rank]->arena);
    Advance();
    Status status = WaitAll(step_, request);
    if (status.ok()) status = Verify();
    if (!status.ok()) return status;
    if (InArenas()) return ReduceInArenas(request);
  }
  const bool one_round = options_.size == 2 || request.count * request.element <= kOneRoundBytes;
  return one_round ? OneRoundReduce(request) : TwoRoundReduce(request);
}

}  // namespace epl
