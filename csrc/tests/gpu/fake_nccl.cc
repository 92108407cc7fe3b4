// A test double of NCCL. Ranks are processes, and data goes between them through files in a folder whose path is the
// unique id; streams are those of fake_cuda_runtime.cc.
//
// It behaves as NCCL where that matters to the caller: nothing blocks the calling thread, operations wait on the stream
// for all ranks, a send waits for its receive unless both are in groups, ranks that call different things never get
// through, and a communicator may be in progress after a call. Used by csrc/tests/gpu only, loaded by its path.
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fake_gpu.h"
#include "nccl_abi.h"
#include "values.h"

namespace {

using namespace epl::nccl;

constexpr Result kInvalidArgument = 4, kInvalidUsage = 5;
constexpr RedOp kFirstDynamicOp = 5;

enum Kind : int32_t { kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather, kSend, kRecv };
const char* const kNames[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclReduceScatter",
                              "ncclAllGather", "ncclSend",   "ncclRecv"};

// What travels before the data of a rank.
struct Head {
  int32_t kind, type, op, peer;
  uint64_t count;
  double factor;
};

struct FakeComm {
  std::string folder;
  int rank = 0, size = 0;
  std::thread joining;
  std::atomic<int> state{kInProgress};
  std::atomic<int> polls{0};  // that still say "in progress" after a launch
  std::atomic<bool> aborted{false};
  std::atomic<int> running{0};
  std::map<RedOp, double> factors;
  RedOp next_op = kFirstDynamicOp;
  uint64_t collectives = 0;
  std::map<int, uint64_t> sends, receives;
};

struct Operation {
  Head head;
  const void* in;
  void* out;
  FakeComm* comm;
  void* stream;
  std::string file;  // of this rank for collectives and sends, of the sender for receives; without the rank
};

std::mutex mutex;
std::string failing_call;
Result failing_result = 0;
bool stalling = false;
Result stalling_error = 0;
thread_local int group_depth = 0;
thread_local std::vector<Operation> group;

FakeComm* CommOf(Comm comm) { return static_cast<FakeComm*>(comm); }

// What the test wants of this call, or success.
Result Begin(const char* function) {
  std::lock_guard<std::mutex> lock(mutex);
  if (failing_call != function) return kSuccess;
  failing_call.clear();
  return failing_result;
}

void Pause() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

size_t BytesOf(DataType type) {
  static const size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[type];
}

epl_dtype DtypeOf(DataType type) {
  switch (type) {
    case kFloat16:
      return EPL_FLOAT16;
    case kBfloat16:
      return EPL_BFLOAT16;
    case kFloat32:
      return EPL_FLOAT32;
    case kFloat64:
      return EPL_FLOAT64;
    case kInt32:
      return EPL_INT32;
    case kInt64:
      return EPL_INT64;
    default:
      return EPL_UINT8;
  }
}

void WriteFile(const std::string& path, const Head& head, const void* data, size_t bytes) {
  std::ofstream file(path + ".new", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&head), sizeof(head));
  if (bytes > 0) file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  std::rename((path + ".new").c_str(), path.c_str());
}

// False if the communicator was aborted meanwhile.
bool AwaitFile(const FakeComm& comm, const std::string& path, std::string* text) {
  while (!comm.aborted) {
    std::ifstream file(path, std::ios::binary);
    if (file.good()) {
      text->assign((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
      return true;
    }
    Pause();
  }
  return false;
}

double Combine(RedOp op, double a, double b) {
  if (op == kProd) return a * b;
  if (op == kMax) return std::max(a, b);
  if (op == kMin) return std::min(a, b);
  return a + b;
}

// Element `i` of the result over all ranks' messages.
double Reduced(const Operation& mine, const std::vector<std::string>& all, size_t i) {
  const epl_dtype dtype = DtypeOf(mine.head.type);
  double total = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    Head head;
    std::memcpy(&head, all[rank].data(), sizeof(head));
    const double value = test::Load(dtype, all[rank].data() + sizeof(Head), i) * head.factor;
    total = rank == 0 ? value : Combine(mine.head.op, total, value);
  }
  return mine.head.op == kAvg ? total / static_cast<double>(all.size()) : total;
}

size_t SentElements(const Operation& one) {
  switch (one.head.kind) {
    case kBroadcast:
      return one.head.peer == one.comm->rank ? one.head.count : 0;
    case kReduceScatter:
      return one.head.count * static_cast<size_t>(one.comm->size);
    case kRecv:
      return 0;
    default:
      return one.head.count;
  }
}

bool Publish(const Operation& one) {
  if (one.head.kind == kRecv) return true;
  const std::string path = one.head.kind == kSend ? one.file : one.file + std::to_string(one.comm->rank);
  WriteFile(path, one.head, one.in, SentElements(one) * BytesOf(one.head.type));
  return true;
}

// Ranks that do not call the same never get through.
bool Meets(const Operation& one, const std::string& text) {
  Head other;
  std::memcpy(&other, text.data(), sizeof(other));
  const bool message = one.head.kind == kRecv && other.kind == kSend;
  if (message) return other.count == one.head.count && other.type == one.head.type;
  return other.kind == one.head.kind && other.type == one.head.type && other.count == one.head.count &&
         other.peer == one.head.peer && (other.op == one.head.op || other.op >= kFirstDynamicOp);
}

bool Receive(const Operation& one) {
  if (one.head.kind == kSend) return true;
  const size_t bytes = one.head.count * BytesOf(one.head.type);
  std::vector<std::string> all(one.head.kind == kRecv ? 1 : static_cast<size_t>(one.comm->size));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string path = one.head.kind == kRecv ? one.file : one.file + std::to_string(rank);
    if (!AwaitFile(*one.comm, path, &all[rank])) return false;
    if (!Meets(one, all[rank])) {
      fake_gpu_log("mismatch");
      while (!one.comm->aborted) Pause();
      return false;
    }
  }
  const char* first = all[0].data() + sizeof(Head);
  char* out = static_cast<char*>(one.out);
  const int rank = one.comm->rank;
  switch (one.head.kind) {
    case kRecv:
      std::memcpy(out, first, bytes);
      unlink(one.file.c_str());
      break;
    case kBroadcast:
      std::memmove(out, all[static_cast<size_t>(one.head.peer)].data() + sizeof(Head), bytes);
      break;
    case kAllGather:
      for (size_t r = 0; r < all.size(); ++r) std::memcpy(out + r * bytes, all[r].data() + sizeof(Head), bytes);
      break;
    default: {
      if (one.head.kind == kReduce && one.head.peer != rank) break;
      const size_t begin = one.head.kind == kReduceScatter ? one.head.count * static_cast<size_t>(rank) : 0;
      for (size_t i = 0; i < one.head.count; ++i) {
        test::Store(DtypeOf(one.head.type), out, i, Reduced(one, all, begin + i));
      }
    }
  }
  return true;
}

// A send ends when it was received.
bool AwaitTaken(const Operation& one) {
  if (one.head.kind != kSend) return true;
  while (!one.comm->aborted && access(one.file.c_str(), F_OK) == 0) Pause();
  return !one.comm->aborted;
}

struct Launched {
  std::vector<Operation> operations;
  bool stalled;
};

void RunGroup(void* arg) {
  Launched* launched = static_cast<Launched*>(arg);
  FakeComm* comm = launched->operations[0].comm;
  bool going = !comm->aborted;
  while (launched->stalled && !comm->aborted) Pause();
  going = going && !launched->stalled;
  for (bool (*phase)(const Operation&) : {&Publish, &Receive, &AwaitTaken}) {
    for (size_t i = 0; i < launched->operations.size() && going; ++i) going = phase(launched->operations[i]);
  }
  delete launched;
  --comm->running;
}

Result Launch(std::vector<Operation> operations) {
  if (operations.empty()) return kSuccess;
  FakeComm* comm = operations[0].comm;
  for (Operation& one : operations) {
    if (one.comm != comm || one.stream != operations[0].stream) return kInvalidUsage;
    const int peer = one.head.peer;
    if (one.head.kind == kSend) {
      one.file = comm->folder + "/p" + std::to_string(comm->rank) + "." + std::to_string(peer) + "." +
                 std::to_string(comm->sends[peer]++);
    } else if (one.head.kind == kRecv) {
      one.file = comm->folder + "/p" + std::to_string(peer) + "." + std::to_string(comm->rank) + "." +
                 std::to_string(comm->receives[peer]++);
    } else {
      one.file = comm->folder + "/c" + std::to_string(comm->collectives++) + ".";
    }
  }
  bool stalled = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    std::swap(stalled, stalling);
    if (stalled && stalling_error != 0) comm->state = stalling_error;
  }
  ++comm->running;
  void* stream = operations[0].stream;
  fake_cuda_enqueue(stream, &RunGroup, new Launched{std::move(operations), stalled});
  comm->polls = 2;
  return kInProgress;
}

Result Add(Kind kind, const void* in, void* out, size_t count, DataType type, RedOp op, int peer, Comm handle,
           void* stream) {
  FakeComm* comm = CommOf(handle);
  char line[256];
  std::snprintf(line, sizeof(line), "%s count %zu type %d op %d peer %d stream %d", kNames[kind], count, type,
                op >= kFirstDynamicOp ? kFirstDynamicOp : op, peer, fake_cuda_number(stream));
  fake_gpu_log(line);
  const Result wanted = Begin(kNames[kind]);
  if (wanted != kSuccess) return wanted;
  const bool needs_peer = kind == kSend || kind == kRecv || kind == kReduce || kind == kBroadcast;
  if (comm == nullptr || comm->aborted || (needs_peer && (peer < 0 || peer >= comm->size))) return kInvalidArgument;
  if (comm->state == kInProgress) return kInvalidUsage;  // has not joined yet
  const auto found = comm->factors.find(op);
  if (op >= kFirstDynamicOp && found == comm->factors.end()) return kInvalidArgument;
  const double factor = found == comm->factors.end() ? 1.0 : found->second;
  group.push_back({Head{kind, type, op, peer, count, factor}, in, out, comm, stream, ""});
  if (group_depth > 0) return kSuccess;
  std::vector<Operation> alone;
  alone.swap(group);
  return Launch(std::move(alone));
}

}  // namespace

#define FAKE_EXPORT __attribute__((visibility("default")))

extern "C" {

FAKE_EXPORT void fake_nccl_fail_call(const char* function, int result) {
  std::lock_guard<std::mutex> lock(mutex);
  failing_call = function;
  failing_result = result;
}

FAKE_EXPORT void fake_nccl_stall(int async_error) {
  std::lock_guard<std::mutex> lock(mutex);
  stalling = true;
  stalling_error = async_error;
}

FAKE_EXPORT Result ncclGetVersion(int* version) {
  *version = 21605;
  return kSuccess;
}

FAKE_EXPORT const char* ncclGetErrorString(Result result) {
  return result == kRemoteError ? "remote process exited or there was a network error" : "an error of the test double";
}
FAKE_EXPORT const char* ncclGetLastError(Comm) { return ""; }

FAKE_EXPORT Result ncclGetUniqueId(UniqueId* id) {
  const Result wanted = Begin("ncclGetUniqueId");
  if (wanted != kSuccess) return wanted;
  std::memset(id, 0, sizeof(*id));
  const char* base = std::getenv("FAKE_NCCL_FOLDER");
  std::snprintf(id->bytes, sizeof(id->bytes), "%s/fake_nccl_XXXXXX", base == nullptr ? "/tmp" : base);
  return mkdtemp(id->bytes) == nullptr ? kSystemError : kSuccess;
}

FAKE_EXPORT Result ncclCommInitRankConfig(Comm* result, int size, UniqueId id, int rank, Config* config) {
  fake_gpu_log("ncclCommInitRankConfig");
  const Result wanted = Begin("ncclCommInitRankConfig");
  if (wanted != kSuccess) return wanted;
  if (config->magic != 0xcafebeef || config->size != sizeof(Config) || config->version != 21400)
    return kInvalidArgument;
  if (config->blocking != 0 || rank < 0 || rank >= size) return kInvalidArgument;
  FakeComm* comm = new FakeComm;
  comm->folder = std::string(id.bytes, strnlen(id.bytes, sizeof(id.bytes)));
  comm->rank = rank;
  comm->size = size;
  WriteFile(comm->folder + "/joined" + std::to_string(rank), Head{}, nullptr, 0);
  comm->joining = std::thread([comm] {
    std::string text;
    for (int r = 0; r < comm->size; ++r) {
      if (!AwaitFile(*comm, comm->folder + "/joined" + std::to_string(r), &text)) return;
    }
    comm->state = kSuccess;
  });
  *result = comm;
  return kInProgress;
}

FAKE_EXPORT Result ncclCommGetAsyncError(Comm comm, Result* error) {
  FakeComm* of = CommOf(comm);
  *error = of->state;
  if (*error == kSuccess && of->polls > 0) {
    --of->polls;
    *error = kInProgress;
  }
  return kSuccess;
}

FAKE_EXPORT Result ncclCommFinalize(Comm comm) {
  fake_gpu_log("ncclCommFinalize");
  CommOf(comm)->polls = 2;
  return kInProgress;
}

static Result End(Comm comm, const char* how) {
  fake_gpu_log(how);
  FakeComm* of = CommOf(comm);
  of->aborted = true;
  if (of->joining.joinable()) of->joining.join();
  // Work that waits on a stream for something else still refers to it, so it is not freed.
  for (int i = 0; i < 5000 && of->running > 0; ++i) Pause();
  if (of->running == 0) delete of;
  return kSuccess;
}

FAKE_EXPORT Result ncclCommDestroy(Comm comm) { return End(comm, "ncclCommDestroy"); }
FAKE_EXPORT Result ncclCommAbort(Comm comm) { return End(comm, "ncclCommAbort"); }

FAKE_EXPORT Result ncclGroupStart(void) {
  fake_gpu_log("ncclGroupStart");
  const Result wanted = Begin("ncclGroupStart");
  if (wanted == kSuccess) ++group_depth;
  return wanted;
}

FAKE_EXPORT Result ncclGroupEnd(void) {
  fake_gpu_log("ncclGroupEnd");
  if (group_depth == 0) return kInvalidUsage;
  if (--group_depth > 0) return kSuccess;
  std::vector<Operation> operations;
  operations.swap(group);
  const Result wanted = Begin("ncclGroupEnd");
  return wanted != kSuccess ? wanted : Launch(std::move(operations));
}

FAKE_EXPORT Result ncclRedOpCreatePreMulSum(RedOp* op, void* factor, DataType type, Residence residence, Comm comm) {
  if (residence != kScalarHostImmediate) return kInvalidArgument;
  FakeComm* of = CommOf(comm);
  *op = of->next_op++;
  of->factors[*op] = test::Load(DtypeOf(type), factor, 0);
  return kSuccess;
}

FAKE_EXPORT Result ncclRedOpDestroy(RedOp op, Comm comm) {
  return CommOf(comm)->factors.erase(op) == 1 ? kSuccess : kInvalidArgument;
}

FAKE_EXPORT Result ncclAllReduce(const void* in, void* out, size_t count, DataType type, RedOp op, Comm comm,
                                 Stream stream) {
  return Add(kAllReduce, in, out, count, type, op, 0, comm, stream);
}
FAKE_EXPORT Result ncclReduce(const void* in, void* out, size_t count, DataType type, RedOp op, int root, Comm comm,
                              Stream stream) {
  return Add(kReduce, in, out, count, type, op, root, comm, stream);
}
FAKE_EXPORT Result ncclBroadcast(const void* in, void* out, size_t count, DataType type, int root, Comm comm,
                                 Stream stream) {
  return Add(kBroadcast, in, out, count, type, 0, root, comm, stream);
}
FAKE_EXPORT Result ncclReduceScatter(const void* in, void* out, size_t out_count, DataType type, RedOp op, Comm comm,
                                     Stream stream) {
  return Add(kReduceScatter, in, out, out_count, type, op, 0, comm, stream);
}
FAKE_EXPORT Result ncclAllGather(const void* in, void* out, size_t in_count, DataType type, Comm comm, Stream stream) {
  return Add(kAllGather, in, out, in_count, type, 0, 0, comm, stream);
}
FAKE_EXPORT Result ncclSend(const void* in, size_t count, DataType type, int peer, Comm comm, Stream stream) {
  return Add(kSend, in, nullptr, count, type, 0, peer, comm, stream);
}
FAKE_EXPORT Result ncclRecv(void* out, size_t count, DataType type, int peer, Comm comm, Stream stream) {
  return Add(kRecv, nullptr, out, count, type, 0, peer, comm, stream);
}

}  // extern "C"
