#include "flight.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace epl {
namespace {

std::atomic<epl_flight_ring*> the_ring{nullptr};

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void SetFlightRing(epl_flight_ring* ring) { the_ring.store(ring); }

Flight::Flight(const Request& request) : ring_(the_ring.load(std::memory_order_acquire)) {
  if (ring_ == nullptr) return;
  begin_ns_ = Now();
  bytes_ = request.count * request.element;
  event_ = &ring_->events[__atomic_fetch_add(&ring_->next, 1, __ATOMIC_RELAXED) % ring_->capacity];
  // Who reads meanwhile takes an event without a beginning for none.
  __atomic_store_n(&event_->begin_ns, 0, __ATOMIC_RELEASE);
  event_->end_ns = 0;
  event_->collective = request.collective;
  event_->code = EPL_OK;
  event_->bytes = static_cast<int64_t>(bytes_);
  event_->tag = request.tag;
  const size_t length = std::min(request.name.size(), sizeof(event_->name) - 1);
  std::memcpy(event_->name, request.name.data(), length);
  event_->name[length] = 0;
  __atomic_store_n(&event_->begin_ns, begin_ns_, __ATOMIC_RELEASE);
}

void Flight::End(int code) {
  if (ring_ == nullptr) return;
  const int64_t now = Now();
  __atomic_fetch_add(&ring_->total_ns, now - begin_ns_, __ATOMIC_RELAXED);
  __atomic_fetch_add(&ring_->total_bytes, static_cast<int64_t>(bytes_), __ATOMIC_RELAXED);
  if (__atomic_load_n(&event_->begin_ns, __ATOMIC_ACQUIRE) != begin_ns_) return;  // the ring has come round since
  event_->code = code;
  __atomic_store_n(&event_->end_ns, now, __ATOMIC_RELEASE);
}

}  // namespace epl
