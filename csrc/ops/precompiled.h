// What most files of this folder include of TensorFlow, and what takes most of the time of compiling them: build.py
// compiles it once for all of them. No file may rely on it, as builds of a few files do without.
#ifndef EPL_OPS_PRECOMPILED_H_
#define EPL_OPS_PRECOMPILED_H_

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/errors.h"

#endif  // EPL_OPS_PRECOMPILED_H_
