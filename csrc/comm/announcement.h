// What a rank is about to do. Ranks compare these before any data reaches a caller's buffer.
#ifndef EPL_COMM_ANNOUNCEMENT_H_
#define EPL_COMM_ANNOUNCEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "request.h"
#include "status.h"

namespace epl {

constexpr size_t kNameBytes = 128;

// Lies in shared memory and travels over sockets; all ranks run the same build.
struct alignas(64) Announcement {
  int32_t collective;
  int32_t dtype;
  int32_t reduce_op;
  int32_t peer;
  uint64_t name_hash;
  uint64_t count;
  double scale;
  uint64_t layout_hash;     // of the shares, where every rank must cut the data alike
  uint32_t sized_by_peers;  // 1: this rank learns the count from the others, so its own does not count
  uint32_t header_length;
  alignas(64) char name[kNameBytes];
  uint8_t header[kMaxHeaderBytes];
};

// What of an Announcement is sent whatever the length of its header.
constexpr size_t kHeadBytes = offsetof(Announcement, header);
// Data up to this size travels with the heads.
constexpr size_t kInlineBytes = 8 * 1024;

// Small data begins at such a multiple in the head, as the reduction loops expect elements to be aligned.
inline size_t AlignInHead(size_t offset) { return (offset + 15) / 16 * 16; }

// The most that comes as a head, also when ranks disagree: an Announcement, a count for each of `size` ranks, data.
inline size_t MaxHeadBytes(int size) {
  return AlignInHead(kHeadBytes + kMaxHeaderBytes + static_cast<size_t>(size) * sizeof(uint64_t)) + kInlineBytes;
}

uint64_t HashOf(const std::string& text);

void Announce(const Request& request, int rank, Announcement* to);

// OK if ranks `rank` and `other_rank` of communicator `communicator` are about to do the same; else EPL_MISMATCH with
// both sides, in rank order.
Status CompareAnnouncements(const Options& options, const Announcement& mine, int other_rank,
                            const Announcement& other);

// The same for the receiver of a message.
Status CompareMessage(const Options& options, const Request& recv, const Announcement& sent);

std::string Describe(const Announcement& announcement, const Options& options);

}  // namespace epl
#endif  // EPL_COMM_ANNOUNCEMENT_H_
