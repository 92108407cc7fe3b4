// Ranks as forked processes, and values whose reductions the tests can compute by themselves.
#ifndef EPL_TESTS_HARNESS_H_
#define EPL_TESTS_HARNESS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "epl_comm.h"
#include "values.h"

namespace test {

struct Outcome {
  int code = -1;
  std::string message;
};

struct Rank {
  int rank = 0;
  int size = 1;
  std::string folder;  // holds the store of this test
  std::string backend;
  std::string token = "secret";
  double timeout_s = 20.0;
  double stall_warning_s = 0.0;
  int device = 0;
  std::string nccl_library, cuda_library;
  epl_comm* comm = nullptr;

  Outcome Create(const std::string& name);
  Outcome Run(const epl_request& request) const;
  Outcome SubmitAndWait(epl_request request) const;  // through the queue; waits at most a minute
};

// A request with the fields that most collectives share.
epl_request MakeRequest(const char* name, epl_collective collective, epl_dtype dtype, const epl_segment* segments,
                        size_t num_segments);

double Now();  // seconds
bool Contains(const std::string& text, const std::string& part);

// Numbers that are all 1, to be reduced in place.
struct Ones {
  std::vector<float> data;
  epl_segment segment;
  explicit Ones(size_t count) : data(count, 1.0f), segment{data.data(), data.data(), count} {}
};

// Reports a failed check with its place; the process goes on and fails at its end.
void Fail(const char* file, int line, const std::string& what);
bool AnyFailed();
#define CHECK_THAT(condition, what)                                                              \
  do {                                                                                           \
    if (!(condition)) ::test::Fail(__FILE__, __LINE__, std::string(#condition) + ": " + (what)); \
  } while (0)

using Body = std::function<void(Rank&)>;
struct Ranks {
  std::vector<int> pids;
  std::string folder;
};
// Forks `size` ranks that run `body`; `joined`: each has a communicator "test" already.
Ranks Start(int size, const std::string& backend, double timeout_s, bool joined, const Body& body);
// Waits for the ranks but those in `killed`, at most `limit_s`, and checks that they ended well.
void Finish(const Ranks& ranks, double limit_s, const std::vector<int>& killed = {});
void Run(int size, const std::string& backend, const Body& body);

// A limit on the size of files makes shared memory unavailable to this rank, as a full host would.
void LimitSharedMemory();

// Backends that this build has.
std::vector<std::string> Backends();

struct Test {
  const char* name;
  void (*body)();
};
std::vector<Test>& Tests();
struct Registration {
  Registration(const char* name, void (*body)()) { Tests().push_back({name, body}); }
};
#define TEST(name)                                                    \
  static void name();                                                 \
  static const ::test::Registration registration_##name(#name, name); \
  static void name()

}  // namespace test
#endif  // EPL_TESTS_HARNESS_H_
