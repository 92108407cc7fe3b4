#include "gpu_stream.h"

#include "tensorflow/core/public/version.h"

#ifdef EPL_GPU_KERNELS
#if TF_MAJOR_VERSION >= 2
#include "xla/stream_executor/stream.h"
#else
#include "tensorflow/stream_executor/stream.h"
#include "tensorflow/stream_executor/stream_executor_internal.h"
#endif
#endif

namespace epl_ops {

namespace tf = tensorflow;

bool OnGpu(const tf::OpKernelConstruction* context) { return context->device_type() == tf::DeviceType(tf::DEVICE_GPU); }

void* StreamOf(tf::OpKernelContext* context) {
#ifdef EPL_GPU_KERNELS
  tf::DeviceContext* device = context->op_device_context();
  if (device == nullptr || device->stream() == nullptr) return nullptr;
#if TF_MAJOR_VERSION >= 2
  return device->stream()->platform_specific_handle().stream;
#else
  // TensorFlow 1.15 gives the address of the handle.
  void** handle = device->stream()->implementation()->GpuStreamMemberHack();
  return handle == nullptr ? nullptr : *handle;
#endif
#else
  (void)context;
  return nullptr;
#endif
}

}  // namespace epl_ops
