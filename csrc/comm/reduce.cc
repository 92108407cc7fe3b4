// Chooses the reduction loops for this processor.
#include "reduce.h"

namespace epl {

using ReduceFunction = void (*)(const Reduction&, const void* const*, int, void*, void*, size_t);

namespace generic {
void Reduce(const Reduction&, const void* const*, int, void*, void*, size_t);
}
#if defined(__x86_64__)
namespace avx2 {
void Reduce(const Reduction&, const void* const*, int, void*, void*, size_t);
}
#endif

namespace {

ReduceFunction Choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2::Reduce;
#endif
  return generic::Reduce;
}

}  // namespace

void Reduce(const Reduction& reduction, const void* const* sources, int num_sources, void* target, void* copy,
            size_t count) {
  static const ReduceFunction function = Choose();
  function(reduction, sources, num_sources, target, copy, count);
}

}  // namespace epl
