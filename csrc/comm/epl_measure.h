// The part of the C interface that kernels do not use: how fast a communicator is.
#ifndef EPL_COMM_EPL_MEASURE_H_
#define EPL_COMM_EPL_MEASURE_H_

#include "epl_comm.h"

#ifdef __cplusplus
extern "C" {
#endif

// Measures all-reduces of host memory, for some hundredths of a second: the seconds that the smallest takes through the
// queue, and the bytes a second of a large one. Blocking; all ranks must call it. Their figures differ a little.
EPL_EXPORT int epl_comm_measure(epl_comm* comm, double* latency_s, double* bytes_per_s, char* error,
                                size_t error_length);

#ifdef __cplusplus
}
#endif
#endif  // EPL_COMM_EPL_MEASURE_H_
