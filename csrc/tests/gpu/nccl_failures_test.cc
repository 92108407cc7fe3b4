// What goes wrong between GPUs: every rank gets an error that names the rank and the cause, and soon.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "gpu_harness.h"

namespace {

using test::Contains;
using test::Gpu;
using test::Now;
using test::Outcome;
using test::Rank;

constexpr int kRemoteError = 6, kInternalError = 3;

struct Buffer : test::Ones {
  using Ones::Ones;
  epl_request Request(const Gpu& gpu, const char* name, epl_collective collective = EPL_ALL_REDUCE) {
    epl_request request = test::MakeRequest(name, collective, EPL_FLOAT32, &segment, 1);
    request.stream = gpu.stream;
    return request;
  }
};

// A new communicator between the same ranks works.
void CheckFresh(Rank* me, const Gpu& gpu, const std::string& name) {
  epl_comm_destroy(me->comm);
  const Outcome made = test::Connect(me, name);
  CHECK_THAT(made.code == EPL_OK, made.message);
  if (me->comm == nullptr) return;
  Buffer buffer(3);
  const Outcome outcome = me->Run(buffer.Request(gpu, "again"));
  CHECK_THAT(outcome.code == EPL_OK && buffer.data[2] == static_cast<float>(me->size), outcome.message);
}

TEST(nccl_mismatch_is_named_before_data_moves) {
  struct Case {
    const char* part;
    void (*differ)(epl_request*);
  };
  const Case cases[] = {
      {"all_reduce 'other'", [](epl_request* request) { request->name = "other"; }},
      {"max", [](epl_request* request) { request->reduce_op = EPL_MAX; }},
      {"int32", [](epl_request* request) { request->dtype = EPL_INT32; }},
      {"all_gather", [](epl_request* request) { request->collective = EPL_ALL_GATHER; }},
      {"scaled by 0.5", [](epl_request* request) { request->scale = 0.5; }},
  };
  test::RunGpus(2, [&](Rank& me, Gpu& gpu) {
    int number = 0;
    for (const Case& one : cases) {
      Buffer buffer(8);
      buffer.segment.count = 4;
      epl_request request = buffer.Request(gpu, "grads");
      if (me.rank == 1) one.differ(&request);
      gpu.TakeLog();
      const Outcome outcome = me.Run(request);
      CHECK_THAT(outcome.code == EPL_MISMATCH &&
                     Contains(outcome.message, "rank 0 calls all_reduce 'grads' (float32") &&
                     Contains(outcome.message, one.part),
                 outcome.message);
      for (const std::string& line : gpu.TakeLog()) CHECK_THAT(!Contains(line, "ncclAll"), line);
      CHECK_THAT(buffer.data[0] == 1.0f, "data moved");
      CheckFresh(&me, gpu, "after" + std::to_string(number++));
    }
    // One side in host memory.
    Buffer buffer(4);
    epl_request request = buffer.Request(gpu, "grads");
    if (me.rank == 0) request.stream = nullptr;
    const Outcome outcome = me.Run(request);
    CHECK_THAT(outcome.code == EPL_MISMATCH && Contains(outcome.message, "all_reduce 'grads'") &&
                   Contains(outcome.message, "work in GPU memory"),
               outcome.message);
  });
}

TEST(nccl_message_mismatch) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    Buffer buffer(me.rank == 0 ? 4 : 5);
    epl_request request = buffer.Request(gpu, "message", me.rank == 0 ? EPL_SEND : EPL_RECV);
    request.peer = 1 - me.rank;
    const Outcome outcome = me.Run(request);
    CHECK_THAT(outcome.code == EPL_MISMATCH && Contains(outcome.message, "send 'message' (float32, 4 elements"),
               outcome.message);
    CheckFresh(&me, gpu, "after");
  });
}

TEST(nccl_async_error_reaches_all_ranks_with_rank_and_cause) {
  test::RunGpus(3, [](Rank& me, Gpu& gpu) {
    Buffer buffer(5);
    // The others' work never ends by itself, as NCCL's does not.
    if (me.rank == 1) gpu.stall(kInternalError);
    const double start = Now();
    const Outcome outcome = me.Run(buffer.Request(gpu, "grads"));
    CHECK_THAT(outcome.code == EPL_INTERNAL && Contains(outcome.message, "rank 1: all_reduce 'grads'") &&
                   Contains(outcome.message, "NCCL result 3"),
               outcome.message);
    CHECK_THAT(Now() - start < 4.0, std::to_string(Now() - start));
    int aborts = 0;
    for (const std::string& line : gpu.TakeLog()) aborts += line == "ncclCommAbort";
    CHECK_THAT(aborts == 1, std::to_string(aborts));
    const Outcome later = me.Run(buffer.Request(gpu, "later"));
    CHECK_THAT(later.code == EPL_INTERNAL && later.message == outcome.message, later.message);
    CheckFresh(&me, gpu, "after");
  });
}

TEST(nccl_calls_that_fail) {
  for (const char* call : {"ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"}) {
    test::RunGpus(2, [call](Rank& me, Gpu& gpu) {
      Buffer buffer(5);
      if (me.rank == 0) gpu.fail_call(call, kInternalError);
      const Outcome outcome = me.Run(buffer.Request(gpu, "grads"));
      CHECK_THAT(outcome.code == EPL_INTERNAL && Contains(outcome.message, "rank 0: "), outcome.message);
      CheckFresh(&me, gpu, "after");  // the group that was open is closed
    });
  }
}

TEST(nccl_gpu_error) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    Buffer buffer(5);
    gpu.EnqueueLate(50, [] {});
    if (me.rank == 0) gpu.break_cuda(700);
    const Outcome outcome = me.Run(buffer.Request(gpu, "grads"));
    // What the other rank knows is that rank 0 has ended and why.
    CHECK_THAT((me.rank == 1 && outcome.code == EPL_OK) || Contains(outcome.message, "CUDA error 700"),
               outcome.message);
    if (me.rank == 1) {
      const Outcome later = me.Run(buffer.Request(gpu, "later"));
      CHECK_THAT(Contains(later.message, "CUDA error 700"), later.message);
    }
  });
}

TEST(nccl_killed_peer_is_named_within_two_seconds) {
  const test::Ranks ranks = test::StartGpus(3, 20.0, true, [](Rank& me, Gpu& gpu) {
    Buffer buffer(5);
    CHECK_THAT(me.Run(buffer.Request(gpu, "first")).code == EPL_OK, "first");
    if (me.rank == 2) {
      // Its GPU stays behind the agreement; then the process is gone.
      gpu.EnqueueLate(20000, [] {});
      std::thread([] {
        usleep(300000);
        kill(getpid(), SIGKILL);
      }).detach();
    } else {
      usleep(100000);
    }
    const double start = Now();
    const Outcome outcome = me.Run(buffer.Request(gpu, "grads"));
    CHECK_THAT(outcome.code == EPL_PEER_LOST && Contains(outcome.message, "rank 2"), outcome.message);
    CHECK_THAT(Now() - start < 2.3, std::to_string(Now() - start));
  });
  test::Finish(ranks, 30.0, {2});
}

TEST(nccl_remote_error_is_told_as_the_death_behind_it) {
  const test::Ranks ranks = test::StartGpus(2, 20.0, true, [](Rank& me, Gpu& gpu) {
    Buffer buffer(5);
    if (me.rank == 1) {
      gpu.EnqueueLate(20000, [] {});
      std::thread([] {
        usleep(200000);
        kill(getpid(), SIGKILL);
      }).detach();
    } else {
      gpu.stall(kRemoteError);
    }
    const Outcome outcome = me.Run(buffer.Request(gpu, "grads"));
    CHECK_THAT(outcome.code == EPL_PEER_LOST && Contains(outcome.message, "rank 1") &&
                   !Contains(outcome.message, "NCCL result"),
               outcome.message);
  });
  test::Finish(ranks, 30.0, {1});
}

TEST(nccl_timeouts_say_what_is_late) {
  const test::Ranks late = test::StartGpus(2, 2.0, true, [](Rank& me, Gpu& gpu) {
    Buffer buffer(5);
    std::promise<void> release;
    std::shared_future<void> released = release.get_future().share();
    if (me.rank == 0) gpu.EnqueueLate(0, [released] { released.wait(); });
    const double start = Now();
    const Outcome outcome = me.Run(buffer.Request(gpu, "grads"));
    CHECK_THAT(
        outcome.code == EPL_TIMEOUT && Contains(outcome.message, "grads") && Contains(outcome.message, "its GPU"),
        outcome.message);
    CHECK_THAT(Now() - start < 9.0, std::to_string(Now() - start));
    release.set_value();
  });
  // A rank that never comes is named by the agreement.
  const test::Ranks missing = test::StartGpus(2, 2.0, true, [](Rank& me, Gpu& gpu) {
    Buffer buffer(5);
    if (me.rank == 0) return usleep(5000000), void();
    const Outcome outcome = me.Run(buffer.Request(gpu, "grads"));
    CHECK_THAT(outcome.code == EPL_TIMEOUT && Contains(outcome.message, "grads") && Contains(outcome.message, "rank 0"),
               outcome.message);
  });
  test::Finish(late, 40.0);
  test::Finish(missing, 40.0);
}

TEST(nccl_abort_ends_work_on_the_gpu_everywhere) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    Buffer buffer(5);
    gpu.stall(0);
    std::thread aborter;
    if (me.rank == 1) {
      aborter = std::thread([&] {
        usleep(300000);
        epl_comm_abort(me.comm, "the user's wish");
      });
    }
    const double start = Now();
    const Outcome outcome = me.SubmitAndWait(buffer.Request(gpu, "grads"));
    CHECK_THAT(outcome.code == EPL_ABORTED && Contains(outcome.message, "the user's wish"), outcome.message);
    CHECK_THAT(Now() - start < 2.3, std::to_string(Now() - start));
    if (aborter.joinable()) aborter.join();
    CheckFresh(&me, gpu, "after");
  });
}

TEST(nccl_destroy_with_work_under_way) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    Buffer buffer(5);
    gpu.stall(0);
    std::promise<int> done;
    epl_request request = buffer.Request(gpu, "grads");
    request.done = [](void* arg, int code, const char*) { static_cast<std::promise<int>*>(arg)->set_value(code); };
    request.arg = &done;
    epl_comm_submit(me.comm, &request);
    usleep(200000);
    epl_comm_destroy(me.comm);
    me.comm = nullptr;
    CHECK_THAT(done.get_future().get() == EPL_ABORTED, "destroyed");
  });
}

TEST(nccl_joining_that_fails_reaches_all_ranks) {
  for (const char* call : {"ncclGetUniqueId", "ncclCommInitRankConfig"}) {
    test::Finish(test::StartGpus(3, 10.0, false,
                                 [call](Rank& me, Gpu& gpu) {
                                   if (me.rank == 0) gpu.fail_call(call, kInternalError);
                                   const double start = Now();
                                   const Outcome outcome = test::Connect(&me, "test");
                                   CHECK_THAT(outcome.code != EPL_OK && Contains(outcome.message, "rank 0") &&
                                                  Contains(outcome.message, call),
                                              outcome.message);
                                   CHECK_THAT(Now() - start < 5.0, std::to_string(Now() - start));
                                   const Outcome again = test::Connect(&me, "again");
                                   CHECK_THAT(again.code == EPL_OK, again.message);
                                 }),
                 40.0);
  }
}

TEST(nccl_libraries_that_are_missing) {
  for (const char* backend : {"nccl", "gpu"}) {
    test::Finish(
        test::StartGpus(
            2, 10.0, false,
            [backend](Rank& me, Gpu& gpu) {
              me.backend = backend;
              me.cuda_library = test::FakeLibrary("libfake_cuda_runtime.so");
              me.nccl_library = me.rank == 0 ? test::FakeLibrary("libfake_nccl.so") : "/nowhere.so";
              const Outcome outcome = me.Create("test");
              if (me.backend == "nccl") {
                CHECK_THAT(outcome.code != EPL_OK && Contains(outcome.message, "rank 1") &&
                               Contains(outcome.message, "/nowhere.so") && Contains(outcome.message, "pip install"),
                           outcome.message);
                return;
              }
              CHECK_THAT(epl_comm_backend(me.comm) == std::string("shm"), outcome.message);
              Buffer buffer(4);
              epl_request request = buffer.Request(gpu, "grads");
              Outcome refused = me.Run(request);
              CHECK_THAT(refused.code == EPL_INVALID && Contains(refused.message, "GPU memory"), refused.message);
              request.stream = nullptr;
              CHECK_THAT(me.Run(request).code == EPL_OK && buffer.data[0] == 2.0f, "on the host");
            }),
        40.0);
  }
}

TEST(nccl_devices_are_checked) {
  test::Finish(test::StartGpus(2, 10.0, false,
                               [](Rank& me, Gpu&) {
                                 me.device = 3;
                                 const Outcome same = test::Connect(&me, "same");
                                 CHECK_THAT(same.code != EPL_OK && Contains(same.message, "same GPU as rank 0"),
                                            same.message);
                                 // As NCCL itself has it: ranks of different hosts have different GPUs.
                                 setenv("NCCL_HOSTID", std::to_string(me.rank).c_str(), 1);
                                 const Outcome told_apart = test::Connect(&me, "hosts");
                                 CHECK_THAT(told_apart.code == EPL_OK, told_apart.message);
                                 epl_comm_destroy(me.comm);
                                 me.comm = nullptr;
                                 me.device = me.rank == 0 ? 0 : 8;
                                 const Outcome none = test::Connect(&me, "none");
                                 CHECK_THAT(none.code != EPL_OK && Contains(none.message, "8 GPUs"), none.message);
                               }),
               40.0);
}

TEST(nccl_refuses_what_it_cannot_reduce) {
  test::RunGpus(2, [](Rank& me, Gpu& gpu) {
    Buffer buffer(4);
    epl_request request = buffer.Request(gpu, "mean");
    request.dtype = EPL_INT32;
    request.reduce_op = EPL_MEAN;
    const Outcome mean = me.Run(request);
    CHECK_THAT(mean.code == EPL_INVALID && Contains(mean.message, "mean of integers"), mean.message);
    request = buffer.Request(gpu, "max");
    request.reduce_op = EPL_MAX;
    request.scale = 2.0;
    CHECK_THAT(me.Run(request).code == EPL_INVALID, "scaled maximum");
    CHECK_THAT(me.Run(buffer.Request(gpu, "sum")).code == EPL_OK && buffer.data[0] == 2.0f, "goes on");
  });
}

}  // namespace
