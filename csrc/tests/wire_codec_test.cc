// Numbers in fewer bits: each float16 and bfloat16 there is, the nearest of them, blocks of int8, and sums over many
// steps, in which what is left over comes back.
#include "wire_codec.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "harness.h"

namespace {

using epl::WireForm;

const WireForm kForms[] = {WireForm::kFloat16, WireForm::kBfloat16, WireForm::kInt8};

// What the bytes say of the numbers; `values` become what is left over.
std::vector<float> Sent(WireForm form, std::vector<float>* values) {
  std::vector<uint8_t> bytes(epl::WireBytes(form, values->size()));
  std::vector<float> sent(values->size(), 0.0f);
  epl::WireEncode(form, values->data(), values->size(), bytes.data());
  epl::WireAdd(form, bytes.data(), sent.size(), sent.data());
  return sent;
}

// All finite numbers of a form, from 0 upwards, by the definition of its bits.
std::vector<double> Finite(int exponent_bits, int mantissa_bits) {
  std::vector<double> found;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  for (int exponent = 0; exponent < (1 << exponent_bits) - 1; ++exponent) {
    for (int mantissa = 0; mantissa < (1 << mantissa_bits); ++mantissa) {
      const double significand = std::ldexp(mantissa, -mantissa_bits) + (exponent > 0 ? 1 : 0);
      found.push_back(std::ldexp(significand, std::max(exponent, 1) - bias));
    }
  }
  return found;
}

template <class Form>
void CheckAll(const std::string& name, int exponent_bits, int mantissa_bits) {
  const std::vector<double> all = Finite(exponent_bits, mantissa_bits);
  for (size_t bits = 0; bits < all.size(); ++bits) {
    const float value = static_cast<float>(all[bits]);
    CHECK_THAT(Form::Decode(static_cast<uint16_t>(bits)) == value, name + " " + std::to_string(bits));
    CHECK_THAT(Form::Encode(value) == bits && Form::Encode(-value) == (bits | 0x8000u), name + std::to_string(bits));
    if (bits + 1 == all.size()) break;
    const double middle = (all[bits] + all[bits + 1]) / 2;  // a float, unless both are denormal floats
    if (static_cast<double>(static_cast<float>(middle)) != middle || all[bits] < 1e-37) continue;
    const float tie = static_cast<float>(middle);
    CHECK_THAT(Form::Encode(tie) == bits + bits % 2, name + " does not round to even above " + std::to_string(bits));
    CHECK_THAT(Form::Encode(std::nextafterf(tie, 0.0f)) == bits, name + " below " + std::to_string(bits));
    CHECK_THAT(Form::Encode(std::nextafterf(tie, std::numeric_limits<float>::max())) == bits + 1,
               name + " above " + std::to_string(bits));
  }
  const float most = static_cast<float>(all.back()), infinity = std::numeric_limits<float>::infinity();
  CHECK_THAT(Form::Decode(Form::Encode(std::numeric_limits<float>::max())) == most, name + " becomes infinite");
  CHECK_THAT(Form::Decode(Form::Encode(-infinity)) == -infinity, name + " of infinity");
  CHECK_THAT(std::isnan(Form::Decode(Form::Encode(std::nanf("")))), name + " of NaN");
}

TEST(wire_float16) { CheckAll<epl::wire::Float16>("float16", 5, 10); }
TEST(wire_bfloat16) { CheckAll<epl::wire::Bfloat16>("bfloat16", 8, 7); }

TEST(wire_int8_blocks) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const size_t count : {size_t{0}, size_t{1}, size_t{255}, size_t{256}, size_t{257}, size_t{1000}}) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = normal(random) * (i < 256 ? 1e-20f : 1e20f);
    const std::vector<float> before = values, sent = Sent(WireForm::kInt8, &values);
    for (size_t i = 0; i < count; ++i) {
      float largest = 0;
      for (size_t k = i / 256 * 256; k < std::min(count, i / 256 * 256 + 256); ++k) {
        largest = std::max(largest, std::fabs(before[k]));
      }
      const std::string what = std::to_string(i) + " of " + std::to_string(count);
      CHECK_THAT(std::fabs(values[i]) <= largest / 127 * 0.5001f, what + " is not the nearest");
      CHECK_THAT(std::fabs(sent[i] + values[i] - before[i]) <= 1e-6f * std::fabs(before[i]), what + " loses something");
    }
  }
}

TEST(wire_of_fewer_numbers_is_a_beginning) {
  for (const WireForm form : kForms) {
    std::vector<float> values(300);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 150.0f;
    std::vector<float> sum(700, 0.0f), want = Sent(form, &values);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 150.0f;
    std::vector<uint8_t> bytes(epl::WireBytes(form, 700), 0);
    epl::WireEncode(form, values.data(), values.size(), bytes.data());
    epl::WireAdd(form, bytes.data(), sum.size(), sum.data());
    want.resize(700, 0.0f);
    CHECK_THAT(sum == want, "what is behind the numbers is not 0");
  }
}

TEST(wire_of_what_is_no_number) {
  for (const WireForm form : kForms) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      std::vector<float> values = {1.0f, bad, 1e-40f};
      const std::vector<float> sent = Sent(form, &values);
      CHECK_THAT(!std::isfinite(sent[1]) && values[1] == 0.0f, "is hidden, or kept back");
    }
    std::vector<float> tiny(3, 1e-35f);
    const std::vector<float> sent = Sent(form, &tiny);
    CHECK_THAT(std::fabs(sent[0] + tiny[0] - 1e-35f) < 1e-37f, "small numbers are lost");
  }
}

// As workers do it: each encodes its numbers and what it has left over, one adds up and encodes the sum with what it
// has left over. Over many steps the sum of the results is the sum of all numbers, but for what waits.
TEST(wire_sums_do_not_drift) {
  const size_t kCount = 300, kWorkers = 4, kSteps = 1000;
  for (const WireForm form : kForms) {
    std::mt19937 random(4);
    std::uniform_real_distribution<float> uniform(0.999f, 1.001f);
    std::vector<std::vector<float>> left(kWorkers, std::vector<float>(kCount, 0.0f));
    std::vector<float> left_of_sum(kCount, 0.0f);
    std::vector<double> want(kCount, 0.0), got(kCount, 0.0);
    for (size_t step = 0; step < kSteps; ++step) {
      std::vector<float> sum(kCount, 0.0f);
      for (std::vector<float>& own : left) {
        for (size_t i = 0; i < kCount; ++i) {
          // One number of a block is large, and each has about the same place between two of the form's in all steps.
          const float gradient = (i == 7 ? 1.0f : 0.001f + 1e-6f * static_cast<float>(i)) * uniform(random);
          want[i] += gradient;
          own[i] += gradient;
        }
        const std::vector<float> sent = Sent(form, &own);
        for (size_t i = 0; i < kCount; ++i) sum[i] += sent[i];
      }
      for (size_t i = 0; i < kCount; ++i) left_of_sum[i] += sum[i];
      const std::vector<float> sent = Sent(form, &left_of_sum);
      for (size_t i = 0; i < kCount; ++i) got[i] += sent[i];
    }
    for (size_t i = 0; i < kCount; ++i) {
      // What waits: some of the distances between two numbers of the form.
      const bool beside_large = form == WireForm::kInt8 && i < 256;
      const double most = beside_large ? 4.5 * 4.5 / 127 / 2 : i == 7 ? 0.04 : 5e-4;
      CHECK_THAT(std::fabs(got[i] - want[i]) < most,
                 std::to_string(i) + ": " + std::to_string(got[i]) + " and not " + std::to_string(want[i]));
    }
  }
}

}  // namespace
