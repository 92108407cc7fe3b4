// What this library uses of the C interface of the CUDA runtime, declared here so that no CUDA header is needed to
// build. Written from NVIDIA's public reference of the CUDA Runtime API; tests/gpu/cuda_abi_check.cc compares it with
// the real header. These calls are the same in CUDA 10, 11 and 12.
#ifndef EPL_COMM_CUDA_ABI_H_
#define EPL_COMM_CUDA_ABI_H_

#include <cstddef>

namespace epl {
namespace cuda {

using Error = int;     // cudaError_t
using Stream = void*;  // cudaStream_t
using Event = void*;   // cudaEvent_t
using CopyKind = int;  // cudaMemcpyKind

constexpr Error kSuccess = 0;
constexpr Error kErrorNotReady = 600;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr CopyKind kCopyDeviceToDevice = 3;

// X(name here, name there, result, arguments)
#define EPL_CUDA_FUNCTIONS(X)                                                                                    \
  X(GetErrorString, cudaGetErrorString, const char*, (Error error))                                              \
  X(GetLastError, cudaGetLastError, Error, (void))                                                               \
  X(GetDeviceCount, cudaGetDeviceCount, Error, (int* count))                                                     \
  X(GetPciBusId, cudaDeviceGetPCIBusId, Error, (char* text, int length, int device))                             \
  X(GetDevice, cudaGetDevice, Error, (int* device))                                                              \
  X(SetDevice, cudaSetDevice, Error, (int device))                                                               \
  X(StreamPriorities, cudaDeviceGetStreamPriorityRange, Error, (int* least, int* greatest))                      \
  X(StreamCreate, cudaStreamCreateWithPriority, Error, (Stream * stream, unsigned flags, int priority))          \
  X(StreamDestroy, cudaStreamDestroy, Error, (Stream stream))                                                    \
  X(StreamWaitEvent, cudaStreamWaitEvent, Error, (Stream stream, Event event, unsigned flags))                   \
  X(EventCreate, cudaEventCreateWithFlags, Error, (Event * event, unsigned flags))                               \
  X(EventDestroy, cudaEventDestroy, Error, (Event event))                                                        \
  X(EventRecord, cudaEventRecord, Error, (Event event, Stream stream))                                           \
  X(EventQuery, cudaEventQuery, Error, (Event event))                                                            \
  X(CopyAsync, cudaMemcpyAsync, Error, (void* to, const void* from, size_t bytes, CopyKind kind, Stream stream)) \
  X(FillAsync, cudaMemsetAsync, Error, (void* data, int value, size_t bytes, Stream stream))                     \
  X(Malloc, cudaMalloc, Error, (void** data, size_t bytes))                                                      \
  X(Free, cudaFree, Error, (void* data))

struct Functions {
#define EPL_DECLARE(name, symbol, result, arguments) result(*name) arguments = nullptr;
  EPL_CUDA_FUNCTIONS(EPL_DECLARE)
#undef EPL_DECLARE
};

}  // namespace cuda
}  // namespace epl
#endif  // EPL_COMM_CUDA_ABI_H_
