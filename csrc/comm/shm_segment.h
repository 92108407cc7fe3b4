// The memory that ranks of one host share. Every rank owns one segment, which all map: control words, descriptions of
// the collective under way, and a few chunks of data. It is anonymous memory (memfd) that peers open through the
// owner's file descriptor, so it has no name at any time and goes away with the last process, however that ends.
#ifndef EPL_COMM_SHM_SEGMENT_H_
#define EPL_COMM_SHM_SEGMENT_H_

#include <memory>
#include <string>
#include <vector>

#include "announcement.h"
#include "futex_signal.h"
#include "rendezvous.h"
#include "shm_arena.h"
#include "shm_places.h"
#include "status.h"

namespace epl {

struct AbortRecord {
  std::atomic<uint32_t> state;  // 0 none, 1 being written, 2 readable
  int32_t code;
  int32_t rank;
  char message[1000];
};

// The pair of counters and the description of a message from one rank to another; lives in the sender's segment.
struct Mailbox {
  Signal sent;      // chunks written by the sender, over the life of the communicator
  Signal received;  // chunks read by the receiver. The one word here that a peer writes
  Announcement announcement;
};

struct Control {
  uint64_t magic;
  uint64_t nonce;
  Signal step;                             // phases of group collectives that the owner has finished
  alignas(64) std::atomic<uint32_t> left;  // 1: takes part in nothing more
  std::atomic<uint32_t> messaging;         // 1 + the peer of the send or receive under way; 0: none
  alignas(64) AbortRecord abort;           // only rank 0's is used
  Announcement message;                    // what `messaging` is about
  Announcement announcements[2];           // of collective k in [k % 2]
  Places places[2];                        // likewise, of large ones where all ranks have arenas
};

// One rank's mapped segment. Not owning the file descriptor: that is closed when all have mapped.
class ShmSegment {
 public:
  ShmSegment() = default;
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  Status Create(int num_ranks, size_t chunk_bytes, uint64_t nonce);
  Status Open(int pid, int fd, int num_ranks, size_t chunk_bytes, uint64_t nonce);
  void CloseFile();

  int fd() const { return fd_; }
  Control* control() const { return reinterpret_cast<Control*>(base_); }
  uint64_t* counts(uint64_t sequence) const;   // [num_ranks], beside announcements[sequence % 2]
  Mailbox* mailbox(int to) const;              // for messages from the owner to `to`
  char* chunk(uint64_t number) const;          // group collectives: chunk_bytes each
  char* message_chunk(uint32_t number) const;  // send: kMessageChunkBytes each

  // With two ranks more: one of them can then publish much of a message while the other is busy elsewhere.
  static size_t NumChunks(int num_ranks) { return num_ranks == 2 ? 16 : 4; }
  static constexpr size_t kMessageChunkBytes = 256 * 1024;

 private:
  Status Map(int num_ranks, size_t chunk_bytes);

  int fd_ = -1;
  char* base_ = nullptr;
  size_t bytes_ = 0;
  size_t counts_at_ = 0, mailboxes_at_ = 0, chunks_at_ = 0, messages_at_ = 0;
  int num_ranks_ = 0;
  size_t chunk_bytes_ = 0, num_chunks_ = 0;
};

struct ShmPeer {
  ShmSegment segment;
  std::shared_ptr<ShmArena> arena;
  int pid = 0;
  uint64_t start_time = 0;
};

struct ShmGroup {
  std::vector<std::unique_ptr<ShmPeer>> ranks;
  bool arenas = false;       // all ranks have one, and all have mapped it
  bool enough_cpus = false;  // every rank can have a CPU of its own, so that spinning for a peer makes sense
  bool spare_cpus = false;   // and at least one more, so that spinning takes nothing from the rank's other threads
};

// Makes this rank's segment and maps those of the others. All ranks agree on the result: either all get OK or all an
// error; `reason` of an error names the rank that could not and why.
Status ShmJoin(const Options& options, Rendezvous* rendezvous, size_t chunk_bytes, ShmGroup* group);

}  // namespace epl
#endif  // EPL_COMM_SHM_SEGMENT_H_
