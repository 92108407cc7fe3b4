// The updates of LAMB and LARS by blocks, against one element after the other in double precision.
#include "layer_wise.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "harness.h"

namespace {

// Around the numbers that loops take at once.
const size_t kSizes[] = {0, 1, 15, 16, 17, 511, 512, 513, 1030, epl::kLayerBlock};

template <typename T>
std::vector<T> Random(size_t size, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<T> normal;
  std::vector<T> values(size);
  for (T& value : values) value = normal(random);
  return values;
}

template <typename T>
void CheckNear(double got, double want, const std::string& what) {
  const double tolerance = sizeof(T) == 4 ? 2e-6 : 1e-13;
  CHECK_THAT(std::fabs(got - want) <= tolerance * std::max(1.0, std::fabs(want)),
             what + ": " + std::to_string(got) + " is not " + std::to_string(want));
}

template <typename T>
void TestLamb(size_t size) {
  const epl::LambNumbers<T> n{T(0.9), T(0.99), T(0.2), T(0.05), T(1e-3), T(0.1)};
  const std::vector<T> g = Random<T>(size, 1), w = Random<T>(size, 2);
  std::vector<T> m = Random<T>(size, 3), v = Random<T>(size, 4), new_w = w;
  for (T& each : v) each = std::fabs(each);
  std::vector<double> want_m(size), want_v(size), steps(size);
  double want_var = 0, want_step = 0, var_sum = -1, step_sum = -1;
  for (size_t i = 0; i < size; ++i) {
    want_m[i] = double(n.beta1) * m[i] + (1 - double(n.beta1)) * g[i];
    want_v[i] = double(n.beta2) * v[i] + (1 - double(n.beta2)) * g[i] * g[i];
    steps[i] = want_m[i] / n.bias1 / (std::sqrt(want_v[i] / n.bias2) + n.epsilon) + double(n.decay) * w[i];
    want_var += double(w[i]) * w[i];
    want_step += steps[i] * steps[i];
  }
  std::vector<T> plain_m = m, plain_v = v;
  epl::LambMoments(n, g.data(), w.data(), m.data(), v.data(), size, &var_sum, &step_sum);
  epl::LambMoments(n, g.data(), plain_m.data(), plain_v.data(), size);
  epl::LambApply(n, T(0.3), m.data(), v.data(), new_w.data(), size);
  const std::string what = "LAMB of " + std::to_string(size);
  CheckNear<T>(var_sum, want_var, what);
  CheckNear<T>(step_sum, want_step, what);
  CHECK_THAT(plain_m == m && plain_v == v, what);
  for (size_t i = 0; i < size; ++i) {
    CheckNear<T>(m[i], want_m[i], what);
    CheckNear<T>(v[i], want_v[i], what);
    CheckNear<T>(new_w[i], w[i] - double(T(0.3)) * steps[i], what);
  }
}

template <typename T>
void TestLars(size_t size) {
  const epl::LarsNumbers<T> n{T(0.9), T(0.3), T(0.1)};
  const std::vector<T> g = Random<T>(size, 1), w = Random<T>(size, 2), v = Random<T>(size, 3);
  std::vector<T> new_w = w, new_v = v;
  epl::LarsApply(n, g.data(), new_v.data(), new_w.data(), size);
  double g_sum = 0, w_sum = 0, got_g = -1, got_w = -1;
  for (size_t i = 0; i < size; ++i) {
    const double velocity = double(n.momentum) * v[i] + double(n.rate) * (g[i] + double(n.decay) * w[i]);
    const std::string what = "LARS of " + std::to_string(size);
    CheckNear<T>(new_v[i], velocity, what);
    CheckNear<T>(new_w[i], w[i] - velocity, what);
    g_sum += double(g[i]) * g[i];
    w_sum += double(w[i]) * w[i];
  }
  epl::SumsOfSquares(g.data(), w.data(), size, &got_g, &got_w);
  CheckNear<T>(got_g, g_sum, "sum of " + std::to_string(size));
  CheckNear<T>(got_w, w_sum, "sum of " + std::to_string(size));
}

TEST(layer_wise_updates) {
  for (const size_t size : kSizes) {
    TestLamb<float>(size);
    TestLamb<double>(size);
    TestLars<float>(size);
    TestLars<double>(size);
  }
}

TEST(layer_wise_ratios) {
  CheckNear<float>(epl::LambRatio(9.f, 4.f), 1.5, "ratio");
  CHECK_THAT(epl::LambRatio(0.f, 4.f) == 1 && epl::LambRatio(9.f, 0.f) == 1, "a norm of 0");
  CHECK_THAT(epl::LambRatio(9.f, std::nanf("")) == 1, "no number");
  CheckNear<double>(epl::LarsRatio(9., 4., 0.1, 0.5, 0.25), 0.1 * 3 / (2 + 0.5 * 3 + 0.25), "rate");
  CHECK_THAT(epl::LarsRatio(0., 4., 0.1, 0.5, 0.25) == 1 && epl::LarsRatio(9., 0., 0.1, 0.5, 0.25) == 1, "a norm of 0");
}

}  // namespace
