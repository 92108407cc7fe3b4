// How fast the ranks of a communicator reach each other, measured with all-reduces.
#ifndef EPL_COMM_MEASURE_H_
#define EPL_COMM_MEASURE_H_

#include "scheduler.h"
#include "status.h"

namespace epl {

struct Speed {
  double latency_s = 0;    // of the smallest all-reduce, through the queue
  double bytes_per_s = 0;  // of the largest: bytes of the message by the time that they add to the latency
};

// Takes some hundredths of a second at most, unless all-reduces of 64 KiB take longer. All ranks must call it; each has
// the figures that it measured itself.
Status MeasureSpeed(const Options& options, Scheduler* scheduler, Speed* speed);

}  // namespace epl
#endif  // EPL_COMM_MEASURE_H_
