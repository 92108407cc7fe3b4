#include "nccl_libraries.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dynamic_library.h"

namespace epl {
namespace {

// The runtimes that TensorFlow 2.15, and TensorFlow 1.15 and its successors, are built against.
const char* const kCudaNames[] = {"libcudart.so.12", "libcudart.so.11.0", "libcudart.so.10.0", "libcudart.so"};
const char kRemedy[] =
    "Install epl with its GPU part (pip install '.[gpu]'), or name the file in communication.nccl_library or "
    "communication.cuda_library.";

Status Missing(const DynamicLibrary& library, const char* function) {
  return Status(EPL_INVALID, Format("%s has no function %s: NCCL 2.14 and CUDA 10 or newer are needed. %s",
                                    library.name().c_str(), function, kRemedy));
}

template <class Function>
bool Bind(const DynamicLibrary& library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(library.Find(name));
  return *function != nullptr;
}

Status Load(const std::string& cuda_path, const std::string& nccl_path, GpuLibraries* to) {
  std::vector<std::string> names(1, cuda_path);
  if (cuda_path.empty()) names.assign(std::begin(kCudaNames), std::end(kCudaNames));
  DynamicLibrary cuda, nccl;
  Status status = DynamicLibrary::Open("the CUDA runtime", names, kRemedy, &cuda);
  if (!status.ok()) return status;
  names.assign(1, nccl_path.empty() ? "libnccl.so.2" : nccl_path);
  status = DynamicLibrary::Open("NCCL", names, kRemedy, &nccl);
  if (!status.ok()) return status;
#define EPL_BIND(name, symbol, result, arguments) \
  if (!Bind(cuda, #symbol, &to->cuda.name)) return Missing(cuda, #symbol);
  EPL_CUDA_FUNCTIONS(EPL_BIND)
#undef EPL_BIND
#define EPL_BIND(name, symbol, result, arguments) \
  if (!Bind(nccl, #symbol, &to->nccl.name)) return Missing(nccl, #symbol);
  EPL_NCCL_FUNCTIONS(EPL_BIND)
#undef EPL_BIND
  to->cuda_name = cuda.name();
  to->nccl_name = nccl.name();
  status = to->CheckNccl("ncclGetVersion", to->nccl.GetVersion(&to->nccl_version));
  if (status.ok() && to->nccl_version < nccl::kMinVersion) {
    status = Status(EPL_INVALID, Format("%s is NCCL version code %d, but %d (2.14) or newer is needed. %s",
                                        to->nccl_name.c_str(), to->nccl_version, nccl::kMinVersion, kRemedy));
  }
  return status;
}

}  // namespace

Status GpuLibraries::Check(const char* call, cuda::Error error) const {
  if (error == cuda::kSuccess) return Status();
  return Status(EPL_INTERNAL, Format("%s failed: %s (CUDA error %d)", call, cuda.GetErrorString(error), error));
}

Status GpuLibraries::CheckNccl(const char* call, nccl::Result result) const {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return Status();
  const char* details = nccl.GetLastError(nullptr);
  const bool connection = result == nccl::kRemoteError || result == nccl::kSystemError;
  return Status(connection ? EPL_PEER_LOST : EPL_INTERNAL,
                Format("%s failed: %s (NCCL result %d)%s%s", call, nccl.GetErrorString(result), result,
                       details == nullptr || *details == '\0' ? "" : ": ", details == nullptr ? "" : details));
}

Status LoadGpuLibraries(const std::string& cuda_path, const std::string& nccl_path, const GpuLibraries** result) {
  static std::mutex mutex;
  // Never destroyed: threads may use it until the process ends.
  static auto* loaded = new std::map<std::pair<std::string, std::string>, std::unique_ptr<GpuLibraries>>;
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<GpuLibraries>& libraries = (*loaded)[{cuda_path, nccl_path}];
  if (libraries == nullptr) {
    auto fresh = std::make_unique<GpuLibraries>();
    const Status status = Load(cuda_path, nccl_path, fresh.get());
    if (!status.ok()) return status;
    libraries = std::move(fresh);
  }
  *result = libraries.get();
  return Status();
}

}  // namespace epl
