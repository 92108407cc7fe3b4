// The numbers of largest magnitude among many, by a threshold that a sample gives. No TensorFlow, C++11.
#ifndef EPL_TOP_K_H_
#define EPL_TOP_K_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace epl {

// Orders floats by magnitude; infinity is above all finite numbers, and NaN above that, so that both are never left
// out.
inline uint32_t Magnitude(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffffu;
}

// Lin et al., "Deep Gradient Compression" (2017), section 3: sorting a sample gives a threshold; where too many numbers
// reach it, these alone are sorted.
class TopK {
 public:
  // Finds the places, in rising order, of at most `k` of `count` numbers (below 2^32): the largest of those that reach
  // the threshold, and of equal ones the first. Zeros are never among them. Up to kExact numbers all are the sample.
  //
  // The numbers need not be there yet, so that they are made and looked at while caches hold them: `number(i)` gives
  // one of them, and `make(begin, end)` writes some of them to `data`; each is made once.
  template <typename Number, typename Make>
  void Find(const Number& number, const Make& make, const float* data, size_t count, size_t k,
            std::vector<uint32_t>* found) {
    found->clear();
    const uint32_t threshold = k == 0 ? kNone : k < count ? Threshold(number, count, k) : 1;
    for (size_t begin = 0; begin < count; begin += kBlock) {
      const size_t end = std::min(count, begin + kBlock);
      make(begin, end);
      Collect(data, begin, end, threshold, found);
    }
    if (found->size() <= k) return;
    std::nth_element(found->begin(), found->begin() + k, found->end(), [data](uint32_t a, uint32_t b) {
      const uint32_t one = Magnitude(data[a]), other = Magnitude(data[b]);
      return one != other ? one > other : a < b;
    });
    found->resize(k);
    std::sort(found->begin(), found->end());
  }

 private:
  static constexpr size_t kExact = 16384;
  static constexpr size_t kSmallestSample = 4096;
  static constexpr size_t kLongestStride = 128;
  static constexpr size_t kBlock = 2048;
  static constexpr size_t kRun = 64;
  static constexpr uint32_t kNone = 0x80000000u;  // above all magnitudes

  // Adds the places of those that reach the threshold: few, so that most runs have none and need one comparison.
  static void Collect(const float* data, size_t begin, size_t end, uint32_t threshold, std::vector<uint32_t>* found) {
    for (size_t run = begin; run < end; run += kRun) {
      const size_t stop = std::min(end, run + kRun);
      int32_t largest = 0;
      for (size_t i = run; i < stop; ++i) largest = std::max(largest, static_cast<int32_t>(Magnitude(data[i])));
      if (static_cast<uint32_t>(largest) < threshold) continue;
      for (size_t i = run; i < stop; ++i) {
        if (Magnitude(data[i]) >= threshold) found->push_back(static_cast<uint32_t>(i));
      }
    }
  }

  // What about k * 5 / 4 numbers reach, so that there are rarely fewer than k; at least 1, as zeros are not wanted.
  template <typename Number>
  uint32_t Threshold(const Number& number, size_t count, size_t k) {
    const size_t stride = count <= kExact ? 1 : std::min<size_t>(kLongestStride, count / kSmallestSample);
    const size_t size = count / stride;
    const size_t rank = stride == 1 ? k : k * 5 / 4 / stride + 2;
    if (rank >= size) return 1;
    sample_.resize(size);
    for (size_t block = 0; block < size; ++block) {
      // One number of each block, not always at the same place: rows and columns of matrices lie at regular places.
      const uint32_t place = static_cast<uint32_t>(block) * 2654435761u >> 16;
      sample_[block] = Magnitude(number(block * stride + place % stride));
    }
    std::nth_element(sample_.begin(), sample_.begin() + (rank - 1), sample_.end(), std::greater<uint32_t>());
    return std::max<uint32_t>(1, sample_[rank - 1]);
  }

  std::vector<uint32_t> sample_;
};

}  // namespace epl

#endif  // EPL_TOP_K_H_
