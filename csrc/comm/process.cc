#include "process.h"

#include <sched.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "status.h"

namespace epl {
namespace {

std::string LinkTarget(const char* path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path, target, sizeof(target));
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : std::string("?");
}

}  // namespace

ProcessState StateOf(int pid) {
  ProcessState state;
  std::ifstream file(Format("/proc/%d/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return state;
  // The command, in parentheses, may hold anything; fields are counted from the last one. state is field 3 and
  // starttime field 22 of proc(5).
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return state;
  std::istringstream fields(line.substr(end + 1));
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
    if (number == 3) {
      state.alive = field != "Z" && field != "X" && field != "x";
      state.stopped = field == "T" || field == "t";
    }
    if (number == 22) state.start_time = std::strtoull(field.c_str(), nullptr, 10);
  }
  return state;
}

std::string HostIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return boot + " " + LinkTarget("/proc/self/ns/pid") + " " + LinkTarget("/proc/self/ns/net");
}

std::string UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::string bits;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return bits;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    bits.resize(static_cast<size_t>(cpu) + 1, '0');
    bits[cpu] = '1';
  }
  return bits;
}

}  // namespace epl
