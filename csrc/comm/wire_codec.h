// Numbers in fewer bits than float32, for the way between workers, and what the fewer bits leave over. No TensorFlow,
// C++11. The loops are plain and without branches, so that the compiler vectorises them.
#ifndef EPL_WIRE_CODEC_H_
#define EPL_WIRE_CODEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace epl {

enum class WireForm { kFloat16, kBfloat16, kInt8 };

constexpr size_t kWireBlock = 256;  // numbers that share a scale; the scale comes before them

namespace wire {

constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;

inline uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// To the nearest, of two equally near ones to the even one. Finite numbers stay finite: what is too large becomes the
// largest. For float16 nothing is computed with denormal floats, which TensorFlow's threads take for 0.
struct Float16 {
  static uint16_t Encode(float value) {
    const uint32_t bits = Bits(value), sign = bits & kSign, size = bits ^ sign;
    const uint32_t most = 0x477fe000u;  // 65504
    const uint32_t finite = size < most ? size : most;
    const uint32_t normal = (finite + 0xc8000fffu + ((finite >> 13) & 1u)) >> 13;  // another exponent, and rounding
    const uint32_t small = Bits(FromBits(finite) + 0.5f) - 0x3f000000u;            // its last bit is 2^-24
    const uint32_t half = finite < 0x38800000u ? small : normal;                   // below 2^-14
    const uint32_t other = size > kInfinity ? 0x7e00u : 0x7c00u;
    return static_cast<uint16_t>((size >= kInfinity ? other : half) | sign >> 16);
  }
  static float Decode(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, size = (half & 0x7fffu) << 13;
    const uint32_t exponent = size & 0x0f800000u;
    const uint32_t normal = size + 0x38000000u;
    const uint32_t small = Bits(FromBits(size + 0x38800000u) - FromBits(0x38800000u));
    const uint32_t finite = exponent == 0 ? small : normal;
    return FromBits((exponent == 0x0f800000u ? size + 0x70000000u : finite) | sign);
  }
};

struct Bfloat16 {
  static uint16_t Encode(float value) {
    const uint32_t bits = Bits(value), sign = bits & kSign, size = bits ^ sign;
    const uint32_t rounded = (size + 0x7fffu + ((size >> 16) & 1u)) >> 16;
    const uint32_t most = 0x7f7fu;
    const uint32_t finite = rounded < most ? rounded : most;
    const uint32_t other = size > kInfinity ? 0x7fc0u : 0x7f80u;
    return static_cast<uint16_t>((size >= kInfinity ? other : finite) | sign >> 16);
  }
  static float Decode(uint16_t bits) { return FromBits(static_cast<uint32_t>(bits) << 16); }
};

// What is infinite or no number leaves nothing over.
template <class Form>
void EncodeShort(float* values, size_t count, uint8_t* to) {
  for (size_t i = 0; i < count; ++i) {
    const float value = values[i];
    const uint16_t sent = Form::Encode(value);
    std::memcpy(to + 2 * i, &sent, sizeof(sent));
    const float left = value - Form::Decode(sent);
    values[i] = (Bits(value) & ~kSign) >= kInfinity ? 0.0f : left;
  }
}

template <class Form>
void AddShort(const uint8_t* from, size_t count, float* sum) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t sent;
    std::memcpy(&sent, from + 2 * i, sizeof(sent));
    sum[i] += Form::Decode(sent);
  }
}

// Up to kWireBlock numbers: a scale, and for each number a whole one between -127 and 127. Where one is infinite or no
// number, the scale is NaN, and so is all that is made of the block.
inline void EncodeBlock(float* values, size_t count, uint8_t* to) {
  const float kRound = 12582912.0f;  // 1.5 * 2^23: a float of this size has no bits behind the point
  int32_t top = 0;
  for (size_t i = 0; i < count; ++i) {
    const int32_t size = static_cast<int32_t>(Bits(values[i]) & ~kSign);
    top = size > top ? size : top;
  }
  const bool finite = static_cast<uint32_t>(top) < kInfinity;
  const float largest = FromBits(static_cast<uint32_t>(top));
  const bool sends = finite && largest > 1e-30f;  // what is smaller waits until it has grown
  const float inverse = sends ? 127.0f / largest : 0.0f;
  const float scale = sends ? largest / 127.0f : finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  std::memcpy(to, &scale, sizeof(scale));
  to += sizeof(scale);
  if (!sends) {
    std::memset(to, 0, count);
    if (!finite) std::memset(values, 0, count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const float rounded = values[i] * inverse + kRound;
    to[i] = static_cast<uint8_t>(Bits(rounded));  // the last 8 bits are those of the whole number
    values[i] -= (rounded - kRound) * scale;
  }
}

inline void AddBlock(const uint8_t* from, size_t count, float* sum) {
  float scale;
  std::memcpy(&scale, from, sizeof(scale));
  from += sizeof(scale);
  for (size_t i = 0; i < count; ++i) sum[i] += static_cast<float>(static_cast<int8_t>(from[i])) * scale;
}

}  // namespace wire

// Bytes that `count` numbers take. The first of more numbers take the same places as fewer numbers do.
inline size_t WireBytes(WireForm form, size_t count) {
  if (form != WireForm::kInt8) return 2 * count;
  return count + (count + kWireBlock - 1) / kWireBlock * sizeof(float);
}

// Writes numbers to `to`, and leaves in their place what these bytes do not say of them.
inline void WireEncode(WireForm form, float* values, size_t count, uint8_t* to) {
  if (form == WireForm::kFloat16) return wire::EncodeShort<wire::Float16>(values, count, to);
  if (form == WireForm::kBfloat16) return wire::EncodeShort<wire::Bfloat16>(values, count, to);
  for (size_t at = 0; at < count; at += kWireBlock) {
    wire::EncodeBlock(values + at, std::min(kWireBlock, count - at), to);
    to += kWireBlock + sizeof(float);
  }
}

// Adds what bytes of WireEncode say of numbers to a sum. Zeros say that they are 0.
inline void WireAdd(WireForm form, const uint8_t* from, size_t count, float* sum) {
  if (form == WireForm::kFloat16) return wire::AddShort<wire::Float16>(from, count, sum);
  if (form == WireForm::kBfloat16) return wire::AddShort<wire::Bfloat16>(from, count, sum);
  for (size_t at = 0; at < count; at += kWireBlock) {
    wire::AddBlock(from, std::min(kWireBlock, count - at), sum + at);
    from += kWireBlock + sizeof(float);
  }
}

}  // namespace epl

#endif  // EPL_WIRE_CODEC_H_
