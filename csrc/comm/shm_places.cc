#include "shm_places.h"

#include <algorithm>

namespace epl {

void Places::Describe(const Request& request, const ShmArena& arena) {
  inputs = outputs = 1;
  pieces = 0;
  for (size_t i = 0; i < request.segments.size(); ++i) {
    const epl_segment& segment = request.segments[i];
    if (segment.count == 0) continue;
    const size_t bytes = segment.count * request.element;
    if (!arena.Holds(segment.in, bytes)) inputs = 0;
    if (pieces == kMost || !arena.Holds(segment.out, bytes)) outputs = 0;
    if (outputs == 0) break;
    piece[pieces++] = {request.offsets[i], arena.OffsetOf(segment.in), arena.OffsetOf(segment.out)};
  }
  piece[pieces].begin = request.count;
}

const Places::Piece& Places::Of(size_t at) const {
  return *(std::upper_bound(piece, piece + pieces, at, [](size_t a, const Piece& each) { return a < each.begin; }) - 1);
}

}  // namespace epl
