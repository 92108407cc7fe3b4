// What several hosts with several ranks each add: global ranks in messages, and failures that must cross both ways of
// moving data. Ranks 0 and 1 are taken as one host, ranks 2 and 3 as another; the other tests cover three ranks.
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "harness.h"

namespace {

using test::Contains;
using test::Now;
using test::Outcome;
using test::Rank;

const char kBackend[] = "hierarchical/2";

struct Buffer : test::Ones {
  using Ones::Ones;
  epl_request Request(const char* name, epl_collective collective) {
    return test::MakeRequest(name, collective, EPL_FLOAT32, &segment, 1);
  }
};

TEST(hierarchical_is_chosen_where_hosts_have_several_ranks) {
  struct Case {
    const char *backend, *expected;
    int size;
  };
  for (const Case& one :
       {Case{"auto/2", "hierarchical", 4}, Case{"auto/2", "hierarchical", 3}, Case{"auto/2", "shm", 2},
        Case{"auto/1", "tcp", 3}, Case{"hierarchical/1", "tcp", 2}, Case{"flat/2", "tcp", 4}, Case{"flat", "shm", 2}}) {
    test::Run(one.size, one.backend, [&](Rank& me) {
      CHECK_THAT(epl_comm_backend(me.comm) == std::string(one.expected), one.backend);
      Buffer buffer(5);
      CHECK_THAT(me.Run(buffer.Request("sum", EPL_ALL_REDUCE)).code == EPL_OK, one.backend);
      CHECK_THAT(buffer.data[4] == static_cast<float>(me.size), std::to_string(buffer.data[4]));
    });
  }
}

// Every rank in turn does something else, small or large, and both sides are named by their global ranks.
TEST(hierarchical_mismatch_is_named_wherever_it_is) {
  for (int odd = 0; odd < 4; ++odd) {
    for (size_t count : {100, 1000000}) {
      for (const epl_collective other : {EPL_ALL_REDUCE, EPL_BROADCAST, EPL_REDUCE}) {
        test::Run(4, kBackend, [&](Rank& me) {
          Buffer buffer(count);
          epl_request request = buffer.Request("grads", EPL_ALL_REDUCE);
          if (me.rank == odd) {
            request.collective = other;
            buffer.segment.count = other == EPL_ALL_REDUCE ? count / 2 : count;
          }
          const double start = Now();
          const Outcome outcome = me.Run(request);
          CHECK_THAT(outcome.code == EPL_MISMATCH, std::to_string(outcome.code) + outcome.message);
          CHECK_THAT(Contains(outcome.message, "rank " + std::to_string(odd)), outcome.message);
          CHECK_THAT(Now() - start < 2.0, std::to_string(Now() - start));
          for (float value : buffer.data) CHECK_THAT(value == 1.0f, "the buffer was written");
        });
      }
    }
  }
}

// All wait for the rank that does not come, some of them for each other, and all name it.
TEST(hierarchical_time_out_names_the_missing_rank) {
  for (int missing = 0; missing < 4; ++missing) {
    std::vector<test::Ranks> jobs;
    for (size_t count : {100, 1000000}) {
      jobs.push_back(test::Start(4, kBackend, 1.0, true, [&](Rank& me) {
        Buffer buffer(count);
        if (me.rank == missing) raise(SIGSTOP);
        const double start = Now();
        const Outcome outcome = me.Run(buffer.Request("grads/7", EPL_ALL_REDUCE));
        if (me.rank == missing) return;
        CHECK_THAT(outcome.code == EPL_TIMEOUT, std::to_string(outcome.code) + outcome.message);
        CHECK_THAT(Contains(outcome.message, "all_reduce 'grads/7'"), outcome.message);
        CHECK_THAT(Contains(outcome.message, "for rank " + std::to_string(missing)), outcome.message);
        CHECK_THAT(Now() - start < 2.5, std::to_string(Now() - start));
      }));
    }
    usleep(2500000);
    for (const test::Ranks& ranks : jobs) kill(ranks.pids[missing], SIGCONT);
    for (const test::Ranks& ranks : jobs) test::Finish(ranks, 20.0);
  }
}

// Rank 0 waits in memory for rank 1, which is busy elsewhere, when rank 3 of the other host dies.
TEST(hierarchical_death_elsewhere_ends_a_wait_within_the_host) {
  for (size_t count : {100, 1000000}) {
    const test::Ranks ranks = test::Start(4, kBackend, 20.0, true, [&](Rank& me) {
      Buffer buffer(count);
      CHECK_THAT(me.Run(buffer.Request("warm", EPL_ALL_REDUCE)).code == EPL_OK, "warm");
      if (me.rank == 3) {
        usleep(300000);
        raise(SIGKILL);
      }
      if (me.rank == 1) usleep(3000000);
      const double start = Now();
      const Outcome outcome = me.Run(buffer.Request("grads", EPL_ALL_REDUCE));
      CHECK_THAT(outcome.code == EPL_PEER_LOST, std::to_string(outcome.code) + outcome.message);
      CHECK_THAT(Contains(outcome.message, "rank 3"), outcome.message);
      CHECK_THAT(Now() - start < 2.3, std::to_string(Now() - start));
    });
    test::Finish(ranks, 20.0, {3});
  }
}

TEST(hierarchical_abort_reaches_everyone) {
  for (int from = 0; from < 4; ++from) {
    for (size_t count : {100, 1000000}) {
      test::Run(4, kBackend, [&](Rank& me) {
        Buffer buffer(count);
        if (me.rank == from) {
          usleep(200000);
          epl_comm_abort(me.comm, "worker met OutOfRangeError");
        }
        const double start = Now();
        const Outcome outcome = me.SubmitAndWait(buffer.Request("step", EPL_ALL_REDUCE));
        CHECK_THAT(outcome.code == EPL_ABORTED, std::to_string(outcome.code) + outcome.message);
        CHECK_THAT(Contains(outcome.message, "worker met OutOfRangeError"), outcome.message);
        CHECK_THAT(Now() - start < 1.0, std::to_string(Now() - start));
      });
    }
  }
}

TEST(hierarchical_without_shared_memory) {
  for (const char* backend : {"auto/2", "hierarchical/2"}) {
    const test::Ranks ranks = test::Start(4, backend, 5.0, false, [&](Rank& me) {
      if (me.rank == 3) test::LimitSharedMemory();
      const Outcome outcome = me.Create("full");
      if (backend == std::string("auto/2")) {
        CHECK_THAT(outcome.code == 0, outcome.message);
        CHECK_THAT(epl_comm_backend(me.comm) == std::string("tcp"), epl_comm_backend(me.comm));
        return;
      }
      CHECK_THAT(outcome.code != 0 && Contains(outcome.message, "rank 3") &&
                     Contains(outcome.message, "MiB of shared memory cannot be had"),
                 outcome.message);
    });
    test::Finish(ranks, 20.0);
  }
}

}  // namespace
