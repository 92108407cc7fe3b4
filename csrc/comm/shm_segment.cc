#include "shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace epl {
namespace {

constexpr uint64_t kSegmentMagic = 0x45504c73686d3031;  // "EPLshm01"

size_t RoundUp(size_t value, size_t to) { return (value + to - 1) / to * to; }

int MemoryFile() { return static_cast<int>(syscall(SYS_memfd_create, "epl_comm", 1u /* MFD_CLOEXEC */)); }

}  // namespace

ShmSegment::~ShmSegment() {
  CloseFile();
  if (base_ != nullptr) munmap(base_, bytes_);
}

void ShmSegment::CloseFile() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

uint64_t* ShmSegment::counts(uint64_t sequence) const {
  return reinterpret_cast<uint64_t*>(base_ + counts_at_) + (sequence % 2) * static_cast<size_t>(num_ranks_);
}

Mailbox* ShmSegment::mailbox(int to) const { return reinterpret_cast<Mailbox*>(base_ + mailboxes_at_) + to; }

char* ShmSegment::chunk(uint64_t number) const { return base_ + chunks_at_ + (number % num_chunks_) * chunk_bytes_; }

char* ShmSegment::message_chunk(uint32_t number) const {
  return base_ + messages_at_ + (number % 2) * kMessageChunkBytes;
}

Status ShmSegment::Map(int num_ranks, size_t chunk_bytes) {
  num_ranks_ = num_ranks;
  chunk_bytes_ = chunk_bytes;
  num_chunks_ = NumChunks(num_ranks);
  const size_t ranks = static_cast<size_t>(num_ranks);
  counts_at_ = RoundUp(sizeof(Control), 64);
  mailboxes_at_ = RoundUp(counts_at_ + 2 * ranks * sizeof(uint64_t), 64);
  chunks_at_ = RoundUp(mailboxes_at_ + ranks * sizeof(Mailbox), 4096);
  messages_at_ = chunks_at_ + num_chunks_ * chunk_bytes;
  const size_t bytes = messages_at_ + 2 * kMessageChunkBytes;
  struct stat info;
  if (fstat(fd_, &info) != 0) return Status(EPL_INTERNAL, Format("fstat: %s", std::strerror(errno)));
  if (info.st_size == 0) {
    // Takes the pages now: a full host is an error here and not a SIGBUS in the middle of a step.
    const int error = posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
    if (error != 0) {
      return Status(EPL_INTERNAL,
                    Format("%.1f MiB of shared memory cannot be had (%s); free memory or raise the limit of "
                           "the container, or set communication.backend to tcp",
                           static_cast<double>(bytes) / (1 << 20), std::strerror(error)));
    }
  } else if (static_cast<size_t>(info.st_size) != bytes) {
    return Status(EPL_INTERNAL, Format("segment has %lld bytes, expected %zu; ranks run different versions",
                                       static_cast<long long>(info.st_size), bytes));
  }
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) return Status(EPL_INTERNAL, Format("mmap: %s", std::strerror(errno)));
  base_ = static_cast<char*>(base);
  bytes_ = bytes;
  return Status();
}

Status ShmSegment::Create(int num_ranks, size_t chunk_bytes, uint64_t nonce) {
  fd_ = MemoryFile();
  if (fd_ < 0) return Status(EPL_INTERNAL, Format("memfd_create: %s", std::strerror(errno)));
  Status status = Map(num_ranks, chunk_bytes);
  if (!status.ok()) return status;
  control()->nonce = nonce;
  control()->magic = kSegmentMagic;  // the rest is zero, as new pages are
  return Status();
}

Status ShmSegment::Open(int pid, int fd, int num_ranks, size_t chunk_bytes, uint64_t nonce) {
  const std::string path = Format("/proc/%d/fd/%d", pid, fd);
  fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) return Status(EPL_INTERNAL, Format("open %s: %s", path.c_str(), std::strerror(errno)));
  Status status = Map(num_ranks, chunk_bytes);
  if (!status.ok()) return status;
  if (control()->magic != kSegmentMagic || control()->nonce != nonce) {
    return Status(EPL_INTERNAL, path + " is not the segment that was announced");
  }
  return Status();
}

}  // namespace epl
