// The flight recorder: which collectives this process is in, and which were the last ones.
#ifndef EPL_FLIGHT_H_
#define EPL_FLIGHT_H_

#include "request.h"

namespace epl {

// Notes one collective for as long as it lives. Costs two readings of the clock and the copy of a name.
class Flight {
 public:
  explicit Flight(const Request& request);
  void End(int code);

 private:
  epl_flight_ring* const ring_;
  epl_flight_event* event_ = nullptr;
  int64_t begin_ns_ = 0;
  uint64_t bytes_ = 0;
};

void SetFlightRing(epl_flight_ring* ring);

}  // namespace epl
#endif  // EPL_FLIGHT_H_
