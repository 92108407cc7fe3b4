#include "futex_signal.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace epl {
namespace {

// Shared between processes, hence without FUTEX_PRIVATE_FLAG.
long Futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Publish(Signal* signal, uint32_t value) {
  // Sequentially consistent, as is the waiter's increment: either this store is seen by the waiter's last look, or its
  // increment by the load below.
  signal->value.store(value, std::memory_order_seq_cst);
  if (signal->waiters.load(std::memory_order_seq_cst) != 0) WakeAll(signal);
}

void WakeAll(Signal* signal) { Futex(&signal->value, FUTEX_WAKE, INT_MAX, nullptr); }

bool Spin(const Signal& signal, uint32_t target, int spin_us, bool yield) {
  if (Reached(signal, target)) return true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
  do {
    for (int i = 0; i < 16; ++i) {
      Pause();
      if (Reached(signal, target)) return true;
    }
    if (yield) sched_yield();
  } while (std::chrono::steady_clock::now() < end);
  return Reached(signal, target);
}

void SleepOn(Signal* signal, uint32_t target, int slice_ms) {
  signal->waiters.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = signal->value.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - target) < 0) {
    const timespec timeout = {slice_ms / 1000, (slice_ms % 1000) * 1000000L};
    Futex(&signal->value, FUTEX_WAIT, seen, &timeout);
  }
  signal->waiters.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace epl
