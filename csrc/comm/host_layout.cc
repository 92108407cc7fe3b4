#include "host_layout.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace epl {

bool HostLayout::OneRankEach() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const std::vector<int>& host) { return host.size() == 1; });
}

int HostLayout::HostOf(int rank) const {
  int host = 0;
  while (!std::binary_search(ranks[host].begin(), ranks[host].end(), rank)) ++host;
  return host;
}

int HostLayout::PlaceOf(int rank) const {
  const std::vector<int>& host = ranks[HostOf(rank)];
  return static_cast<int>(std::lower_bound(host.begin(), host.end(), rank) - host.begin());
}

std::vector<int> HostLayout::Counterparts(int host, int place) const {
  std::vector<int> found;
  for (int i = 1; i < size(); ++i) found.push_back(ranks[(host + i) % size()][place]);
  return found;
}

std::vector<int> HostLayout::Carried(int host, int place) const {
  std::vector<int> found = {ranks[host][place]};
  const size_t here = ranks[host].size();
  for (int other = 0; other < size(); ++other) {
    if (other == host) continue;
    for (size_t i = static_cast<size_t>(place); i < ranks[other].size(); i += here) found.push_back(ranks[other][i]);
  }
  return found;
}

std::vector<int> HostLayout::Carriers(int host, int place) const {
  std::vector<int> found;
  for (int i = 1; i < size(); ++i) {
    const std::vector<int>& there = ranks[(host + i) % size()];
    found.push_back(there[static_cast<size_t>(place) % there.size()]);
  }
  return found;
}

HostLayout LayoutOf(const std::vector<std::string>& hosts) {
  HostLayout layout;
  std::map<std::string, size_t> number;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto found = number.emplace(hosts[rank], layout.ranks.size());
    if (found.second) layout.ranks.emplace_back();
    layout.ranks[found.first->second].push_back(static_cast<int>(rank));
  }
  size_t fewest = hosts.size();
  for (const std::vector<int>& host : layout.ranks) fewest = std::min(fewest, host.size());
  layout.stripes = static_cast<int>(fewest);
  return layout;
}

std::vector<int> Neighbours(int rank, int size, const std::vector<int>& strides) {
  std::vector<int> found;
  for (const int stride : strides) {
    found.push_back((rank + stride) % size);
    found.push_back((rank + size - stride % size) % size);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  found.erase(std::remove(found.begin(), found.end(), rank), found.end());
  return found;
}

std::vector<int> Strides(int size, int count) {
  const auto reaches = [&](int64_t base) {
    int64_t power = 1;
    for (int i = 0; i < count && power < size; ++i) power *= base;
    return power >= size;
  };
  int64_t base = 2;
  while (!reaches(base)) ++base;
  std::vector<int> strides = {1};
  while (static_cast<int>(strides.size()) < count && strides.back() * base < size) {
    strides.push_back(static_cast<int>(strides.back() * base));
  }
  return strides;
}

int NumStrides(int size, int ranks_a_host) {
  int doublings = 1;
  while ((1 << doublings) < size) ++doublings;
  return std::max(1, std::min(doublings, ranks_a_host / 2));
}

}  // namespace epl
