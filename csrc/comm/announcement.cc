#include "announcement.h"

#include <algorithm>
#include <cstring>

#include "communicator.h"

namespace epl {
namespace {

// All-reduce and broadcast see one stream, however it is cut; the others cut every segment into shares.
uint64_t LayoutHash(const Request& request) {
  const bool shares = request.collective == EPL_ALL_GATHER || request.collective == EPL_REDUCE_SCATTER ||
                      request.collective == EPL_ALL_TO_ALL;
  uint64_t hash = 0xcbf29ce484222325u;
  if (!shares) return hash;
  for (const epl_segment& segment : request.segments) hash = (hash ^ segment.count) * 0x100000001b3u;
  for (size_t count : request.send_counts) hash = (hash ^ ~count) * 0x100000001b3u;
  return hash;
}

}  // namespace

uint64_t HashOf(const std::string& text) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  return hash;
}

void Announce(const Request& request, int rank, Announcement* to) {
  to->collective = request.collective;
  to->dtype = request.dtype;
  to->reduce_op = request.reduce_op;
  to->peer = request.peer;
  to->name_hash = HashOf(request.name);
  to->count = request.count;
  to->scale = request.scale;
  to->layout_hash = LayoutHash(request);
  to->sized_by_peers = request.allocate != nullptr && request.peer != rank ? 1 : 0;
  to->header_length = static_cast<uint32_t>(request.header.size());
  const size_t length = std::min(request.name.size(), kNameBytes - 1);
  std::memcpy(to->name, request.name.data(), length);
  to->name[length] = '\0';
  if (!request.header.empty()) std::memcpy(to->header, request.header.data(), request.header.size());
}

std::string Describe(const Announcement& a, const Options& options) {
  const std::string name(a.name, strnlen(a.name, kNameBytes));
  std::string line = Describe(a.collective, name, a.dtype, a.count, a.reduce_op, options.Name(a.peer));
  return IsReduction(a.collective) && a.scale != 1.0 ? line + Format(" scaled by %g", a.scale) : line;
}

Status CompareAnnouncements(const Options& options, const Announcement& mine, int other_rank,
                            const Announcement& other) {
  const bool any_count = mine.collective == EPL_ALL_GATHER_V || mine.collective == EPL_ALL_TO_ALL_V ||
                         mine.sized_by_peers != 0 || other.sized_by_peers != 0;
  bool same = mine.collective == other.collective && mine.name_hash == other.name_hash && mine.dtype == other.dtype;
  if (same && IsReduction(mine.collective)) same = mine.reduce_op == other.reduce_op && mine.scale == other.scale;
  if (same && (mine.collective == EPL_BROADCAST || mine.collective == EPL_REDUCE)) same = mine.peer == other.peer;
  if (same && !any_count) same = mine.count == other.count;
  if (same && mine.layout_hash == other.layout_hash) return Status();
  const char* cut = same ? ", with different sizes of segments or shares" : "";
  const bool first = options.rank < other_rank;
  const std::string me = options.Name(options.rank), other_name = options.Name(other_rank);
  return Status(EPL_MISMATCH, Format("%ss disagree on communicator '%s': %s calls %s, %s calls %s%s", options.Kind(),
                                     options.name.c_str(), (first ? me : other_name).c_str(),
                                     Describe(first ? mine : other, options).c_str(), (first ? other_name : me).c_str(),
                                     Describe(first ? other : mine, options).c_str(), cut));
}

Status CompareMessage(const Options& options, const Request& recv, const Announcement& sent) {
  const bool same = sent.collective == EPL_SEND && sent.name_hash == HashOf(recv.name) &&
                    sent.dtype == static_cast<int32_t>(recv.dtype) &&
                    (recv.allocate != nullptr || sent.count == recv.count);
  if (same) return Status();
  return Status(EPL_MISMATCH,
                Format("%ss disagree on communicator '%s': %s calls %s, %s calls %s", options.Kind(),
                       options.name.c_str(), options.Name(recv.peer).c_str(), Describe(sent, options).c_str(),
                       options.Name(options.rank).c_str(), Describe(recv, options).c_str()));
}

}  // namespace epl
