// What goes wrong: late, stopped and killed ranks, aborts, disagreement, bad arguments, and order.
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "harness.h"

namespace {

using test::Contains;
using test::Now;
using test::Outcome;
using test::Rank;

struct Buffer : test::Ones {
  using Ones::Ones;
  epl_request AllReduce(const char* name) { return test::MakeRequest(name, EPL_ALL_REDUCE, EPL_FLOAT32, &segment, 1); }
};

TEST(killed_rank_is_named) {
  for (const std::string& backend : test::Backends()) {
    for (size_t count : {10, 3000000}) {
      const test::Ranks ranks = test::Start(3, backend, 20.0, true, [&](Rank& me) {
        Buffer buffer(count);
        CHECK_THAT(me.Run(buffer.AllReduce("warm")).code == EPL_OK, "warm");
        if (me.rank == 1) raise(SIGKILL);
        const double start = Now();
        const Outcome outcome = me.SubmitAndWait(buffer.AllReduce("grads"));
        CHECK_THAT(outcome.code == EPL_PEER_LOST, std::to_string(outcome.code) + outcome.message);
        CHECK_THAT(Contains(outcome.message, "rank 1"), outcome.message);
        CHECK_THAT(Now() - start < 2.0, std::to_string(Now() - start));
        CHECK_THAT(me.Run(buffer.AllReduce("later")).code == EPL_PEER_LOST, "later requests fail as well");
      });
      test::Finish(ranks, 20.0, {1});
    }
  }
}

TEST(stopped_rank_is_named_after_the_time_out) {
  std::vector<test::Ranks> jobs;
  for (const std::string& backend : test::Backends()) {
    jobs.push_back(test::Start(3, backend, 1.0, true, [](Rank& me) {
      Buffer buffer(1000);
      if (me.rank == 2) raise(SIGSTOP);
      const double start = Now();
      const Outcome outcome = me.Run(buffer.AllReduce("grads/7"));
      if (me.rank == 2) {
        CHECK_THAT(outcome.code != EPL_OK, "continued, it finds the communicator ended");
        return;
      }
      CHECK_THAT(outcome.code == EPL_TIMEOUT, std::to_string(outcome.code) + outcome.message);
      CHECK_THAT(Contains(outcome.message, "grads/7") && Contains(outcome.message, "all_reduce"), outcome.message);
      CHECK_THAT(Contains(outcome.message, "rank 2"), outcome.message);
      CHECK_THAT(Now() - start < 2.5, std::to_string(Now() - start));
    }));
  }
  sleep(3);
  for (const test::Ranks& ranks : jobs) kill(ranks.pids[2], SIGCONT);
  for (const test::Ranks& ranks : jobs) test::Finish(ranks, 20.0);
}

TEST(abort_reaches_everyone) {
  for (const std::string& backend : test::Backends()) {
    test::Run(3, backend, [](Rank& me) {
      Buffer buffer(100);
      if (me.rank == 0) {
        usleep(200000);
        epl_comm_abort(me.comm, "worker 0 met OutOfRangeError");
        epl_comm_abort(me.comm, "a later reason");
      }
      const double start = Now();
      const Outcome outcome = me.SubmitAndWait(buffer.AllReduce("step"));
      CHECK_THAT(outcome.code == EPL_ABORTED, std::to_string(outcome.code) + outcome.message);
      CHECK_THAT(Contains(outcome.message, "worker 0 met OutOfRangeError"), outcome.message);
      CHECK_THAT(Now() - start < 1.0, std::to_string(Now() - start));
      const int64_t tag = 1;
      CHECK_THAT(epl_comm_expect(me.comm, &tag, 1) != EPL_OK, "expect after an abort");
      // A new communicator works.
      epl_comm_destroy(me.comm);
      const Outcome created = me.Create("generation2");
      CHECK_THAT(created.code == 0, created.message);
      CHECK_THAT(me.Run(buffer.AllReduce("again")).code == EPL_OK, "again");
      CHECK_THAT(buffer.data[3] == 3.0f, std::to_string(buffer.data[3]));
    });
  }
}

TEST(abort_wakes_a_rank_in_its_own_wait) {
  for (const std::string& backend : test::Backends()) {
    test::Run(2, backend, [](Rank& me) {
      Buffer buffer(100);
      if (me.rank == 1) return (void)usleep(600000);
      std::thread aborter([&] {
        usleep(100000);
        epl_comm_abort(me.comm, "from another thread");
      });
      const double start = Now();
      const Outcome outcome = me.Run(buffer.AllReduce("alone"));
      CHECK_THAT(outcome.code == EPL_ABORTED && Contains(outcome.message, "from another thread"), outcome.message);
      CHECK_THAT(Now() - start < 0.4, std::to_string(Now() - start));
      aborter.join();
    });
  }
}

TEST(mismatch_names_both_sides) {
  struct Case {
    const char* name;
    void (*change)(epl_request*, epl_segment*);
    const char *mine, *theirs;
  };
  const Case cases[] = {
      {"collective", [](epl_request* r, epl_segment*) { r->collective = EPL_BROADCAST; }, "all_reduce", "broadcast"},
      {"name", [](epl_request* r, epl_segment*) { r->name = "other"; }, "'grads'", "'other'"},
      {"dtype", [](epl_request* r, epl_segment*) { r->dtype = EPL_INT32; }, "float32", "int32"},
      {"count", [](epl_request*, epl_segment* s) { s->count = 99; }, "100 elements", "99 elements"},
      {"op", [](epl_request* r, epl_segment*) { r->reduce_op = EPL_MAX; }, "sum", "max"},
      {"scale", [](epl_request* r, epl_segment*) { r->scale = 0.25; }, "all_reduce", "scaled by 0.25"},
      {"barrier",
       [](epl_request* r, epl_segment*) {
         r->collective = EPL_BARRIER;
         r->num_segments = 0;
       },
       "all_reduce", "barrier"},
  };
  for (const std::string& backend : test::Backends()) {
    for (const Case& one : cases) {
      for (size_t factor : {1, 10000}) {
        test::Run(2, backend, [&](Rank& me) {
          Buffer buffer(100 * factor);
          epl_request request = buffer.AllReduce("grads");
          if (me.rank == 1) one.change(&request, &buffer.segment);
          const Outcome outcome = me.Run(request);
          CHECK_THAT(outcome.code == EPL_MISMATCH, one.name + std::to_string(outcome.code) + outcome.message);
          if (factor != 1) return;
          CHECK_THAT(Contains(outcome.message, one.mine) && Contains(outcome.message, one.theirs), outcome.message);
          CHECK_THAT(Contains(outcome.message, "rank 0") && Contains(outcome.message, "rank 1"), outcome.message);
          for (float value : buffer.data) CHECK_THAT(value == 1.0f, "the buffer was written");
        });
      }
    }
    test::Run(2, backend, [](Rank& me) {
      Buffer buffer(10);
      const int collective = me.rank == 0 ? EPL_SEND : EPL_RECV;
      epl_request request =
          test::MakeRequest("message", static_cast<epl_collective>(collective), EPL_FLOAT32, &buffer.segment, 1);
      request.peer = 1 - me.rank;
      buffer.segment.count = me.rank == 0 ? 10 : 9;
      Outcome outcome = me.Run(request);
      // A small message may be on its way, and the sender done, before the receiver has looked at it.
      if (me.rank == 0 && outcome.code == EPL_OK) outcome = me.Run(buffer.AllReduce("next"));
      CHECK_THAT(outcome.code == EPL_MISMATCH && Contains(outcome.message, "10 elements") &&
                     Contains(outcome.message, "9 elements"),
                 std::to_string(outcome.code) + outcome.message);
    });
  }
}

// One rank is in a group collective and the other in a message, or both wait to receive.
TEST(crossed_requests_are_a_mismatch) {
  for (const std::string& backend : test::Backends()) {
    for (const epl_collective first : {EPL_ALL_REDUCE, EPL_RECV}) {
      test::Run(2, backend, [&](Rank& me) {
        Buffer buffer(4000000);  // more than sockets hold, so that no send can end by itself
        epl_request request = buffer.AllReduce("crossed");
        request.peer = 1 - me.rank;
        request.collective = me.rank == 0 ? first : EPL_RECV;
        if ((backend == "gloo" || backend == "tcp") && me.rank == 1)
          request.collective = first == EPL_RECV ? EPL_ALL_REDUCE : EPL_SEND;
        const double start = Now();
        const Outcome outcome = me.Run(request);
        CHECK_THAT(outcome.code == EPL_MISMATCH, std::to_string(outcome.code) + outcome.message);
        CHECK_THAT(Contains(outcome.message, "rank 0") && Contains(outcome.message, "rank 1"), outcome.message);
        CHECK_THAT(Now() - start < 2.0, std::to_string(Now() - start));
      });
    }
  }
}

TEST(tags_run_in_the_declared_order) {
  for (const std::string& backend : test::Backends()) {
    test::Run(2, backend, [](Rank& me) {
      for (int step = 0; step < 50; ++step) {
        const int64_t order[] = {5, 3, 9, 1};
        CHECK_THAT(epl_comm_expect(me.comm, order, 4) == EPL_OK, "expect");
        CHECK_THAT(epl_comm_expect(me.comm, order, 4) == EPL_INVALID, "the step is open");
        // Each rank submits in another order, from four threads.
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i) {
          threads.emplace_back([&me, i, step] {
            const int64_t tags[] = {1, 3, 5, 9};
            const int64_t tag = tags[(i + me.rank * (step % 3 + 1)) % 4];
            Buffer buffer(static_cast<size_t>(tag) * 1000);
            const std::string name = "tag" + std::to_string(tag);
            epl_request request = buffer.AllReduce(name.c_str());
            request.tag = tag;
            const Outcome outcome = me.SubmitAndWait(request);
            CHECK_THAT(outcome.code == EPL_OK, outcome.message);
            CHECK_THAT(buffer.data.back() == 2.0f, std::to_string(buffer.data.back()));
          });
        }
        for (std::thread& thread : threads) thread.join();
      }
      Buffer buffer(10);
      epl_request request = buffer.AllReduce("undeclared");
      request.tag = 77;
      const Outcome outcome = me.SubmitAndWait(request);
      CHECK_THAT(outcome.code == EPL_INVALID && Contains(outcome.message, "77"), outcome.message);
      const int64_t twice[] = {1, 1};
      CHECK_THAT(epl_comm_expect(me.comm, twice, 2) == EPL_INVALID, "the same tag twice");
    });
  }
}

TEST(request_behind_a_missing_tag_times_out) {
  const test::Ranks ranks = test::Start(2, "shm", 1.0, true, [](Rank& me) {
    const int64_t order[] = {1, 2};
    CHECK_THAT(epl_comm_expect(me.comm, order, 2) == EPL_OK, "expect");
    Buffer buffer(10);
    epl_request request = buffer.AllReduce("second");
    request.tag = 2;
    const Outcome outcome = me.SubmitAndWait(request);
    CHECK_THAT(outcome.code == EPL_TIMEOUT && Contains(outcome.message, "tag 1"), outcome.message);
  });
  test::Finish(ranks, 20.0);
}

TEST(parked_rank_notices_a_dead_peer) {
  for (const std::string& backend : test::Backends()) {
    const test::Ranks ranks = test::Start(2, backend, 20.0, true, [](Rank& me) {
      if (me.rank == 1) {
        usleep(100000);
        raise(SIGKILL);
      }
      const int64_t order[] = {1, 2};
      CHECK_THAT(epl_comm_expect(me.comm, order, 2) == EPL_OK, "expect");
      Buffer buffer(10);
      epl_request request = buffer.AllReduce("second");
      request.tag = 2;
      const double start = Now();
      const Outcome outcome = me.SubmitAndWait(request);
      CHECK_THAT(outcome.code == EPL_PEER_LOST && Contains(outcome.message, "rank 1"), outcome.message);
      CHECK_THAT(Now() - start < 2.0, std::to_string(Now() - start));
    });
    test::Finish(ranks, 20.0, {1});
  }
}

TEST(rank_that_leaves_early) {
  for (const std::string& backend : test::Backends()) {
    test::Run(2, backend, [](Rank& me) {
      Buffer buffer(10);
      epl_request request = test::MakeRequest("last", EPL_BROADCAST, EPL_FLOAT32, &buffer.segment, 1);
      // The root is done before the other has begun; that is no error.
      if (me.rank == 1) usleep(100000);
      const Outcome outcome = me.Run(request);
      CHECK_THAT(outcome.code == EPL_OK, outcome.message);
      if (me.rank == 0) return;
      usleep(100000);
      const Outcome alone = me.Run(buffer.AllReduce("alone"));
      CHECK_THAT(alone.code == EPL_PEER_LOST && Contains(alone.message, "rank 0"), alone.message);
    });
  }
}

TEST(destroy_fails_what_is_under_way) {
  for (const std::string& backend : test::Backends()) {
    test::Run(2, backend, [](Rank& me) {
      if (me.rank == 1) return (void)usleep(300000);
      Buffer buffer(10);
      Outcome outcome;
      std::thread waiter([&] { outcome = me.SubmitAndWait(buffer.AllReduce("never")); });
      usleep(100000);
      epl_comm_destroy(me.comm);
      me.comm = nullptr;
      waiter.join();
      CHECK_THAT(outcome.code == EPL_ABORTED, std::to_string(outcome.code) + outcome.message);
    });
  }
}

TEST(bad_arguments) {
  test::Run(2, "shm", [](Rank& me) {
    Buffer buffer(11);
    const auto refused = [&](epl_request request, const char* part) {
      const Outcome outcome = me.SubmitAndWait(request);
      CHECK_THAT(outcome.code == EPL_INVALID && Contains(outcome.message, part), outcome.message);
    };
    epl_request request = buffer.AllReduce("bad");
    request.peer = 2;
    request.collective = EPL_BROADCAST;
    refused(request, "peer 2");
    request.collective = EPL_SEND;
    request.peer = me.rank;
    refused(request, "itself");
    request = buffer.AllReduce("bad");
    request.dtype = EPL_BOOL;
    refused(request, "bool");
    request.dtype = EPL_INT32;
    request.scale = 2.0;
    refused(request, "scale");
    request = buffer.AllReduce("bad");
    request.collective = EPL_ALL_TO_ALL;
    refused(request, "11 elements");
    request.collective = EPL_REDUCE_SCATTER;
    refused(request, "send_counts");
    request.collective = EPL_ALL_GATHER_V;
    refused(request, "allocate");
    const epl_segment empty = {nullptr, nullptr, 3};
    request = test::MakeRequest("bad", EPL_ALL_REDUCE, EPL_FLOAT32, &empty, 1);
    refused(request, "no 'in' buffer");
    const Outcome outcome = me.Run(buffer.AllReduce("good"));
    CHECK_THAT(outcome.code == EPL_OK, outcome.message);
  });
}

// A gathering whose receiver has `room`, or none: then it refuses what comes.
epl_request GatherInto(const epl_segment* segment, float* room) {
  epl_request request = test::MakeRequest("gather", EPL_ALL_GATHER_V, EPL_FLOAT32, segment, 1);
  request.arg = room;
  request.allocate = [](void* arg, const size_t*, int, const uint8_t*, size_t) { return arg; };
  return request;
}

TEST(refused_allocation_fails_all) {
  for (const std::string& backend : test::Backends()) {
    test::Run(2, backend, [](Rank& me) {
      Buffer buffer(10);
      std::vector<float> room(100);
      const Outcome outcome = me.Run(GatherInto(&buffer.segment, me.rank == 0 ? nullptr : room.data()));
      if (me.rank == 0)
        CHECK_THAT(outcome.code == EPL_INTERNAL && Contains(outcome.message, "allocate"), outcome.message);
      CHECK_THAT(me.Run(buffer.AllReduce("next")).code != EPL_OK, "the communicator has ended");
    });
  }
}

TEST(why_an_allocation_is_refused_reaches_all) {
  for (const std::string& backend : test::Backends()) {
    test::Run(3, backend, [](Rank& me) {
      Buffer buffer(10);
      std::vector<float> room(100);
      epl_request request = GatherInto(&buffer.segment, me.rank == 1 ? nullptr : room.data());
      request.refusal = [](void*, char* message, size_t length) -> int {
        std::snprintf(message, length, "no room for 30 numbers");
        return EPL_MISMATCH;
      };
      // A rank that has all of its data is through; it learns of the refusal with what it calls next.
      Outcome outcome = me.Run(request);
      while (outcome.code == EPL_OK) outcome = me.Run(buffer.AllReduce("next"));
      CHECK_THAT(outcome.code == EPL_MISMATCH && Contains(outcome.message, "no room for 30 numbers"), outcome.message);
    });
  }
}

TEST(no_shared_memory_is_an_error_that_all_ranks_get) {
  const test::Ranks ranks = test::Start(2, "shm", 5.0, false, [](Rank& me) {
    if (me.rank == 1) test::LimitSharedMemory();
    const Outcome outcome = me.Create("full");
    CHECK_THAT(outcome.code != 0 && Contains(outcome.message, "rank 1") &&
                   Contains(outcome.message, "MiB of shared memory cannot be had"),
               outcome.message);
  });
  test::Finish(ranks, 20.0);
}

TEST(auto_takes_tcp_when_shared_memory_cannot_be_had) {
  const test::Ranks ranks = test::Start(2, "auto", 5.0, false, [](Rank& me) {
    if (me.rank == 1) test::LimitSharedMemory();
    const Outcome outcome = me.Create("full");
    CHECK_THAT(outcome.code == 0, outcome.message);
    CHECK_THAT(epl_comm_backend(me.comm) == std::string("tcp"), epl_comm_backend(me.comm));
    Buffer buffer(10);
    CHECK_THAT(me.Run(buffer.AllReduce("works")).code == EPL_OK && buffer.data[0] == 2.0f, "all-reduce");
  });
  test::Finish(ranks, 20.0);
}

TEST(stall_is_reported_once) {
  for (const std::string& backend : test::Backends()) {
    const test::Ranks ranks = test::Start(2, backend, 20.0, false, [](Rank& me) {
      me.stall_warning_s = 0.3;
      const std::string path = me.folder + "/stderr";
      if (me.rank == 0) CHECK_THAT(freopen(path.c_str(), "w", stderr) != nullptr, path);
      CHECK_THAT(me.Create("slow").code == 0, "create");
      Buffer buffer(10);
      if (me.rank == 1) usleep(1000000);
      CHECK_THAT(me.Run(buffer.AllReduce("grads/3")).code == EPL_OK, "all-reduce");
      if (me.rank == 1) return;
      std::fflush(stderr);
      char text[2000] = "";
      FILE* file = std::fopen(path.c_str(), "r");
      const size_t length = std::fread(text, 1, sizeof(text) - 1, file);
      std::fclose(file);
      const std::string all(text, length);
      const size_t at = all.find("grads/3");
      const bool once = at != std::string::npos && all.find("grads/3", at + 1) == std::string::npos;
      if (!once || !Contains(all, "rank 1")) exit(7);  // stderr is a file here
    });
    test::Finish(ranks, 20.0);
  }
}

TEST(missing_rank_at_creation_is_named) {
  for (const std::string& backend : test::Backends()) {
    const test::Ranks ranks = test::Start(3, backend, 1.0, false, [](Rank& me) {
      if (me.rank == 1) return;
      const Outcome outcome = me.Create("late");
      CHECK_THAT(outcome.code != 0 && Contains(outcome.message, "rank 1 "), outcome.message);
    });
    test::Finish(ranks, 20.0);
  }
}

TEST(wrong_token_is_refused) {
  for (const std::string& backend : test::Backends()) {
    const test::Ranks ranks = test::Start(2, backend, 3.0, false, [](Rank& me) {
      me.token = me.rank == 0 ? "secret" : "guess";
      const Outcome outcome = me.Create("private");
      CHECK_THAT(outcome.code != 0 && Contains(outcome.message, "token"), outcome.message);
    });
    test::Finish(ranks, 20.0);
  }
}

TEST(nothing_is_left_behind) {
  const auto count = [] {
    int entries = 0;
    if (DIR* folder = opendir("/dev/shm")) {
      while (const dirent* entry = readdir(folder)) entries += std::strstr(entry->d_name, "epl") != nullptr;
      closedir(folder);
    }
    return entries;
  };
  const int before = count();
  const test::Ranks ranks = test::Start(2, "shm", 20.0, true, [](Rank&) { raise(SIGKILL); });
  test::Finish(ranks, 20.0, {0, 1});
  CHECK_THAT(count() == before, "entries in /dev/shm");
}

TEST(idle_communicator_uses_no_cpu) {
  for (const std::string& backend : test::Backends()) {
    test::Run(2, backend, [](Rank& me) {
      Buffer buffer(10);
      CHECK_THAT(me.Run(buffer.AllReduce("warm")).code == EPL_OK, "warm");
      const clock_t before = clock();
      sleep(1);
      const double idle = static_cast<double>(clock() - before) / CLOCKS_PER_SEC;
      CHECK_THAT(idle < 0.02, std::to_string(idle) + " s of CPU in 1 s without work");
      // Waiting for a late peer must not burn a core either.
      if (me.rank == 1) sleep(1);
      const clock_t start = clock();
      CHECK_THAT(me.Run(buffer.AllReduce("late")).code == EPL_OK, "late");
      const double waiting = static_cast<double>(clock() - start) / CLOCKS_PER_SEC;
      CHECK_THAT(waiting < 0.05, std::to_string(waiting) + " s of CPU in 1 s of waiting");
    });
  }
}

TEST(pool_keeps_communicators_alive) {
  test::Run(2, "shm", [](Rank& me) {
    CHECK_THAT(epl_pool_acquire(3) == nullptr, "empty");
    epl_pool_set(3, me.comm);
    epl_comm* held = epl_pool_acquire(3);
    CHECK_THAT(held == me.comm, "acquire");
    epl_pool_set(3, nullptr);
    epl_comm_destroy(me.comm);
    me.comm = held;
    Buffer buffer(10);
    const Outcome outcome = me.SubmitAndWait(buffer.AllReduce("late"));
    CHECK_THAT(outcome.code == EPL_ABORTED || outcome.code == EPL_PEER_LOST, outcome.message);
    epl_pool_release(held);
    me.comm = nullptr;
  });
}

}  // namespace
