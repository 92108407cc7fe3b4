// Compares comm/nccl_abi.h with NVIDIA's header, at compile time, and links with the real library. What runs needs no
// GPU: the libraries are loaded in the way of this library, with all functions that it uses. Arguments: the paths of
// the CUDA runtime and of NCCL.
#include <nccl.h>

#include <cstddef>
#include <cstdio>

#include "abi_match.h"
#include "nccl_abi.h"
#include "nccl_libraries.h"

using namespace epl::nccl;

#define EPL_COMPARE(name, symbol, result, arguments)                               \
  static_assert(abi::Match<decltype(Functions::name), decltype(&::symbol)>::value, \
                "comm/nccl_abi.h differs from nccl.h in " #symbol);
EPL_NCCL_FUNCTIONS(EPL_COMPARE)
#undef EPL_COMPARE

static_assert(kSuccess == ncclSuccess && kUnhandledCudaError == ncclUnhandledCudaError &&
                  kSystemError == ncclSystemError && kRemoteError == ncclRemoteError && kInProgress == ncclInProgress,
              "ncclResult_t");
static_assert(kUint8 == ncclUint8 && kInt32 == ncclInt32 && kInt64 == ncclInt64 && kFloat16 == ncclFloat16 &&
                  kFloat32 == ncclFloat32 && kFloat64 == ncclFloat64 && kBfloat16 == ncclBfloat16,
              "ncclDataType_t");
static_assert(kSum == ncclSum && kProd == ncclProd && kMax == ncclMax && kMin == ncclMin && kAvg == ncclAvg,
              "ncclRedOp_t");
static_assert(kScalarHostImmediate == ncclScalarHostImmediate, "ncclScalarResidence_t");
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && kUniqueIdBytes == NCCL_UNIQUE_ID_BYTES, "ncclUniqueId");
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size) &&
                  offsetof(Config, magic) == offsetof(ncclConfig_t, magic) &&
                  offsetof(Config, version) == offsetof(ncclConfig_t, version) &&
                  offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking) &&
                  sizeof(Config) <= sizeof(ncclConfig_t),
              "ncclConfig_t");
static_assert(kMinVersion == NCCL_VERSION(2, 14, 0) && NCCL_VERSION_CODE >= kMinVersion, "NCCL 2.14 or newer");

// Every function by its address, so that the linker must find it.
#define EPL_ADDRESS(name, symbol, result, arguments) reinterpret_cast<void*>(&::symbol),
static void* const kLinked[] = {EPL_NCCL_FUNCTIONS(EPL_ADDRESS)};
#undef EPL_ADDRESS

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s libcudart.so libnccl.so.2\n", argv[0]), 2;
  for (const void* address : kLinked) {
    if (address == nullptr) return std::fprintf(stderr, "a function of NCCL has no address\n"), 1;
  }
  const ncclConfig_t real = NCCL_CONFIG_INITIALIZER;
  if (real.magic != Config().magic) return std::fprintf(stderr, "ncclConfig_t has another magic number\n"), 1;
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess || version != NCCL_VERSION_CODE) {
    return std::fprintf(stderr, "the header is of NCCL %d, the library of %d\n", NCCL_VERSION_CODE, version), 1;
  }
  const epl::GpuLibraries* libraries = nullptr;
  const epl::Status status = epl::LoadGpuLibraries(argv[1], argv[2], &libraries);
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message.c_str()), 1;
  std::printf("NCCL %d and the CUDA runtime have all %zu + %zu functions, as declared\n", libraries->nccl_version,
              sizeof(epl::nccl::Functions) / sizeof(void*), sizeof(epl::cuda::Functions) / sizeof(void*));
  return 0;
}
