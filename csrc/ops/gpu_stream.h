// The GPU side of the kernels: whether there is one, and the stream that a kernel's tensors belong to.
//
// Nothing here needs CUDA to build or to load: TensorFlow's own headers hide the stream behind an interface, and
// libepl_comm.so loads what it calls on the stream while the process runs.
#ifndef EPL_GPU_STREAM_H_
#define EPL_GPU_STREAM_H_

#include "tensorflow/core/framework/op_kernel.h"

// Whether TensorFlow's headers have what is needed. Both lines' wheels do, those without a GPU part too.
#if defined(__has_include)
#if __has_include("xla/stream_executor/stream.h") || __has_include("tensorflow/stream_executor/stream.h")
#define EPL_GPU_KERNELS 1
#endif
#endif

// REGISTER_KERNEL_BUILDER for GPUs, where they can be built. TensorFlow without a GPU part never looks for them.
#ifdef EPL_GPU_KERNELS
#define EPL_REGISTER_GPU_KERNEL(builder, kernel) REGISTER_KERNEL_BUILDER(builder.Device(tf::DEVICE_GPU), kernel)
#else
#define EPL_REGISTER_GPU_KERNEL(builder, kernel) \
  static_assert(true, "kernels for GPUs need headers that this TensorFlow does not have")
#endif

namespace epl_ops {

// Whether a kernel is made for a GPU.
bool OnGpu(const tensorflow::OpKernelConstruction* context);

// The CUDA stream (cudaStream_t) that a kernel's device tensors are made and used on; NULL if the kernel runs on the
// host.
void* StreamOf(tensorflow::OpKernelContext* context);

}  // namespace epl_ops

#endif  // EPL_GPU_STREAM_H_
