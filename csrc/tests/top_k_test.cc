// Which numbers are the largest: by a sorted list up to the size that is sampled whole, by properties beyond that.
#include "top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "harness.h"

namespace {

std::vector<uint32_t> Find(const std::vector<float>& values, size_t k) {
  epl::TopK top_k;
  std::vector<uint32_t> found = {7};  // is forgotten
  std::vector<float> made(values.size(), 1e30f);
  size_t next = 0;
  const auto make = [&](size_t begin, size_t end) {
    CHECK_THAT(begin == next && end <= values.size(), std::to_string(begin));
    std::copy(values.begin() + begin, values.begin() + end, made.begin() + begin);
    next = end;
  };
  top_k.Find([&](size_t i) { return values[i]; }, make, made.data(), values.size(), k, &found);
  CHECK_THAT(next == values.size(), "all are made: " + std::to_string(next));
  return found;
}

// By sorting all of them.
std::vector<uint32_t> Sorted(const std::vector<float>& values, size_t k) {
  std::vector<uint32_t> places(values.size());
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(),
                   [&](uint32_t a, uint32_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  places.resize(std::min(k, places.size()));
  places.erase(std::remove_if(places.begin(), places.end(), [&](uint32_t i) { return values[i] == 0; }), places.end());
  std::sort(places.begin(), places.end());
  return places;
}

TEST(top_k_of_few) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> values(random() % 50);
    for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 9) - 4);  // many equal ones
    const size_t k = random() % 60;
    CHECK_THAT(Find(values, k) == Sorted(values, k), std::to_string(round));
  }
}

TEST(top_k_of_many_by_a_sample) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const size_t count : {size_t{16385}, size_t{100003}, size_t{700000}}) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    for (const double part : {0.25, 0.01, 0.001}) {
      const size_t k = static_cast<size_t>(static_cast<double>(count) * part);
      const std::vector<uint32_t> found = Find(values, k), best = Sorted(values, k);
      const std::string what = std::to_string(count) + " " + std::to_string(k);
      CHECK_THAT(found.size() <= k && found.size() * 2 >= k, what + " found " + std::to_string(found.size()));
      CHECK_THAT(std::is_sorted(found.begin(), found.end()), what);
      // What is found are the largest: where there are k, just these.
      CHECK_THAT(std::includes(best.begin(), best.end(), found.begin(), found.end()), what);
    }
  }
}

TEST(top_k_of_what_is_no_number) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.0f, std::nanf(""), 3.0f, -infinity, 0.0f};
  CHECK_THAT(Find(values, 2) == std::vector<uint32_t>({1, 3}), "NaN and infinity come first");
  CHECK_THAT(Find(values, 10).size() == 4, "zeros are left out");
  CHECK_THAT(Find(std::vector<float>(40000, 0.0f), 10).empty(), "zeros alone");
}

}  // namespace
