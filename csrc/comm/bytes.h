// Small arithmetic on sizes and blocks of memory.
#ifndef EPL_COMM_BYTES_H_
#define EPL_COMM_BYTES_H_

#include <cstddef>
#include <cstring>

namespace epl {

inline size_t CeilDivide(size_t a, size_t b) { return (a + b - 1) / b; }

// The two may overlap, and be NULL where there is nothing to copy.
inline void CopyBytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace epl
#endif  // EPL_COMM_BYTES_H_
