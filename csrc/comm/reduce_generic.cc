// Reduction loops for any processor.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduce.h"

#pragma GCC optimize("O3")
#define EPL_ISA generic
#include "reduce_kernels.inc"
