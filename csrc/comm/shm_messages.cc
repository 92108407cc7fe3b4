// Send and receive of the shared-memory back end.
#include <algorithm>
#include <cstring>

#include "shm_communicator.h"

namespace epl {

// The message goes through two chunks in turn. The sender stays until the receiver has read the last one, so the chunks
// are free for the next message, whoever it is for.
Status ShmCommunicator::SendMessage(const Request& request) {
  const int to = request.peer;
  Mailbox* box = Me()->mailbox(to);
  const size_t step = ShmSegment::kMessageChunkBytes / request.element;
  const uint32_t chunks = static_cast<uint32_t>(std::max<size_t>(1, (request.count + step - 1) / step));
  const uint32_t base = sent_[to];
  const auto wait = [&](uint32_t target) {
    const auto missing = [&] { return Reached(box->received, target) ? std::vector<int>() : std::vector<int>{to}; };
    return WaitFor(&box->received, target, missing, request);
  };
  Announce(request, options_.rank, &box->announcement);
  for (uint32_t c = 0; c < chunks; ++c) {
    if (c >= 2) {
      Status status = wait(base + c - 1);
      if (!status.ok()) return status;
    }
    const size_t begin = std::min(request.count, c * step);
    request.Gather(begin, std::min(request.count, begin + step), Me()->message_chunk(c));
    Publish(&box->sent, base + c + 1);
  }
  sent_[to] = base + chunks;
  return wait(base + chunks);
}

Status ShmCommunicator::ReceiveMessage(const Request& request) {
  const int from = request.peer;
  Mailbox* box = Segment(from)->mailbox(options_.rank);
  const size_t step = ShmSegment::kMessageChunkBytes / request.element;
  const uint32_t base = received_[from];
  char* out = nullptr;
  size_t count = request.count;
  uint32_t chunks = 1;
  for (uint32_t c = 0; c < chunks; ++c) {
    const uint32_t target = base + c + 1;
    const auto missing = [&] { return Reached(box->sent, target) ? std::vector<int>() : std::vector<int>{from}; };
    Status status = WaitFor(&box->sent, target, missing, request);
    if (!status.ok()) return status;
    if (c == 0) {
      status = AcceptMessage(request, box->announcement, &out);
      if (!status.ok()) return status;
      count = box->announcement.count;
      chunks = static_cast<uint32_t>(std::max<size_t>(1, (count + step - 1) / step));
    }
    const size_t begin = std::min(count, c * step);
    const size_t end = std::min(count, begin + step);
    if (out != nullptr) {
      std::memcpy(out + begin * request.element, Segment(from)->message_chunk(c), (end - begin) * request.element);
    } else {
      request.Scatter(begin, end, Segment(from)->message_chunk(c));
    }
    Publish(&box->received, target);
  }
  received_[from] = base + chunks;
  return Status();
}

// Compares the sender's description with what is expected here, and asks for the buffer if its size was not known.
Status ShmCommunicator::AcceptMessage(const Request& request, const Announcement& sent, char** out) {
  Status status = CompareMessage(options_, request, sent);
  if (!status.ok()) return status;
  if (request.allocate == nullptr) return Status();
  std::vector<size_t> counts(options_.size, 0);
  counts[request.peer] = sent.count;
  const size_t length = std::min<size_t>(sent.header_length, kMaxHeaderBytes);
  *out = static_cast<char*>(request.allocate(request.arg, counts.data(), options_.size, sent.header, length));
  return *out != nullptr ? Status() : Refused(request, Describe(request, options_) + ": ");
}

}  // namespace epl
