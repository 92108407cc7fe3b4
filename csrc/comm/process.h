// Who a process is, and whether it still lives.
#ifndef EPL_COMM_PROCESS_H_
#define EPL_COMM_PROCESS_H_

#include <cstdint>
#include <string>

namespace epl {

struct ProcessState {
  bool alive = false;       // false for zombies too
  bool stopped = false;     // SIGSTOP or a debugger
  uint64_t start_time = 0;  // in clock ticks since boot; tells a recycled pid from the process that had it
};

ProcessState StateOf(int pid);

// The same text for processes that can share memory and see each other's pids: one boot, one pid and network namespace.
std::string HostIdentity();

// A bit per CPU that this process may use, as text of '0' and '1'.
std::string UsableCpus();

}  // namespace epl
#endif  // EPL_COMM_PROCESS_H_
