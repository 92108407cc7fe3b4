// Reduction loops for x86 processors with AVX2 and half-precision conversion; reduce.cc asks before it calls them.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduce.h"

#pragma GCC optimize("O3")
#pragma GCC target("avx2,f16c")
#define EPL_HAVE_F16C
#define EPL_HAVE_STREAMING
#define EPL_ISA avx2
#include "reduce_kernels.inc"
#endif
