// Collectives between the GPUs that the doubles make up: values, the order of calls, and requests in host memory.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu_harness.h"

namespace {

using test::Gpu;
using test::Outcome;
using test::Rank;

const epl_dtype kAll[] = {EPL_FLOAT16, EPL_BFLOAT16, EPL_FLOAT32, EPL_FLOAT64,
                          EPL_INT32,   EPL_INT64,    EPL_UINT8,   EPL_BOOL};
const size_t kSizes[] = {0, 1, 37, 5003};

#define CHECK_OK(outcome)                              \
  do {                                                 \
    const Outcome result = (outcome);                  \
    CHECK_THAT(result.code == EPL_OK, result.message); \
  } while (0)

double Value(int rank, size_t i) { return static_cast<double>((i * 3 + static_cast<size_t>(rank) * 5) % 4 + 1); }

struct Array : test::Elements {
  using Elements::Elements;
  void Fill(int rank) {
    for (size_t i = 0; i < count; ++i) test::Store(dtype, data(), i, Value(rank, i));
  }
  // Checks `count` elements from `begin` on.
  template <class Want>
  void Check(size_t begin, size_t length, const std::string& what, Want want) {
    for (size_t i = 0; i < length; ++i) {
      const double expected = want(i), got = test::Load(dtype, data(), begin + i);
      if (std::fabs(got - expected) <= std::max(test::Tolerance(dtype), 1e-14) * std::fabs(expected)) continue;
      CHECK_THAT(false, what + ": element " + std::to_string(begin + i) + " of dtype " + std::to_string(dtype) +
                            " is " + std::to_string(got) + ", expected " + std::to_string(expected));
      return;
    }
  }
};

epl_request Request(const Gpu& gpu, const char* name, epl_collective collective, epl_dtype dtype,
                    const epl_segment* segments, size_t num_segments = 1) {
  epl_request request = test::MakeRequest(name, collective, dtype, segments, num_segments);
  request.stream = gpu.stream;
  return request;
}

double Sum(int size, size_t i) {
  double total = 0;
  for (int rank = 0; rank < size; ++rank) total += Value(rank, i);
  return total;
}

void* Allocate(void* arg, const size_t* counts, int size, const uint8_t*, size_t) {
  Array* array = static_cast<Array*>(arg);
  size_t total = 0;
  for (int rank = 0; rank < size; ++rank) total += counts[rank];
  *array = Array(array->dtype, total);
  return array->data();
}

// Every request with an `allocate` runs to its end on the queue, where `arg` is the request's own.
Outcome RunAllocating(const Rank& me, epl_request request, Array* output) {
  request.allocate = &Allocate;
  request.arg = output;
  return me.Run(request);
}

TEST(nccl_all_reduce) {
  for (int size : {1, 2, 3}) {
    test::RunGpus(size, [](Rank& me, Gpu& gpu) {
      CHECK_THAT(epl_comm_backend(me.comm) == std::string("nccl"), epl_comm_backend(me.comm));
      for (epl_dtype dtype : kAll) {
        const bool floating = dtype <= EPL_FLOAT64;
        for (size_t count : kSizes) {
          for (int op = EPL_SUM; op <= EPL_PROD; ++op) {
            if (dtype == EPL_BOOL || (op == EPL_MEAN && !floating) || (count > 100 && op > EPL_MEAN)) continue;
            Array in(dtype, count), out(dtype, count);
            in.Fill(me.rank);
            const epl_segment segment = {in.data(), out.data(), count};
            epl_request request = Request(gpu, "all", EPL_ALL_REDUCE, dtype, &segment);
            request.reduce_op = static_cast<epl_reduce_op>(op);
            request.scale = floating && op <= EPL_MEAN && count == 37 ? 0.5 : 1.0;
            CHECK_OK(me.Run(request));
            out.Check(0, count, "all_reduce", [&](size_t i) {
              double total = Value(0, i);
              for (int rank = 1; rank < me.size; ++rank) {
                const double next = Value(rank, i);
                total = op == EPL_MIN    ? std::min(total, next)
                        : op == EPL_MAX  ? std::max(total, next)
                        : op == EPL_PROD ? total * next
                                         : total + next;
              }
              return (op == EPL_MEAN ? total / me.size : total) * request.scale;
            });
          }
        }
      }
      Array flags(EPL_BOOL, 3);
      for (size_t i = 0; i < 3; ++i) test::Store(EPL_BOOL, flags.data(), i, i == 1 || me.rank == 0);
      const epl_segment segment = {flags.data(), flags.data(), 3};
      epl_request any = Request(gpu, "any", EPL_ALL_REDUCE, EPL_BOOL, &segment);
      any.reduce_op = EPL_MIN;
      CHECK_OK(me.Run(any));
      flags.Check(0, 3, "all", [&](size_t i) { return i == 1 || me.size == 1 ? 1 : 0; });
    });
  }
}

TEST(nccl_segments_are_one_group_without_copies) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    Array first(EPL_FLOAT32, 5), second(EPL_FLOAT32, 7);
    first.Fill(me.rank);
    second.Fill(me.rank);
    const epl_segment segments[] = {
        {first.data(), first.data(), 5}, {nullptr, nullptr, 0}, {second.data(), second.data(), 7}};
    gpu.TakeLog();
    CHECK_OK(me.Run(Request(gpu, "cut", EPL_ALL_REDUCE, EPL_FLOAT32, segments, 3)));
    first.Check(0, 5, "first", [&](size_t i) { return Sum(2, i); });
    second.Check(0, 7, "second", [&](size_t i) { return Sum(2, i); });
    const std::vector<std::string> log = gpu.TakeLog();
    const auto has = [&](const std::string& part) {
      return std::count_if(log.begin(), log.end(), [&](const std::string& line) { return line.find(part) == 0; });
    };
    CHECK_THAT(has("ncclAllReduce") == 2 && has("ncclGroupStart") == 1 && has("cudaMemcpyAsync") == 0, "calls");
  });
}

// Ranks may cut one stream in different ways; then data is put together on the GPU.
TEST(nccl_segments_that_differ_between_ranks) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    const size_t border = me.rank == 0 ? 4 : 9;
    for (epl_collective collective : {EPL_ALL_REDUCE, EPL_REDUCE, EPL_BROADCAST}) {
      Array data(EPL_INT32, 12);
      data.Fill(me.rank);
      const epl_segment segments[] = {{data.data(), data.data(), border},
                                      {data.at(border), data.at(border), 12 - border}};
      epl_request request = Request(gpu, "cuts", collective, EPL_INT32, segments, 2);
      request.peer = 1;
      CHECK_OK(me.Run(request));
      const bool gets = collective != EPL_REDUCE || me.rank == 1;
      data.Check(0, 12, "cuts", [&](size_t i) {
        return !gets ? Value(me.rank, i) : collective == EPL_BROADCAST ? Value(1, i) : Sum(2, i);
      });
    }
  });
}

TEST(nccl_reduce_and_reduce_scatter) {
  test::RunGpus(3, [](Rank& me, Gpu& gpu) {
    const size_t n = static_cast<size_t>(me.size), rank = static_cast<size_t>(me.rank);
    for (size_t share : {0, 1, 411}) {
      Array in(EPL_FLOAT32, share * n), out(EPL_FLOAT32, share * n), part(EPL_FLOAT32, share);
      in.Fill(me.rank);
      const epl_segment whole = {in.data(), out.data(), share * n};
      epl_request reduce = Request(gpu, "reduce", EPL_REDUCE, EPL_FLOAT32, &whole);
      reduce.peer = 2;
      CHECK_OK(me.Run(reduce));
      out.Check(0, share * n, "reduce", [&](size_t i) { return me.rank == 2 ? Sum(me.size, i) : 0.0; });
      const epl_segment shares = {in.data(), part.data(), share * n};
      CHECK_OK(me.Run(Request(gpu, "scatter", EPL_REDUCE_SCATTER, EPL_FLOAT32, &shares)));
      part.Check(0, share, "scatter", [&](size_t i) { return Sum(me.size, rank * share + i); });
      // Uneven, in place, and one rank gets nothing.
      const size_t counts[] = {2 * share, 0, share};
      const size_t starts[] = {0, 2 * share, 2 * share};
      const epl_segment uneven = {in.data(), in.data(), share * n};
      epl_request request = Request(gpu, "uneven", EPL_REDUCE_SCATTER, EPL_FLOAT32, &uneven);
      request.send_counts = counts;
      request.reduce_op = EPL_MEAN;
      request.scale = 2.0;
      CHECK_OK(me.Run(request));
      in.Check(0, counts[rank], "uneven", [&](size_t i) { return Sum(me.size, starts[rank] + i) / me.size * 2.0; });
      // The same in two segments, cut where no share ends.
      Array fresh(EPL_FLOAT32, share * n), mine(EPL_FLOAT32, counts[rank]);
      fresh.Fill(me.rank);
      const size_t cut = share / 2;
      const epl_segment two[] = {{fresh.data(), mine.data(), cut},
                                 {fresh.data() + cut * sizeof(float), nullptr, share * n - cut}};
      request = Request(gpu, "in pieces", EPL_REDUCE_SCATTER, EPL_FLOAT32, two, 2);
      request.send_counts = counts;
      CHECK_OK(me.Run(request));
      mine.Check(0, counts[rank], "in pieces", [&](size_t i) { return Sum(me.size, starts[rank] + i); });
    }
  });
}

TEST(nccl_gather_and_broadcast) {
  test::RunGpus(3, [](Rank& me, Gpu& gpu) {
    const size_t n = static_cast<size_t>(me.size), rank = static_cast<size_t>(me.rank);
    for (epl_dtype dtype : kAll) {
      if (dtype == EPL_BOOL) continue;
      Array in(dtype, 11), out(dtype, 11 * n), joined(dtype, 0), sent(dtype, 6), got(dtype, 0);
      in.Fill(me.rank);
      const epl_segment equal = {in.data(), out.data(), 11};
      CHECK_OK(me.Run(Request(gpu, "gather", EPL_ALL_GATHER, dtype, &equal)));
      for (size_t r = 0; r < n; ++r) {
        out.Check(r * 11, 11, "gather", [&](size_t i) { return Value(static_cast<int>(r), i); });
      }
      // The input where the output begins.
      std::copy(in.bytes.begin(), in.bytes.end(), out.bytes.begin());
      const epl_segment overlapping = {out.data(), out.data(), 11};
      CHECK_OK(me.Run(Request(gpu, "overlap", EPL_ALL_GATHER, dtype, &overlapping)));
      out.Check(22, 11, "overlap", [&](size_t i) { return Value(2, i); });
      // Uneven, from two pieces; rank 1 gives nothing.
      const size_t mine = rank == 1 ? 0 : 3 + rank;
      const epl_segment pieces[] = {{in.data(), nullptr, mine / 2}, {in.at(mine / 2), nullptr, mine - mine / 2}};
      CHECK_OK(RunAllocating(me, Request(gpu, "uneven", EPL_ALL_GATHER_V, dtype, pieces, 2), &joined));
      CHECK_THAT(joined.count == 8, std::to_string(joined.count));
      joined.Check(0, 3, "uneven", [&](size_t i) { return Value(0, i); });
      joined.Check(3, 5, "uneven", [&](size_t i) { return Value(2, i); });
      // A broadcast whose receivers learn its size.
      sent.Fill(me.rank);
      const epl_segment root = {sent.data(), nullptr, 6};
      epl_request broadcast = Request(gpu, "broadcast", EPL_BROADCAST, dtype, &root, me.rank == 1 ? 1 : 0);
      broadcast.peer = 1;
      CHECK_OK(me.rank == 1 ? me.Run(broadcast) : RunAllocating(me, broadcast, &got));
      if (me.rank != 1) got.Check(0, 6, "broadcast", [&](size_t i) { return Value(1, i); });
    }
  });
}

TEST(nccl_all_to_all_and_messages) {
  test::RunGpus(3, [](Rank& me, Gpu& gpu) {
    const size_t n = static_cast<size_t>(me.size), rank = static_cast<size_t>(me.rank);
    for (bool in_place : {false, true}) {
      Array in(EPL_INT64, 4 * n), out(EPL_INT64, 4 * n);
      in.Fill(me.rank);
      if (in_place) out.Fill(me.rank);
      const epl_segment segment = {in_place ? out.data() : in.data(), out.data(), 4 * n};
      CHECK_OK(me.Run(Request(gpu, "even", EPL_ALL_TO_ALL, EPL_INT64, &segment)));
      for (size_t r = 0; r < n; ++r) {
        out.Check(r * 4, 4, "even", [&](size_t i) { return Value(static_cast<int>(r), rank * 4 + i); });
      }
    }
    // Rank r sends r + to elements to rank `to`.
    std::vector<size_t> counts;
    size_t total = 0;
    for (size_t to = 0; to < n; ++to) total += (counts.push_back(rank + to), counts.back());
    Array in(EPL_UINT8, total), got(EPL_UINT8, 0);
    for (size_t i = 0; i < total; ++i) test::Store(EPL_UINT8, in.data(), i, static_cast<double>(10 * rank));
    const epl_segment uneven = {in.data(), nullptr, total};
    epl_request request = Request(gpu, "uneven", EPL_ALL_TO_ALL_V, EPL_UINT8, &uneven);
    request.send_counts = counts.data();
    CHECK_OK(RunAllocating(me, request, &got));
    size_t at = 0;
    for (size_t from = 0; from < n; ++from) {
      got.Check(at, from + rank, "uneven", [&](size_t) { return 10.0 * static_cast<double>(from); });
      at += from + rank;
    }
    CHECK_THAT(at == got.count, std::to_string(got.count));
    // A ring of messages would be a circle of waits: even ranks send first.
    Array message(EPL_FLOAT32, 9), arrived(EPL_FLOAT32, 9);
    message.Fill(me.rank);
    const epl_segment out_of_one = {message.data(), nullptr, 9};
    const epl_segment into_two[] = {{nullptr, arrived.data(), 4}, {nullptr, arrived.at(4), 5}};
    if (me.rank < 2) {
      epl_request send = Request(gpu, "message", EPL_SEND, EPL_FLOAT32, &out_of_one);
      epl_request receive = Request(gpu, "message", EPL_RECV, EPL_FLOAT32, into_two, 2);
      send.peer = receive.peer = 1 - me.rank;
      CHECK_OK(me.Run(me.rank == 0 ? send : receive));
      CHECK_OK(me.Run(me.rank == 0 ? receive : send));
      arrived.Check(0, 9, "message", [&](size_t i) { return Value(1 - me.rank, i); });
    }
    epl_request barrier = Request(gpu, "barrier", EPL_BARRIER, EPL_UINT8, nullptr, 0);
    CHECK_OK(me.Run(barrier));
  });
}

// The inputs come late on the caller's stream, and what the caller puts on it afterwards does not hold up the
// collective, which runs on a stream of its own.
TEST(nccl_order_of_streams_and_events) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    Array data(EPL_FLOAT32, 64);
    const epl_segment segment = {data.data(), data.data(), 64};
    const epl_request request = Request(gpu, "late", EPL_ALL_REDUCE, EPL_FLOAT32, &segment);
    gpu.TakeLog();
    gpu.EnqueueLate(100, [&] { data.Fill(me.rank); });
    CHECK_OK(me.SubmitAndWait(request));
    data.Check(0, 64, "late inputs", [&](size_t i) { return Sum(2, i); });

    const std::vector<std::string> log = gpu.TakeLog();
    const std::string caller = " stream " + std::to_string(gpu.number(gpu.stream));
    const auto find = [&](const std::string& begin, const std::string& end, size_t from) {
      for (size_t i = from; i < log.size(); ++i) {
        const bool ends =
            log[i].size() >= end.size() && log[i].compare(log[i].size() - end.size(), end.size(), end) == 0;
        if (log[i].compare(0, begin.size(), begin) == 0 && ends) return i;
      }
      CHECK_THAT(false, "no call '" + begin + "..." + end + "' after call " + std::to_string(from));
      return log.size();
    };
    const size_t marked = find("cudaEventRecord", caller, 0);
    const std::string inputs = log[marked].substr(16, log[marked].find(" stream") - 16);  // "event 5"
    const size_t waited = find("cudaStreamWaitEvent", inputs, marked);
    const std::string own = log[waited].substr(19, log[waited].find(" event") - 19);  // " stream 2"
    CHECK_THAT(own != caller, "a stream of its own: " + own);
    const size_t begun = find("ncclGroupStart", "", waited);
    const size_t reduced = find("ncclAllReduce count 64 type 7 op 0", own, begun);
    const size_t ended = find("ncclGroupEnd", "", reduced);
    find("cudaEventRecord", own, ended);
    for (const std::string& line : log) {
      CHECK_THAT(line.find("cudaMalloc") == std::string::npos && line.find("cudaMemcpy") == std::string::npos, line);
    }

    // Work behind the submission: done does not wait for it.
    data.Fill(me.rank);
    std::promise<void> release;
    std::shared_future<void> released = release.get_future().share();
    gpu.EnqueueLate(0, [] {});
    std::promise<int> done;
    epl_request submitted = request;
    submitted.done = [](void* arg, int code, const char*) { static_cast<std::promise<int>*>(arg)->set_value(code); };
    submitted.arg = &done;
    epl_comm_submit(me.comm, &submitted);
    gpu.EnqueueLate(0, [released] { released.wait_for(std::chrono::seconds(20)); });
    std::future<int> code = done.get_future();
    CHECK_THAT(code.wait_for(std::chrono::seconds(10)) == std::future_status::ready, "done waits for later work");
    release.set_value();
    CHECK_THAT(code.get() == EPL_OK, "late");
    data.Check(0, 64, "work behind", [&](size_t i) { return Sum(2, i); });
    gpu.drain(gpu.stream);
  });
}

TEST(nccl_carries_host_memory_in_the_same_order) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    Array on_gpu(EPL_FLOAT32, 8), on_host(EPL_FLOAT32, 8);
    on_gpu.Fill(me.rank);
    on_host.Fill(me.rank);
    const epl_segment gpu_segment = {on_gpu.data(), on_gpu.data(), 8},
                      host_segment = {on_host.data(), on_host.data(), 8};
    epl_request requests[] = {Request(gpu, "on the GPU", EPL_ALL_REDUCE, EPL_FLOAT32, &gpu_segment),
                              test::MakeRequest("on the host", EPL_ALL_REDUCE, EPL_FLOAT32, &host_segment, 1)};
    const int64_t tags[] = {7, 3};
    CHECK_THAT(epl_comm_expect(me.comm, tags, 2) == EPL_OK, "expect");
    requests[0].tag = 7;
    requests[1].tag = 3;
    std::future<Outcome> other = std::async(std::launch::async, [&] { return me.SubmitAndWait(requests[me.rank]); });
    CHECK_OK(me.SubmitAndWait(requests[1 - me.rank]));
    CHECK_OK(other.get());
    on_gpu.Check(0, 8, "GPU", [&](size_t i) { return Sum(2, i); });
    on_host.Check(0, 8, "host", [&](size_t i) { return Sum(2, i); });
    Array zeros(EPL_INT32, 5);
    zeros.Fill(3);
    char error[256] = "";
    CHECK_THAT(epl_comm_zero(me.comm, zeros.data(), 20, gpu.stream, error, sizeof(error)) == EPL_OK, error);
    gpu.drain(gpu.stream);
    zeros.Check(0, 5, "zeros", [](size_t) { return 0.0; });
  });
}

// Two communicators, each used by a thread of its own; every rank draws the same requests.
TEST(nccl_random_requests_on_several_communicators) {
  test::RunGpus(3, [](Rank& me, Gpu& gpu) {
    Rank second = me;
    CHECK_OK(test::Connect(&second, "second"));
    const auto run = [&gpu](const Rank& rank, unsigned seed) {
      std::mt19937 random(seed);
      const size_t n = static_cast<size_t>(rank.size);
      for (int step = 0; step < 40; ++step) {
        const size_t count = random() % 50;
        const bool on_gpu = random() % 3 != 0;
        const std::string name = "step " + std::to_string(step);
        Array in(EPL_FLOAT32, count * n), out(EPL_FLOAT32, count * n);
        in.Fill(rank.rank);
        const epl_collective kinds[] = {EPL_ALL_REDUCE, EPL_ALL_TO_ALL, EPL_BROADCAST, EPL_ALL_GATHER};
        const epl_collective kind = kinds[random() % 4];
        const epl_segment segment = {in.data(), out.data(), kind == EPL_ALL_GATHER ? count : count * n};
        epl_request request = Request(gpu, name.c_str(), kind, EPL_FLOAT32, &segment);
        request.peer = static_cast<int>(random() % n);
        if (!on_gpu) request.stream = nullptr;
        CHECK_OK(step % 2 == 0 ? rank.Run(request) : rank.SubmitAndWait(request));
        if (kind == EPL_BROADCAST && request.peer == rank.rank) continue;
        out.Check(0, count * n, name, [&](size_t i) {
          const int from = count == 0 ? 0 : static_cast<int>(i / count);
          if (kind == EPL_ALL_REDUCE) return Sum(rank.size, i);
          if (kind == EPL_BROADCAST) return Value(request.peer, i);
          return Value(from, i % count + (kind == EPL_ALL_TO_ALL ? static_cast<size_t>(rank.rank) * count : 0));
        });
      }
    };
    std::thread other([&] { run(second, 7); });
    run(me, 3);
    other.join();
    epl_comm_destroy(second.comm);
  });
}

}  // namespace
