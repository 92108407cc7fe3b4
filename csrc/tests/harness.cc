#include "harness.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>

#include "file_store.h"

namespace test {
namespace {

int failures = 0;

using Steady = std::chrono::steady_clock;

}  // namespace

void Fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: (process %d) %s\n", file, line, getpid(), what.c_str());
  ++failures;
}

bool AnyFailed() { return failures != 0; }

double Now() { return std::chrono::duration<double>(Steady::now().time_since_epoch()).count(); }

bool Contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Outcome Rank::Create(const std::string& name) {
  static std::vector<std::unique_ptr<FileStore>> stores;
  stores.push_back(std::make_unique<FileStore>(folder));
  epl_comm_options options = {};
  options.backend = backend.c_str();
  options.name = name.c_str();
  options.rank = rank;
  options.size = size;
  options.timeout_s = timeout_s;
  options.stall_warning_s = stall_warning_s;
  options.host = "127.0.0.1";
  options.token = token.c_str();
  options.device = device;
  options.nccl_library = nccl_library.c_str();
  options.cuda_library = cuda_library.c_str();
  char error[4096] = "";
  comm = epl_comm_create(&options, &stores.back()->store, error, sizeof(error));
  return {comm == nullptr ? 1 : 0, error};
}

Outcome Rank::Run(const epl_request& request) const {
  char error[4096] = "";
  const int code = epl_comm_run(comm, &request, error, sizeof(error));
  return {code, error};
}

Outcome Rank::SubmitAndWait(epl_request request) const {
  // Outlives this call if the wait below gives up.
  auto* promise = new std::promise<Outcome>;
  std::future<Outcome> future = promise->get_future();
  request.arg = promise;
  request.done = [](void* arg, int code, const char* message) {
    auto* to = static_cast<std::promise<Outcome>*>(arg);
    to->set_value({code, message});
    delete to;
  };
  epl_comm_submit(comm, &request);
  if (future.wait_for(std::chrono::seconds(60)) != std::future_status::ready) return {-1, "done was not called"};
  return future.get();
}

epl_request MakeRequest(const char* name, epl_collective collective, epl_dtype dtype, const epl_segment* segments,
                        size_t num_segments) {
  epl_request request = {};
  request.tag = -1;
  request.name = name;
  request.collective = collective;
  request.dtype = dtype;
  request.reduce_op = EPL_SUM;
  request.segments = segments;
  request.num_segments = num_segments;
  request.scale = 1.0;
  return request;
}

Ranks Start(int size, const std::string& backend, double timeout_s, bool joined, const Body& body) {
  char folder[] = "/tmp/epl_comm_test_XXXXXX";
  Ranks ranks;
  if (mkdtemp(folder) == nullptr) {
    Fail(__FILE__, __LINE__, "mkdtemp");
    return ranks;
  }
  ranks.folder = folder;
  std::fflush(nullptr);
  for (int rank = 0; rank < size; ++rank) {
    const int pid = fork();
    if (pid == 0) {
      failures = 0;
      alarm(120);
      Rank me;
      me.rank = rank;
      me.size = size;
      me.folder = folder;
      me.backend = backend;
      me.timeout_s = timeout_s;
      if (joined) {
        const Outcome outcome = me.Create("test");
        CHECK_THAT(outcome.code == 0, outcome.message);
        if (me.comm == nullptr) _exit(1);
      }
      body(me);
      if (me.comm != nullptr) epl_comm_destroy(me.comm);
      // exit and not _exit: leaks are looked for there.
      exit(failures == 0 ? 0 : 1);
    }
    ranks.pids.push_back(pid);
  }
  return ranks;
}

void Finish(const Ranks& ranks, double limit_s, const std::vector<int>& killed) {
  const auto end = Steady::now() + std::chrono::duration<double>(limit_s);
  for (size_t rank = 0; rank < ranks.pids.size(); ++rank) {
    const bool was_killed = std::find(killed.begin(), killed.end(), static_cast<int>(rank)) != killed.end();
    int status = 0;
    int got = 0;
    while ((got = waitpid(ranks.pids[rank], &status, WNOHANG)) == 0 && Steady::now() < end) usleep(2000);
    if (got == 0) {
      kill(ranks.pids[rank], SIGKILL);
      waitpid(ranks.pids[rank], &status, 0);
      CHECK_THAT(was_killed, "rank " + std::to_string(rank) + " did not end in time");
    } else if (!was_killed) {
      CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == 0,
                 "rank " + std::to_string(rank) + " failed, status " + std::to_string(status));
    }
  }
  const int removed = std::system(("rm -rf " + ranks.folder).c_str());
  CHECK_THAT(removed == 0, ranks.folder);
}

void Run(int size, const std::string& backend, const Body& body) {
  Finish(Start(size, backend, 20.0, true, body), 110.0);
}

void LimitSharedMemory() {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {16384, 16384};
  CHECK_THAT(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
}

std::vector<std::string> Backends() {
  // "hierarchical/2": two ranks a host; what differs from "tcp" begins with three ranks.
  std::vector<std::string> backends = {"shm", "tcp", "hierarchical/2"};
  if (epl_has_gloo()) backends.push_back("gloo");
  return backends;
}

std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

}  // namespace test

// Without arguments all tests, else those whose name contains one of the arguments, or none of those behind a dash.
int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const test::Test& one : test::Tests()) {
    bool wanted = argc == 1 || argv[1][0] == '-';
    for (int i = 1; i < argc; ++i) {
      const bool excludes = argv[i][0] == '-';
      if (std::strstr(one.name, argv[i] + excludes) != nullptr) wanted = !excludes;
    }
    if (!wanted) continue;
    const auto start = test::Steady::now();
    const int before = test::failures;
    one.body();
    std::printf("%-6s %s (%.2f s)\n", test::failures == before ? "ok" : "FAILED", one.name,
                std::chrono::duration<double>(test::Steady::now() - start).count());
  }
  return test::AnyFailed() ? 1 : 0;
}
