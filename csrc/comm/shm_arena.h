// Memory for tensors that the ranks of a host share: each rank hands out its own, and all have mapped it. What lies
// there is read and written by peers where it is, without a copy on the way.
//
// It is anonymous memory (memfd) like a segment, and goes away with the last process. Pages are taken when memory is
// handed out: where the host has none left, that fails, and the caller takes other memory.
#ifndef EPL_COMM_SHM_ARENA_H_
#define EPL_COMM_SHM_ARENA_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

namespace epl {

class ShmArena {
 public:
  // The most that a rank hands out. Address space alone, until it is.
  static constexpr size_t kCapacity = size_t{256} << 20;
  // Where a block begins: as TensorFlow and the widest vector instructions want it.
  static constexpr size_t kAlignment = 64;

  // This rank's; NULL where the kernel gives no such memory.
  static std::shared_ptr<ShmArena> Create();
  // That of a peer; NULL where it cannot be mapped.
  static std::shared_ptr<ShmArena> Open(int pid, int fd);

  ShmArena(const ShmArena&) = delete;
  ShmArena& operator=(const ShmArena&) = delete;
  ~ShmArena();

  int fd() const { return fd_; }
  char* at(size_t offset) const { return base_ + offset; }
  // Whether all of these bytes lie in the arena.
  bool Holds(const void* data, size_t bytes) const {
    const size_t offset = static_cast<size_t>(static_cast<const char*>(data) - base_);
    return static_cast<const char*>(data) >= base_ && offset <= kCapacity && bytes <= kCapacity - offset;
  }
  size_t OffsetOf(const void* data) const { return static_cast<size_t>(static_cast<const char*>(data) - base_); }

  // `arena`'s, of the owner only; NULL where there is no room. Any thread. The memory stays while somebody has some of
  // it, also when its communicator is gone.
  static void* Allocate(const std::shared_ptr<ShmArena>& arena, size_t bytes);
  static void Free(void* data);

 private:
  explicit ShmArena(int fd) : fd_(fd) {}
  bool Map();
  void* Take(size_t bytes);
  void GiveBack(void* data);

  const int fd_;
  char* base_ = nullptr;
  std::mutex mutex_;
  size_t grown_ = 0;                      // the file's length; its pages are there
  std::map<size_t, size_t> free_, used_;  // sizes by offset; neighbours among the free ones are one
};

}  // namespace epl
#endif  // EPL_COMM_SHM_ARENA_H_
