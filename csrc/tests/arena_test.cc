// All-reduce of what lies in memory that the ranks share (epl_comm_allocate), and that memory itself.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "harness.h"

namespace {

using test::Outcome;
using test::Rank;

// Where a rank has its numbers.
enum Way { kPrivate, kOutputs, kBoth, kInPlace, kMixed, kWays };

struct Memory {
  std::vector<void*> shared;
  std::vector<std::vector<char>> own;
  ~Memory() {
    for (void* each : shared) epl_comm_free(each);
  }
  char* Take(const Rank& me, bool in_arena, size_t bytes) {
    if (!in_arena) {
      own.emplace_back(bytes + 1);
      return own.back().data();
    }
    void* data = epl_comm_allocate(me.comm, bytes);
    CHECK_THAT(data != nullptr && reinterpret_cast<uintptr_t>(data) % 64 == 0, "no shared memory");
    shared.push_back(data);
    return static_cast<char*>(data);
  }
};

// Fractions, so that the order of additions shows in the last bits.
double Value(int rank, size_t i) { return 0.1 * static_cast<double>((i * 7 + static_cast<size_t>(rank) * 3) % 11 + 1); }

// One all-reduce, cut in the same segments on all ranks or not; gives the bytes of the result.
std::string Reduced(const Rank& me, epl_dtype dtype, epl_reduce_op op, Way way, const std::vector<size_t>& cuts) {
  Memory memory;
  std::vector<epl_segment> segments;
  const size_t element = test::SizeOf(dtype);
  size_t begin = 0;
  for (size_t count : cuts) {
    const bool input = way == kBoth || way == kInPlace || (way == kMixed && segments.size() % 2 == 0);
    char* in = memory.Take(me, input, count * element);
    char* out = way == kInPlace ? in : memory.Take(me, way != kPrivate, count * element);
    for (size_t i = 0; i < count; ++i) test::Store(dtype, in, i, Value(me.rank, begin + i));
    segments.push_back({in, out, count});
    begin += count;
  }
  epl_request request = test::MakeRequest("sum", EPL_ALL_REDUCE, dtype, segments.data(), segments.size());
  request.reduce_op = op;
  request.scale = dtype <= EPL_FLOAT64 ? 0.3 : 1.0;
  const Outcome outcome = me.Run(request);
  CHECK_THAT(outcome.code == EPL_OK, outcome.message);
  std::string result;
  for (const epl_segment& segment : segments) {
    result.append(static_cast<const char*>(segment.out), segment.count * element);
  }
  return result;
}

// The bits are the same wherever numbers lie, on each rank by itself.
TEST(arena_results_have_the_bits_of_others) {
  for (int size : {2, 3, 4}) {
    test::Run(size, "shm", [](Rank& me) {
      const size_t other = 300001 + 1000 * static_cast<size_t>(me.rank);
      for (epl_dtype dtype : {EPL_FLOAT32, EPL_BFLOAT16, EPL_INT64}) {
        const std::vector<size_t> uneven = {37, 0, other, 600003 - other - 37};
        const std::string want = Reduced(me, dtype, EPL_SUM, kPrivate, uneven);
        for (int way = kOutputs; way < kWays; ++way) {
          CHECK_THAT(Reduced(me, dtype, EPL_SUM, static_cast<Way>(way), uneven) == want,
                     "dtype " + std::to_string(dtype) + ", way " + std::to_string(way));
        }
        // Each rank in another way: the inputs of some lie in shared memory, or the outputs of some do not.
        for (int first = 0; first < kWays; ++first) {
          const Way way = static_cast<Way>((first + me.rank) % kWays);
          CHECK_THAT(Reduced(me, dtype, EPL_SUM, way, uneven) == want, "mixed ways from " + std::to_string(first));
        }
      }
      for (epl_reduce_op op : {EPL_MEAN, EPL_MAX, EPL_PROD}) {
        const std::string want = Reduced(me, EPL_FLOAT32, op, kPrivate, {270000});
        CHECK_THAT(Reduced(me, EPL_FLOAT32, op, kBoth, {270000}) == want, "op " + std::to_string(op));
      }
    });
  }
}

// Past the caches, and with more segments than a rank describes.
TEST(arena_large_and_many) {
  test::Run(2, "shm", [](Rank& me) {
    const std::string want = Reduced(me, EPL_FLOAT32, EPL_SUM, kPrivate, {2500003});
    for (Way way : {kOutputs, kBoth, kInPlace}) {
      CHECK_THAT(Reduced(me, EPL_FLOAT32, EPL_SUM, way, {2500003}) == want, "large, way " + std::to_string(way));
    }
    for (size_t number : {256, 257}) {
      const std::vector<size_t> cuts(number, 1100);
      CHECK_THAT(Reduced(me, EPL_FLOAT32, EPL_SUM, kBoth, cuts) == Reduced(me, EPL_FLOAT32, EPL_SUM, kPrivate, cuts),
                 std::to_string(number) + " segments");
    }
  });
}

// Blocks never overlap, and what was given back is had again.
TEST(arena_random_blocks) {
  test::Run(2, "shm", [](Rank& me) {
    std::mt19937 random(static_cast<unsigned>(me.rank));
    struct Block {
      char* data;
      size_t bytes;
      char mark;
    };
    std::vector<Block> blocks;
    for (int i = 0; i < 2000; ++i) {
      if (blocks.size() > 20 || (!blocks.empty() && random() % 3 == 0)) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        const Block block = blocks.back();
        blocks.pop_back();
        CHECK_THAT(block.data[0] == block.mark && block.data[block.bytes - 1] == block.mark, "overwritten");
        epl_comm_free(block.data);
        continue;
      }
      const size_t bytes = 1 + random() % 2000000;
      char* data = static_cast<char*>(epl_comm_allocate(me.comm, bytes));
      CHECK_THAT(data != nullptr, "20 blocks of 2 MB do not fit");
      if (data == nullptr) return;
      const char mark = static_cast<char>(random());
      std::memset(data, mark, bytes);
      blocks.push_back({data, bytes, mark});
    }
    for (const Block& block : blocks) epl_comm_free(block.data);
    // All of it in one piece again, and no more than there is.
    void* all = epl_comm_allocate(me.comm, size_t{256} << 20);
    CHECK_THAT(all != nullptr && epl_comm_allocate(me.comm, 1) == nullptr, "all of the arena");
    if (all != nullptr) epl_comm_free(all);
  });
}

// A host without memory: other memory serves, and the collective goes on.
TEST(arena_without_room_gives_none) {
  test::Run(2, "shm", [](Rank& me) {
    if (me.rank == 1) test::LimitSharedMemory();
    void* data = epl_comm_allocate(me.comm, 1 << 20);
    CHECK_THAT((data == nullptr) == (me.rank == 1), "rank " + std::to_string(me.rank));
    if (data != nullptr) epl_comm_free(data);
    const Way way = me.rank == 1 ? kPrivate : kBoth;
    const std::string got = Reduced(me, EPL_FLOAT32, EPL_SUM, way, {300000});
    CHECK_THAT(got == Reduced(me, EPL_FLOAT32, EPL_SUM, kPrivate, {300000}), "sum");
  });
}

// A tensor may outlive its communicator, and be freed last of all.
TEST(arena_outlives_its_communicator) {
  test::Run(2, "shm", [](Rank& me) {
    char* data = static_cast<char*>(epl_comm_allocate(me.comm, 1 << 20));
    std::memset(data, 7, 1 << 20);
    epl_comm_destroy(me.comm);
    me.comm = nullptr;
    CHECK_THAT(data[0] == 7 && data[(1 << 20) - 1] == 7, "contents");
    epl_comm_free(data);
  });
}

// Only shared memory has it.
TEST(arena_of_other_back_ends) {
  test::Run(2, "tcp", [](Rank& me) { CHECK_THAT(epl_comm_allocate(me.comm, 64) == nullptr, "tcp"); });
}

TEST(arena_peer_killed_is_named) {
  const test::Ranks ranks = test::Start(2, "shm", 10.0, true, [](Rank& me) {
    Reduced(me, EPL_FLOAT32, EPL_SUM, kBoth, {300000});
    if (me.rank == 1) raise(SIGKILL);
    Memory memory;
    char* data = memory.Take(me, true, 4 << 20);
    const epl_segment segment = {data, data, 1 << 20};
    const Outcome outcome = me.Run(test::MakeRequest("next", EPL_ALL_REDUCE, EPL_FLOAT32, &segment, 1));
    CHECK_THAT(outcome.code == EPL_PEER_LOST && test::Contains(outcome.message, "rank 1"), outcome.message);
  });
  test::Finish(ranks, 20.0, {1});
}

// What differs is said before anything is written, here too.
TEST(arena_mismatch_writes_nothing) {
  const test::Ranks ranks = test::Start(2, "shm", 10.0, true, [](Rank& me) {
    Memory memory;
    float* data = reinterpret_cast<float*>(memory.Take(me, true, 4 << 20));
    data[0] = 5.0f;
    const epl_segment segment = {data, data, static_cast<size_t>((1 << 20) - me.rank)};
    const Outcome outcome = me.Run(test::MakeRequest("differs", EPL_ALL_REDUCE, EPL_FLOAT32, &segment, 1));
    CHECK_THAT(outcome.code == EPL_MISMATCH && data[0] == 5.0f, outcome.message);
  });
  test::Finish(ranks, 20.0);
}

}  // namespace
