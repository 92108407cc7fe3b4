#include "shm_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "status.h"

namespace epl {
namespace {

// Taken at a time, so that the file does not grow with every tensor.
constexpr size_t kGrowBytes = size_t{2} << 20;

size_t RoundUp(size_t value, size_t to) { return (value + to - 1) / to * to; }

// Whose each block is that somebody has.
struct Blocks {
  std::mutex mutex;
  std::unordered_map<void*, std::shared_ptr<ShmArena>> owners;
};

Blocks& TheBlocks() {
  static Blocks* blocks = new Blocks;  // never destroyed: tensors may be freed when the process ends
  return *blocks;
}

}  // namespace

std::shared_ptr<ShmArena> ShmArena::Create() {
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "epl_arena", 1u /* MFD_CLOEXEC */));
  if (fd < 0) return nullptr;
  std::shared_ptr<ShmArena> made(new ShmArena(fd));
  return made->Map() ? made : nullptr;
}

std::shared_ptr<ShmArena> ShmArena::Open(int pid, int fd) {
  const int opened = open(Format("/proc/%d/fd/%d", pid, fd).c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return nullptr;
  std::shared_ptr<ShmArena> made(new ShmArena(opened));
  return made->Map() ? made : nullptr;
}

bool ShmArena::Map() {
  void* base = mmap(nullptr, kCapacity, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (base == MAP_FAILED) return false;
  base_ = static_cast<char*>(base);
  return true;
}

ShmArena::~ShmArena() {
  if (base_ != nullptr) munmap(base_, kCapacity);
  close(fd_);
}

void* ShmArena::Allocate(const std::shared_ptr<ShmArena>& arena, size_t bytes) {
  void* data = arena->Take(bytes);
  if (data == nullptr) return nullptr;
  Blocks& blocks = TheBlocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.owners[data] = arena;
  return data;
}

void ShmArena::Free(void* data) {
  Blocks& blocks = TheBlocks();
  std::shared_ptr<ShmArena> arena;
  {
    std::lock_guard<std::mutex> lock(blocks.mutex);
    const auto found = blocks.owners.find(data);
    arena = std::move(found->second);
    blocks.owners.erase(found);
  }
  arena->GiveBack(data);
}

// The first place that is large enough: so what is used stays low, and in the caches.
void* ShmArena::Take(size_t bytes) {
  const size_t size = RoundUp(std::max<size_t>(bytes, 1), kAlignment);
  std::lock_guard<std::mutex> lock(mutex_);
  auto place = std::find_if(free_.begin(), free_.end(), [&](const auto& each) { return each.second >= size; });
  if (place == free_.end()) {
    // Behind the last one, which may be free in part.
    const bool joins = !free_.empty() && free_.rbegin()->first + free_.rbegin()->second == grown_;
    const size_t from = joins ? free_.rbegin()->first : grown_;
    const size_t length = from <= kCapacity && size <= kCapacity - from ? RoundUp(from + size, kGrowBytes) : 0;
    if (length == 0 || posix_fallocate(fd_, static_cast<off_t>(grown_), static_cast<off_t>(length - grown_)) != 0) {
      return nullptr;
    }
    free_[from] = length - from;
    grown_ = length;
    place = free_.find(from);
  }
  const size_t offset = place->first, rest = place->second - size;
  free_.erase(place);
  if (rest > 0) free_[offset + size] = rest;
  used_[offset] = size;
  return base_ + offset;
}

void ShmArena::GiveBack(void* data) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto block = used_.find(OffsetOf(data));
  auto place = free_.emplace(block->first, block->second).first;
  used_.erase(block);
  const auto next = std::next(place);
  if (next != free_.end() && place->first + place->second == next->first) {
    place->second += next->second;
    free_.erase(next);
  }
  if (place != free_.begin()) {
    const auto before = std::prev(place);
    if (before->first + before->second == place->first) {
      before->second += place->second;
      free_.erase(place);
    }
  }
}

}  // namespace epl
