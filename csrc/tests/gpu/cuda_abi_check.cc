// Compares comm/cuda_abi.h with NVIDIA's header, at compile time.
#include <cuda_runtime_api.h>

#include "abi_match.h"
#include "cuda_abi.h"

using namespace epl::cuda;

#define EPL_COMPARE(name, symbol, result, arguments)                               \
  static_assert(abi::Match<decltype(Functions::name), decltype(&::symbol)>::value, \
                "comm/cuda_abi.h differs from cuda_runtime_api.h in " #symbol);
EPL_CUDA_FUNCTIONS(EPL_COMPARE)
#undef EPL_COMPARE

static_assert(kSuccess == cudaSuccess && kErrorNotReady == cudaErrorNotReady, "cudaError");
static_assert(kStreamNonBlocking == cudaStreamNonBlocking && kEventDisableTiming == cudaEventDisableTiming, "flags");
static_assert(kCopyDeviceToDevice == cudaMemcpyDeviceToDevice, "cudaMemcpyKind");
static_assert(CUDART_VERSION >= 10000, "CUDA 10 or newer");
