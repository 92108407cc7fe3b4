// Every collective against values computed here: back ends, ranks, dtypes and sizes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "epl_measure.h"
#include "harness.h"

namespace {

using test::Outcome;
using test::Rank;

const epl_dtype kAll[] = {EPL_FLOAT16, EPL_BFLOAT16, EPL_FLOAT32, EPL_FLOAT64,
                          EPL_INT32,   EPL_INT64,    EPL_UINT8,   EPL_BOOL};
// Below and above the limits of one round, one chunk, and of several.
const size_t kSizes[] = {0, 1, 37, 5000, 70001, 700003};

double Value(epl_dtype dtype, int rank, size_t i) {
  if (dtype == EPL_BOOL) return (i + static_cast<size_t>(rank)) % 3 == 0;
  return static_cast<double>((i * 3 + static_cast<size_t>(rank) * 5 + i / 7) % 4 + 1);
}

double Expected(epl_dtype dtype, epl_reduce_op op, int size, size_t i, double scale) {
  double total = Value(dtype, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double next = Value(dtype, rank, i);
    if (op == EPL_SUM || op == EPL_MEAN) total += next;
    if (op == EPL_PROD) total *= next;
    if (op == EPL_MIN) total = std::min(total, next);
    if (op == EPL_MAX) total = std::max(total, next);
  }
  if (op == EPL_MEAN) total /= size;
  const bool floating = dtype <= EPL_FLOAT64;
  return floating ? total * scale : (dtype == EPL_UINT8 ? std::fmod(std::floor(total), 256) : std::floor(total));
}

struct Array : test::Elements {
  using Elements::Elements;
  double get(size_t i) { return test::Load(dtype, data(), i); }
  void Fill(int rank) {
    for (size_t i = 0; i < count; ++i) test::Store(dtype, data(), i, Value(dtype, rank, i));
  }
};

// The first difference, or an empty text.
template <class Want>
std::string Differs(Array& array, size_t count, Want want) {
  for (size_t i = 0; i < count; ++i) {
    const double expected = want(i);
    const double got = array.get(i);
    if (std::fabs(got - expected) > test::Tolerance(array.dtype) * std::fabs(expected)) {
      return "element " + std::to_string(i) + " of " + std::to_string(count) + " (dtype " +
             std::to_string(array.dtype) + ") is " + std::to_string(got) + ", expected " + std::to_string(expected);
    }
  }
  return "";
}

#define CHECK_SAME(array, count, want)                          \
  do {                                                          \
    const std::string difference = Differs(array, count, want); \
    CHECK_THAT(difference.empty(), difference);                 \
  } while (0)
#define CHECK_OK(outcome)                              \
  do {                                                 \
    const Outcome result = (outcome);                  \
    CHECK_THAT(result.code == EPL_OK, result.message); \
  } while (0)

void* Allocate(void* arg, const size_t* counts, int size, const uint8_t*, size_t) {
  Array* array = static_cast<Array*>(arg);
  size_t sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += counts[rank];
  *array = Array(array->dtype, sum);
  return array->data();
}

// A type of four, of two and of one byte go through all sizes; the others differ from them in the arithmetic alone, and
// show theirs with a few elements and three ranks. Eight ranks are more than there are CPUs: a few types and sizes show
// that nothing depends on the number.
bool Sampled(const Rank& me, epl_dtype dtype, size_t count) {
  const bool one_of_a_size = dtype == EPL_FLOAT32 || dtype == EPL_BFLOAT16 || dtype == EPL_UINT8;
  if (me.size == 8) return one_of_a_size && count <= 70001;
  return one_of_a_size || me.size == 3 || count <= 5000;
}

void EachBackend(const std::vector<int>& sizes, const test::Body& body) {
  for (const std::string& backend : test::Backends()) {
    for (int size : sizes) test::Run(size, backend, body);
  }
}

TEST(all_reduce) {
  EachBackend({1, 2, 3, 4, 8}, [](Rank& me) {
    for (epl_dtype dtype : kAll) {
      for (size_t count : kSizes) {
        if (!Sampled(me, dtype, count)) continue;
        for (int op = EPL_SUM; op <= EPL_PROD; ++op) {
          if (dtype == EPL_BOOL && op != EPL_MIN && op != EPL_MAX) continue;
          if (count > 5000 && op > EPL_MEAN) continue;
          const bool floating = dtype <= EPL_FLOAT64;
          Array in(dtype, count), out(dtype, count);
          in.Fill(me.rank);
          const bool in_place = op % 2 == 0;
          if (in_place) out.Fill(me.rank);
          const epl_segment segment = {in_place ? out.data() : in.data(), out.data(), count};
          epl_request request = test::MakeRequest("all", EPL_ALL_REDUCE, dtype, &segment, 1);
          request.reduce_op = static_cast<epl_reduce_op>(op);
          request.scale = floating && op == EPL_SUM ? 0.5 : 1.0;
          CHECK_OK(me.Run(request));
          CHECK_SAME(out, count,
                     [&](size_t i) { return Expected(dtype, request.reduce_op, me.size, i, request.scale); });
        }
      }
    }
  });
}

// Large results are written past the caches, in whole lines: here the first and the last are not whole.
TEST(large_results_at_any_address) {
  test::Run(2, "shm", [](Rank& me) {
    const size_t count = 2500003;
    for (size_t shift : {0, 1, 7}) {
      Array in(EPL_FLOAT32, count), out(EPL_FLOAT32, shift + count + 1);
      in.Fill(me.rank);
      const float guard = 77.0f;
      std::memcpy(out.at(shift + count), &guard, sizeof(guard));
      const epl_segment segment = {in.data(), out.at(shift), count};
      CHECK_OK(me.Run(test::MakeRequest("large", EPL_ALL_REDUCE, EPL_FLOAT32, &segment, 1)));
      CHECK_THAT(out.get(shift + count) == guard, "what follows the result was written to");
      std::memmove(out.data(), out.at(shift), count * sizeof(float));
      CHECK_SAME(out, count, [&](size_t i) { return Expected(EPL_FLOAT32, EPL_SUM, me.size, i, 1.0); });
    }
  });
}

TEST(segments) {
  EachBackend({2, 3}, [](Rank& me) {
    for (size_t scale : {1, 1000, 40000}) {
      const size_t counts[] = {3 * scale, 0, 1, 17 * scale + 5};
      std::vector<Array> ins, outs;
      std::vector<epl_segment> segments;
      for (size_t count : counts) {
        ins.emplace_back(EPL_FLOAT32, count);
        ins.back().Fill(me.rank);
        outs.emplace_back(EPL_FLOAT32, count);
      }
      for (size_t i = 0; i < 4; ++i) segments.push_back({ins[i].data(), outs[i].data(), counts[i]});
      CHECK_OK(me.SubmitAndWait(test::MakeRequest("cut", EPL_ALL_REDUCE, EPL_FLOAT32, segments.data(), 4)));
      for (size_t i = 0; i < 4; ++i) {
        CHECK_SAME(outs[i], counts[i], [&](size_t j) { return Expected(EPL_FLOAT32, EPL_SUM, me.size, j, 1.0); });
      }
    }
  });
}

TEST(reduce) {
  EachBackend({2, 4, 8}, [](Rank& me) {
    for (size_t count : kSizes) {
      if (!Sampled(me, EPL_FLOAT32, count)) continue;
      const int root = static_cast<int>(count) % me.size;
      Array in(EPL_FLOAT32, count), out(EPL_FLOAT32, count);
      in.Fill(me.rank);
      const epl_segment segment = {in.data(), me.rank == root ? out.data() : nullptr, count};
      epl_request request = test::MakeRequest("reduce", EPL_REDUCE, EPL_FLOAT32, &segment, 1);
      request.peer = root;
      request.reduce_op = EPL_MEAN;
      CHECK_OK(me.Run(request));
      if (me.rank != root) continue;
      CHECK_SAME(out, count, [&](size_t i) { return Expected(EPL_FLOAT32, EPL_MEAN, me.size, i, 1.0); });
    }
  });
}

TEST(broadcast) {
  EachBackend({1, 2, 3, 8}, [](Rank& me) {
    for (epl_dtype dtype : kAll) {
      for (size_t count : kSizes) {
        if (!Sampled(me, dtype, count)) continue;
        const int root = static_cast<int>(count) % me.size;
        Array array(dtype, count), unknown(dtype, 0);
        if (me.rank == root) array.Fill(root);
        const epl_segment segment = {array.data(), array.data(), count};
        epl_request request = test::MakeRequest("known", EPL_BROADCAST, dtype, &segment, 1);
        request.peer = root;
        CHECK_OK(me.Run(request));
        CHECK_SAME(array, count, [&](size_t i) { return Value(dtype, root, i); });

        request.name = "unknown";
        if (me.rank != root) {
          request.num_segments = 0;
          request.allocate = &Allocate;
          request.arg = &unknown;
        }
        CHECK_OK(me.Run(request));
        if (me.rank == root) continue;
        CHECK_THAT(unknown.count == count, std::to_string(unknown.count));
        CHECK_SAME(unknown, count, [&](size_t i) { return Value(dtype, root, i); });
      }
    }
  });
}

TEST(broadcast_header) {
  EachBackend({3}, [](Rank& me) {
    std::vector<uint8_t> header(4096);
    for (size_t i = 0; i < header.size(); ++i) header[i] = static_cast<uint8_t>(i * 7);
    struct Got {
      std::vector<uint8_t> header;
      char byte;
    } got;
    const epl_segment segment = {"x", nullptr, 1};
    epl_request request = test::MakeRequest("header", EPL_BROADCAST, EPL_UINT8, &segment, me.rank == 1 ? 1 : 0);
    request.peer = 1;
    if (me.rank == 1) {
      request.header = header.data();
      request.header_length = header.size();
    } else {
      request.arg = &got;
      request.allocate = [](void* arg, const size_t*, int, const uint8_t* extra, size_t length) -> void* {
        Got* to = static_cast<Got*>(arg);
        to->header.assign(extra, extra + length);
        return &to->byte;
      };
    }
    CHECK_OK(me.Run(request));
    if (me.rank != 1) CHECK_THAT(got.header == header && got.byte == 'x', "the header came out different");
  });
}

TEST(all_gather) {
  EachBackend({1, 2, 4, 8}, [](Rank& me) {
    for (epl_dtype dtype : kAll) {
      for (size_t count : kSizes) {
        if (!Sampled(me, dtype, count)) continue;
        const size_t second = count / 2;
        Array in(dtype, count), out(dtype, count * me.size), other(dtype, second * me.size);
        in.Fill(me.rank);
        const epl_segment segments[] = {{in.data(), out.data(), count}, {in.data(), other.data(), second}};
        CHECK_OK(me.Run(test::MakeRequest("gather", EPL_ALL_GATHER, dtype, segments, 2)));
        if (count == 0) continue;
        CHECK_SAME(out, count * me.size,
                   [&](size_t i) { return Value(dtype, static_cast<int>(i / count), i % count); });
        CHECK_SAME(other, second * me.size,
                   [&](size_t i) { return Value(dtype, static_cast<int>(i / second), i % second); });
      }
    }
  });
}

TEST(all_gather_v) {
  EachBackend({1, 2, 3, 8}, [](Rank& me) {
    for (epl_dtype dtype : kAll) {
      for (size_t base : kSizes) {
        if (!Sampled(me, dtype, base)) continue;
        const auto count_of = [&](int rank) { return base * static_cast<size_t>(rank) / 2 + (base > 1 ? 1 : 0); };
        Array in(dtype, count_of(me.rank)), out(dtype, 0);
        in.Fill(me.rank);
        const epl_segment segment = {in.data(), base % 2 == 1 ? in.data() : nullptr, in.count};  // in place or not
        epl_request request = test::MakeRequest("uneven", EPL_ALL_GATHER_V, dtype, &segment, 1);
        request.allocate = &Allocate;
        request.arg = &out;
        CHECK_OK(me.Run(request));
        size_t at = 0;
        for (int rank = 0; rank < me.size; ++rank) {
          Array part(dtype, count_of(rank));
          CHECK_THAT((at += part.count) <= out.count, std::to_string(out.count));
          if (rank == me.rank && segment.out != nullptr) continue;
          std::memcpy(part.data(), out.at(at - part.count), part.count * test::SizeOf(dtype));
          CHECK_SAME(part, part.count, [&](size_t i) { return Value(dtype, rank, i); });
        }
        CHECK_THAT(at == out.count, std::to_string(out.count));
      }
    }
  });
}

TEST(reduce_scatter) {
  EachBackend({1, 2, 3, 4, 8}, [](Rank& me) {
    for (epl_dtype dtype : {EPL_FLOAT32, EPL_FLOAT16, EPL_INT64}) {
      for (size_t share : kSizes) {
        if (!Sampled(me, dtype, share)) continue;
        const size_t count = share * static_cast<size_t>(me.size);
        Array in(dtype, count), out(dtype, share);
        in.Fill(me.rank);
        const epl_segment segment = {in.data(), out.data(), count};
        CHECK_OK(me.Run(test::MakeRequest("even", EPL_REDUCE_SCATTER, dtype, &segment, 1)));
        CHECK_SAME(out, share, [&](size_t i) {
          return Expected(dtype, EPL_SUM, me.size, i + share * static_cast<size_t>(me.rank), 1.0);
        });

        std::vector<size_t> counts(me.size);
        for (int rank = 0; rank < me.size; ++rank)
          counts[rank] = rank == 0 ? share + share / 2 : (rank == 1 ? share - share / 2 : share);
        const size_t start = me.rank == 0 ? 0 : (me.rank == 1 ? counts[0] : share * static_cast<size_t>(me.rank));
        const size_t total = me.size == 1 ? counts[0] : count;
        Array all(dtype, total), mine(dtype, counts[me.rank]);
        all.Fill(me.rank);
        const epl_segment uneven = {all.data(), mine.data(), total};
        epl_request request = test::MakeRequest("uneven", EPL_REDUCE_SCATTER, dtype, &uneven, 1);
        request.send_counts = counts.data();
        CHECK_OK(me.Run(request));
        CHECK_SAME(mine, counts[me.rank], [&](size_t i) { return Expected(dtype, EPL_SUM, me.size, i + start, 1.0); });

        // The same in two segments, cut where no share ends.
        Array again(dtype, counts[me.rank]);
        const size_t cut = total / 3, rest = total - cut;
        const epl_segment pieces[] = {{all.data(), again.data(), cut}, {all.at(cut), nullptr, rest}};
        request = test::MakeRequest("in pieces", EPL_REDUCE_SCATTER, dtype, pieces, 2);
        request.send_counts = counts.data();
        CHECK_OK(me.Run(request));
        CHECK_SAME(again, counts[me.rank], [&](size_t i) { return Expected(dtype, EPL_SUM, me.size, i + start, 1.0); });

        // Everything is the last rank's; the others have nowhere to put anything.
        const bool has = me.rank == me.size - 1;
        std::fill(counts.begin(), counts.end(), 0);
        counts[me.size - 1] = count;
        Array own(dtype, has ? count : 0);
        const epl_segment alone = {in.data(), has ? own.data() : nullptr, count};
        request = test::MakeRequest("alone", EPL_REDUCE_SCATTER, dtype, &alone, 1);
        request.send_counts = counts.data();
        CHECK_OK(me.Run(request));
        if (has) CHECK_SAME(own, count, [&](size_t i) { return Expected(dtype, EPL_SUM, me.size, i, 1.0); });
      }
    }
  });
}

TEST(all_to_all) {
  EachBackend({1, 2, 3, 4, 8}, [](Rank& me) {
    for (epl_dtype dtype : {EPL_FLOAT32, EPL_UINT8, EPL_FLOAT64}) {
      for (size_t share : kSizes) {
        if (!Sampled(me, dtype, share)) continue;
        const size_t count = share * static_cast<size_t>(me.size);
        Array in(dtype, count), out(dtype, count);
        in.Fill(me.rank);
        const epl_segment segment = {in.data(), out.data(), count};
        CHECK_OK(me.Run(test::MakeRequest("swap", EPL_ALL_TO_ALL, dtype, &segment, 1)));
        const size_t mine = share * static_cast<size_t>(me.rank);
        if (share > 0) {
          CHECK_SAME(out, count, [&](size_t i) { return Value(dtype, static_cast<int>(i / share), mine + i % share); });
        }
      }
    }
  });
}

TEST(all_to_all_v) {
  EachBackend({1, 2, 3, 4, 8}, [](Rank& me) {
    for (epl_dtype dtype : {EPL_FLOAT32, EPL_UINT8}) {
      for (size_t base : kSizes) {
        if (!Sampled(me, dtype, base)) continue;
        const auto sends = [&](int from, int to) { return base * static_cast<size_t>((from + 2 * to) % 3) / 2; };
        std::vector<size_t> counts(me.size);
        size_t total = 0;
        for (int to = 0; to < me.size; ++to) total += counts[to] = sends(me.rank, to);
        Array in(dtype, total), out(dtype, 0);
        in.Fill(me.rank);
        const epl_segment segment = {in.data(), nullptr, total};
        epl_request request = test::MakeRequest("swap_v", EPL_ALL_TO_ALL_V, dtype, &segment, 1);
        request.send_counts = counts.data();
        request.allocate = &Allocate;
        request.arg = &out;
        CHECK_OK(me.Run(request));
        size_t at = 0;
        for (int from = 0; from < me.size; ++from) {
          size_t start = 0;
          for (int to = 0; to < me.rank; ++to) start += sends(from, to);
          Array part(dtype, sends(from, me.rank));
          std::memcpy(part.data(), out.at(at), part.count * test::SizeOf(dtype));
          CHECK_SAME(part, part.count, [&](size_t i) { return Value(dtype, from, start + i); });
          at += part.count;
        }
        CHECK_THAT(at == out.count, std::to_string(out.count));
      }
    }
  });
}

TEST(send_recv) {
  EachBackend({2, 3, 8}, [](Rank& me) {
    for (epl_dtype dtype : kAll) {
      for (size_t count : kSizes) {
        if (!Sampled(me, dtype, count)) continue;
        // Round the ring: rank 0 sends first, so that nobody waits for himself.
        const int next = (me.rank + 1) % me.size, before = (me.rank + me.size - 1) % me.size;
        Array in(dtype, count), out(dtype, count), unknown(dtype, 0);
        in.Fill(me.rank);
        const epl_segment from = {in.data(), nullptr, count}, to = {nullptr, out.data(), count};
        epl_request send = test::MakeRequest("p2p", EPL_SEND, dtype, &from, 1);
        epl_request recv = test::MakeRequest("p2p", EPL_RECV, dtype, &to, 1);
        send.peer = next;
        recv.peer = before;
        if (me.rank == 1) {
          recv.num_segments = 0;
          recv.allocate = &Allocate;
          recv.arg = &unknown;
        }
        if (me.rank == 0) CHECK_OK(me.Run(send));
        CHECK_OK(me.Run(recv));
        if (me.rank != 0) CHECK_OK(me.Run(send));
        Array& got = me.rank == 1 ? unknown : out;
        CHECK_SAME(got, count, [&](size_t i) { return Value(dtype, before, i); });
      }
    }
  });
}

TEST(exchange_and_barrier) {
  EachBackend({1, 2, 4, 8}, [](Rank& me) {
    char error[512] = "";
    for (int round = 0; round < 200; ++round) {
      const int mine = me.rank * 1000 + round;
      std::vector<int> all(me.size);
      const int code = epl_comm_exchange(me.comm, &mine, sizeof(mine), all.data(), error, sizeof(error));
      CHECK_THAT(code == EPL_OK, error);
      for (int rank = 0; rank < me.size; ++rank)
        CHECK_THAT(all[rank] == rank * 1000 + round, std::to_string(all[rank]));
      if (round % 10 == 0) CHECK_OK(me.SubmitAndWait(test::MakeRequest("line", EPL_BARRIER, EPL_UINT8, nullptr, 0)));
    }
  });
}

// The ranks come to the end of a measurement together, whatever each of them finds, and can go on.
TEST(measurement) {
  EachBackend({1, 2, 3}, [](Rank& me) {
    char error[512] = "";
    for (int round = 0; round < 2; ++round) {
      double latency = 0, bandwidth = 0;
      const int code = epl_comm_measure(me.comm, &latency, &bandwidth, error, sizeof(error));
      CHECK_THAT(code == EPL_OK, error);
      CHECK_THAT(latency > 0 && bandwidth > 0, std::to_string(latency) + " " + std::to_string(bandwidth));
      std::vector<int> all(static_cast<size_t>(me.size));
      CHECK_THAT(epl_comm_exchange(me.comm, &me.rank, sizeof(int), all.data(), error, sizeof(error)) == 0, error);
      for (int rank = 0; rank < me.size; ++rank) CHECK_THAT(all[rank] == rank, std::to_string(all[rank]));
    }
  });
}

// One random collective, the same on all ranks because they draw from the same numbers.
void RunRandom(Rank& me, std::mt19937* random) {
  const auto below = [&](size_t n) { return static_cast<size_t>((*random)() % n); };
  const epl_dtype dtype = kAll[below(6)];
  const size_t count = below(4) == 0 ? 40000 + below(300000) : below(6000);
  const int root = static_cast<int>(below(static_cast<size_t>(me.size)));
  Array in(dtype, count), out(dtype, count * static_cast<size_t>(me.size));
  in.Fill(me.rank);
  epl_segment segments[2] = {{in.data(), out.data(), count / 3},
                             {in.at(count / 3), out.at(count / 3), count - count / 3}};
  epl_request request = test::MakeRequest("random", EPL_ALL_REDUCE, dtype, segments, 2);
  request.peer = root;
  switch (below(4)) {
    case 0:
      CHECK_OK(me.SubmitAndWait(request));
      CHECK_SAME(out, count, [&](size_t i) { return Expected(dtype, EPL_SUM, me.size, i, 1.0); });
      break;
    case 1:
      request.collective = EPL_BROADCAST;
      CHECK_OK(me.SubmitAndWait(request));
      if (me.rank != root) CHECK_SAME(out, count, [&](size_t i) { return Value(dtype, root, i); });
      break;
    case 2:
      request.collective = EPL_ALL_GATHER;
      request.num_segments = 1;
      segments[0].count = count;
      CHECK_OK(me.Run(request));
      CHECK_SAME(out, count * static_cast<size_t>(me.size),
                 [&](size_t i) { return Value(dtype, static_cast<int>(i / count), i % count); });
      break;
    default:
      request.collective = EPL_REDUCE;
      request.reduce_op = EPL_MAX;
      CHECK_OK(me.Run(request));
      if (me.rank == root) CHECK_SAME(out, count, [&](size_t i) { return Expected(dtype, EPL_MAX, me.size, i, 1.0); });
  }
}

TEST(random_sequences_on_several_communicators) {
  EachBackend({2, 3}, [](Rank& me) {
    std::vector<Rank> ranks(3, me);
    for (size_t i = 0; i < ranks.size(); ++i) CHECK_OK(ranks[i].Create("c" + std::to_string(i)));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back([&ranks, i] {
        std::mt19937 random(static_cast<unsigned>(17 * i + 5));
        for (int round = 0; round < 40; ++round) RunRandom(ranks[i], &random);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Rank& rank : ranks) epl_comm_destroy(rank.comm);
  });
}

}  // namespace
