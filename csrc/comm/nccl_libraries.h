// Finds and loads NCCL and the CUDA runtime while the process runs. Nothing here is needed on a machine without GPUs.
#ifndef EPL_COMM_NCCL_LIBRARIES_H_
#define EPL_COMM_NCCL_LIBRARIES_H_

#include <string>

#include "cuda_abi.h"
#include "nccl_abi.h"
#include "status.h"

namespace epl {

struct GpuLibraries {
  cuda::Functions cuda;
  nccl::Functions nccl;
  std::string cuda_name, nccl_name;  // as they were loaded
  int nccl_version = 0;              // such as 21605

  // A call's error as a sentence: EPL_INTERNAL, or EPL_PEER_LOST where the end of a peer may be behind it. `call` is
  // the function's name.
  Status Check(const char* call, cuda::Error error) const;
  Status CheckNccl(const char* call, nccl::Result result) const;
};

// Loads both. A path that is not empty is taken and no other; else the names that the system's loader knows are tried.
// What has been loaded once is kept. EPL_INVALID says what is missing and how to install it. Any thread.
Status LoadGpuLibraries(const std::string& cuda_path, const std::string& nccl_path, const GpuLibraries** result);

}  // namespace epl
#endif  // EPL_COMM_NCCL_LIBRARIES_H_
