// Where the stream of a request lies in its rank's arena; in shared memory, for the peers to read.
#ifndef EPL_COMM_SHM_PLACES_H_
#define EPL_COMM_SHM_PLACES_H_

#include <cstddef>
#include <cstdint>

#include "request.h"
#include "shm_arena.h"

namespace epl {

struct Places {
  // Requests of more segments count as not in the arena.
  static constexpr size_t kMost = 256;
  struct Piece {
    uint64_t begin;    // of the stream, in elements
    uint64_t in, out;  // bytes into the arena
  };
  uint32_t inputs, outputs;  // 1: all of them lie in the arena
  uint32_t pieces;
  Piece piece[kMost + 1];  // one more, for the end of the stream

  void Describe(const Request& request, const ShmArena& arena);

  // The piece that has element `at`.
  const Piece& Of(size_t at) const;
  size_t EndOf(const Piece& each) const { return static_cast<size_t>((&each)[1].begin); }
};

}  // namespace epl
#endif  // EPL_COMM_SHM_PLACES_H_
