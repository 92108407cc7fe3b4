#include "values.h"

#include <cmath>
#include <cstdint>
#include <cstring>

namespace test {

size_t SizeOf(epl_dtype dtype) {
  static const size_t sizes[] = {2, 2, 4, 8, 4, 8, 1, 1};
  return sizes[dtype];
}

double Tolerance(epl_dtype dtype) {
  if (dtype == EPL_BFLOAT16) return 1.0 / 128;
  if (dtype == EPL_FLOAT16) return 1.0 / 1024;
  return dtype == EPL_FLOAT32 ? 1e-6 : 0.0;
}

namespace {

template <class T>
void Put(void* array, size_t index, T value) {
  std::memcpy(static_cast<char*>(array) + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T Take(const void* array, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + index * sizeof(T), sizeof(T));
  return value;
}

// IEEE half precision, by arithmetic and not by bits as the library does it. Normal numbers only.
uint16_t HalfOf(double value) {
  if (value == 0) return 0;
  int exponent;
  const double mantissa = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const int bits = static_cast<int>(std::nearbyint(mantissa * 2048)) - 1024;
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + bits);
}

double HalfTo(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return half & 0x8000 ? -value : value;
}

}  // namespace

void Store(epl_dtype dtype, void* array, size_t index, double value) {
  switch (dtype) {
    case EPL_FLOAT16:
      return Put<uint16_t>(array, index, HalfOf(value));
    case EPL_BFLOAT16: {
      const float single = static_cast<float>(value);
      uint32_t bits;
      std::memcpy(&bits, &single, sizeof(bits));
      return Put<uint16_t>(array, index, static_cast<uint16_t>(bits >> 16));
    }
    case EPL_FLOAT32:
      return Put<float>(array, index, static_cast<float>(value));
    case EPL_FLOAT64:
      return Put<double>(array, index, value);
    case EPL_INT32:
      return Put<int32_t>(array, index, static_cast<int32_t>(value));
    case EPL_INT64:
      return Put<int64_t>(array, index, static_cast<int64_t>(value));
    case EPL_UINT8:
    case EPL_BOOL:
      return Put<uint8_t>(array, index, static_cast<uint8_t>(value));
  }
}

double Load(epl_dtype dtype, const void* array, size_t index) {
  switch (dtype) {
    case EPL_FLOAT16:
      return HalfTo(Take<uint16_t>(array, index));
    case EPL_BFLOAT16: {
      const uint32_t bits = static_cast<uint32_t>(Take<uint16_t>(array, index)) << 16;
      return Take<float>(&bits, 0);
    }
    case EPL_FLOAT32:
      return Take<float>(array, index);
    case EPL_FLOAT64:
      return Take<double>(array, index);
    case EPL_INT32:
      return Take<int32_t>(array, index);
    case EPL_INT64:
      return static_cast<double>(Take<int64_t>(array, index));
    case EPL_UINT8:
    case EPL_BOOL:
      return Take<uint8_t>(array, index);
  }
  return 0;
}

}  // namespace test
