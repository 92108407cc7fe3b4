// Element-wise reduction of several buffers. The order is always that of `sources`, so whoever reduces gets the same
// bits.
#ifndef EPL_COMM_REDUCE_H_
#define EPL_COMM_REDUCE_H_

#include <cstddef>

#include "epl_comm.h"

namespace epl {

struct Reduction {
  epl_dtype dtype;
  epl_reduce_op op;
  double scale;  // multiplies the result; floating dtypes only
  int divisor;   // of EPL_MEAN: the number of ranks. Integers truncate towards zero
  // The result goes past the caches to memory: faster where it is large and not read again soon.
  bool streaming = false;
};

// target[i] = scale * (sources[0][i] op sources[1][i] ...), for `count` elements. 16-bit floats are accumulated in
// float32 and rounded once. `target` may be one of the sources. `copy`, unless NULL, gets the result as well.
void Reduce(const Reduction& reduction, const void* const* sources, int num_sources, void* target, void* copy,
            size_t count);

}  // namespace epl
#endif  // EPL_COMM_REDUCE_H_
