// What this library uses of the C interface of NCCL 2.14 and newer, declared here so that no NCCL header is needed to
// build. Written from NVIDIA's public NCCL documentation (API reference); tests/gpu/nccl_abi_check.cc compares it with
// the real header and links with the real library.
#ifndef EPL_COMM_NCCL_ABI_H_
#define EPL_COMM_NCCL_ABI_H_

#include <cstddef>

#include "cuda_abi.h"

namespace epl {
namespace nccl {

using Comm = void*;     // ncclComm_t
using Result = int;     // ncclResult_t
using DataType = int;   // ncclDataType_t
using RedOp = int;      // ncclRedOp_t
using Residence = int;  // ncclScalarResidence_t
using Stream = cuda::Stream;

// Communicators that do not block have come with this version; it names it too in Config.
constexpr int kMinVersion = 21400;

constexpr Result kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kRemoteError = 6, kInProgress = 7;
constexpr DataType kUint8 = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9;
constexpr RedOp kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4;
constexpr Residence kScalarHostImmediate = 1;

constexpr size_t kUniqueIdBytes = 128;
struct UniqueId {
  char bytes[kUniqueIdBytes];
};

// The beginning of ncclConfig_t, which is all of it in version 2.14. Later versions take this short form as well and
// choose the rest by themselves.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kMinVersion;
  int blocking = 1;
};

// X(name here, name there, result, arguments)
#define EPL_NCCL_FUNCTIONS(X)                                                                                  \
  X(GetVersion, ncclGetVersion, Result, (int* version))                                                        \
  X(GetUniqueId, ncclGetUniqueId, Result, (UniqueId * id))                                                     \
  X(GetErrorString, ncclGetErrorString, const char*, (Result result))                                          \
  X(GetLastError, ncclGetLastError, const char*, (Comm comm))                                                  \
  X(CommInit, ncclCommInitRankConfig, Result, (Comm * comm, int size, UniqueId id, int rank, Config* config))  \
  X(CommFinalize, ncclCommFinalize, Result, (Comm comm))                                                       \
  X(CommDestroy, ncclCommDestroy, Result, (Comm comm))                                                         \
  X(CommAbort, ncclCommAbort, Result, (Comm comm))                                                             \
  X(CommGetAsyncError, ncclCommGetAsyncError, Result, (Comm comm, Result * error))                             \
  X(GroupStart, ncclGroupStart, Result, (void))                                                                \
  X(GroupEnd, ncclGroupEnd, Result, (void))                                                                    \
  X(CreatePreMulSum, ncclRedOpCreatePreMulSum, Result,                                                         \
    (RedOp * op, void* factor, DataType type, Residence residence, Comm comm))                                 \
  X(RedOpDestroy, ncclRedOpDestroy, Result, (RedOp op, Comm comm))                                             \
  X(AllReduce, ncclAllReduce, Result,                                                                          \
    (const void* in, void* out, size_t count, DataType type, RedOp op, Comm comm, Stream stream))              \
  X(Reduce, ncclReduce, Result,                                                                                \
    (const void* in, void* out, size_t count, DataType type, RedOp op, int root, Comm comm, Stream stream))    \
  X(Broadcast, ncclBroadcast, Result,                                                                          \
    (const void* in, void* out, size_t count, DataType type, int root, Comm comm, Stream stream))              \
  X(ReduceScatter, ncclReduceScatter, Result,                                                                  \
    (const void* in, void* out, size_t out_count, DataType type, RedOp op, Comm comm, Stream stream))          \
  X(AllGather, ncclAllGather, Result,                                                                          \
    (const void* in, void* out, size_t in_count, DataType type, Comm comm, Stream stream))                     \
  X(Send, ncclSend, Result, (const void* in, size_t count, DataType type, int peer, Comm comm, Stream stream)) \
  X(Recv, ncclRecv, Result, (void* out, size_t count, DataType type, int peer, Comm comm, Stream stream))

struct Functions {
#define EPL_DECLARE(name, symbol, result, arguments) result(*name) arguments = nullptr;
  EPL_NCCL_FUNCTIONS(EPL_DECLARE)
#undef EPL_DECLARE
};

}  // namespace nccl
}  // namespace epl
#endif  // EPL_COMM_NCCL_ABI_H_
