// A counter in shared memory on which other processes can wait.
#ifndef EPL_COMM_FUTEX_SIGNAL_H_
#define EPL_COMM_FUTEX_SIGNAL_H_

#include <atomic>
#include <cstdint>

namespace epl {

// Only its owner advances it. The two words lie on their own cache lines, so that spinning readers do not slow down the
// owner's look at `waiters`.
struct Signal {
  alignas(64) std::atomic<uint32_t> value;
  alignas(64) std::atomic<uint32_t> waiters;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "counters are shared between processes");

// Counters wrap around; a waiter is never more than 2^31 behind.
inline bool Reached(const Signal& signal, uint32_t target) {
  return static_cast<int32_t>(signal.value.load(std::memory_order_acquire) - target) >= 0;
}

// Stores `value` and wakes those asleep, which costs a system call only if there are any.
void Publish(Signal* signal, uint32_t value);

// Wakes everyone asleep on the signal without changing it, so that they look at the abort record.
void WakeAll(Signal* signal);

// Spins for at most `spin_us` microseconds; true when reached. `yield`: gives the CPU away between looks.
bool Spin(const Signal& signal, uint32_t target, int spin_us, bool yield);

// Sleeps until the signal changes, someone wakes it, or `slice_ms` has passed.
void SleepOn(Signal* signal, uint32_t target, int slice_ms);

}  // namespace epl
#endif  // EPL_COMM_FUTEX_SIGNAL_H_
