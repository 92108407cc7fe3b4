// The updates of LAMB and LARS over a block of a variable. Norms are over whole variables, so each has two halves:
// the first gives sums of squares, the second takes their totals. No TensorFlow, C++11.
#ifndef EPL_LAYER_WISE_H_
#define EPL_LAYER_WISE_H_

#include <cmath>
#include <cstddef>
#include <cstring>

// A second form of each function for processors with AVX2, which the dynamic linker chooses; sanitizers are not ready
// at that time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define EPL_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define EPL_CLONES
#endif
#define EPL_INLINE inline __attribute__((always_inline))

namespace epl {

// What one thread takes at once; sums of blocks are added up in their order, so they do not depend on threads. A block
// of four arrays stays in a processor's own cache.
constexpr size_t kLayerBlock = 16384;

// You et al. (2019), algorithm 2.
template <typename T>
struct LambNumbers {
  T beta1, beta2, bias1, bias2, epsilon, decay;  // bias: 1 - beta^t
};

// You et al. (2017).
template <typename T>
struct LarsNumbers {
  T momentum, rate, decay;  // rate: of this variable
};

namespace layer_wise {

constexpr size_t kLanes = 16;
constexpr size_t kAhead = 1024;  // bytes, of each array
constexpr size_t kChunk = 512;   // of elements whose steps are kept for a moment

// Says that the line of memory `kAhead` bytes behind x will be needed. Processors see by themselves that an array is
// read in its order, but begin anew with each page.
template <typename T>
EPL_INLINE void Prefetch(const T* x) {
#ifdef __GNUC__
  __builtin_prefetch(reinterpret_cast<const char*>(x) + kAhead);
#endif
}

template <typename T>
EPL_INLINE double SumOfSquares(const T* __restrict__ x, size_t count) {
  T lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += x[i + k] * x[i + k];
  }
  double sum = 0;
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  for (size_t k = 0; k < kLanes; ++k) sum += lanes[k];
  return sum;
}

// Of two arrays at once, of which neither is in a cache: what is read side by side arrives faster. The sums are vectors
// of what all processors have registers for, since compilers keep arrays of so many sums in memory.
template <typename T>
EPL_INLINE void SumsOfSquares(const T* __restrict__ x, const T* __restrict__ y, size_t count, double* x_sum,
                              double* y_sum) {
  typedef T Lanes __attribute__((vector_size(16)));
  typedef T Loose __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));
  constexpr size_t kStep = 16 / sizeof(T), kLine = 4 * kStep;
  Lanes x0 = {}, x1 = {}, x2 = {}, x3 = {}, y0 = {}, y1 = {}, y2 = {}, y3 = {};
  size_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    Prefetch(x + i);
    Prefetch(y + i);
    const Loose *xs = reinterpret_cast<const Loose*>(x + i), *ys = reinterpret_cast<const Loose*>(y + i);
    x0 += xs[0] * xs[0];
    x1 += xs[1] * xs[1];
    x2 += xs[2] * xs[2];
    x3 += xs[3] * xs[3];
    y0 += ys[0] * ys[0];
    y1 += ys[1] * ys[1];
    y2 += ys[2] * ys[2];
    y3 += ys[3] * ys[3];
  }
  double x_all = 0, y_all = 0;
  for (; i < count; ++i) {
    x_all += static_cast<double>(x[i]) * x[i];
    y_all += static_cast<double>(y[i]) * y[i];
  }
  x0 += x1 + x2 + x3;
  y0 += y1 + y2 + y3;
  for (size_t k = 0; k < kStep; ++k) {
    x_all += x0[k];
    y_all += y0[k];
  }
  *x_sum = x_all;
  *y_sum = y_all;
}

template <typename T>
EPL_INLINE T LambStep(const LambNumbers<T>& n, T scale1, T scale2, T m, T v, T w) {
  return m * scale1 / (std::sqrt(v * scale2) + n.epsilon) + n.decay * w;
}

template <typename T>
EPL_INLINE void LambMoments(const LambNumbers<T>& n, const T* __restrict__ g, const T* __restrict__ w,
                            T* __restrict__ m, T* __restrict__ v, size_t count, double* var_sum, double* step_sum) {
  const T rest1 = 1 - n.beta1, rest2 = 1 - n.beta2, scale1 = 1 / n.bias1, scale2 = 1 / n.bias2;
  T steps[kChunk];
  double vars = 0, all = 0;
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t size = count - begin < kChunk ? count - begin : kChunk;
    for (size_t i = 0; i < size; ++i) {
      const T grad = g[begin + i];
      const T first = n.beta1 * m[begin + i] + rest1 * grad, second = n.beta2 * v[begin + i] + rest2 * (grad * grad);
      m[begin + i] = first;
      v[begin + i] = second;
      steps[i] = LambStep(n, scale1, scale2, first, second, w[begin + i]);
    }
    all += SumOfSquares(steps, size);
    vars += SumOfSquares(w + begin, size);
  }
  *var_sum = vars;
  *step_sum = all;
}

template <typename T>
EPL_INLINE void LambOnlyMoments(const LambNumbers<T>& n, const T* __restrict__ g, T* __restrict__ m, T* __restrict__ v,
                                size_t count) {
  const T rest1 = 1 - n.beta1, rest2 = 1 - n.beta2;
  for (size_t i = 0; i < count; ++i) {
    m[i] = n.beta1 * m[i] + rest1 * g[i];
    v[i] = n.beta2 * v[i] + rest2 * (g[i] * g[i]);
  }
}

template <typename T>
EPL_INLINE void LambApply(const LambNumbers<T>& n, T rate, const T* __restrict__ m, const T* __restrict__ v,
                          T* __restrict__ w, size_t count) {
  const T scale1 = 1 / n.bias1, scale2 = 1 / n.bias2;
  for (size_t i = 0; i < count; ++i) w[i] -= rate * LambStep(n, scale1, scale2, m[i], v[i], w[i]);
}

template <typename T>
EPL_INLINE void LarsStep(const LarsNumbers<T>& n, T g, T* __restrict__ velocity, T* __restrict__ w) {
  *velocity = n.momentum * *velocity + n.rate * (g + n.decay * *w);
  *w -= *velocity;
}

template <typename T>
EPL_INLINE void LarsApply(const LarsNumbers<T>& n, const T* __restrict__ g, T* __restrict__ velocity, T* __restrict__ w,
                          size_t count) {
  size_t i = 0;
  constexpr size_t kLine = 64 / sizeof(T);
  for (; i + kLine <= count; i += kLine) {
    Prefetch(g + i), Prefetch(velocity + i), Prefetch(w + i);
    for (size_t k = i; k < i + kLine; ++k) LarsStep(n, g[k], velocity + k, w + k);
  }
  for (; i < count; ++i) LarsStep(n, g[i], velocity + i, w + i);
}

}  // namespace layer_wise

// Of each type by itself, as functions that are templates cannot have two forms.
#define EPL_LAYER_WISE(T)                                                                                         \
  /* m and v of this step, and the sums of the squares of w and of the step before its ratio. */                  \
  EPL_CLONES inline void LambMoments(const LambNumbers<T>& n, const T* g, const T* w, T* m, T* v, size_t count,   \
                                     double* var_sum, double* step_sum) {                                         \
    layer_wise::LambMoments(n, g, w, m, v, count, var_sum, step_sum);                                             \
  }                                                                                                               \
  /* The same for a variable without a ratio. */                                                                  \
  EPL_CLONES inline void LambMoments(const LambNumbers<T>& n, const T* g, T* m, T* v, size_t count) {             \
    layer_wise::LambOnlyMoments(n, g, m, v, count);                                                               \
  }                                                                                                               \
  /* w after the step; `rate` includes the ratio. */                                                              \
  EPL_CLONES inline void LambApply(const LambNumbers<T>& n, T rate, const T* m, const T* v, T* w, size_t count) { \
    layer_wise::LambApply(n, rate, m, v, w, count);                                                               \
  }                                                                                                               \
  EPL_CLONES inline void SumsOfSquares(const T* x, const T* y, size_t count, double* x_sum, double* y_sum) {      \
    layer_wise::SumsOfSquares(x, y, count, x_sum, y_sum);                                                         \
  }                                                                                                               \
  /* Velocity and w after the step. */                                                                            \
  EPL_CLONES inline void LarsApply(const LarsNumbers<T>& n, const T* g, T* velocity, T* w, size_t count) {        \
    layer_wise::LarsApply(n, g, velocity, w, count);                                                              \
  }

EPL_LAYER_WISE(float)
EPL_LAYER_WISE(double)
#undef EPL_LAYER_WISE

// norm / step_norm from their squares; 1 where either is not above 0.
template <typename T>
T LambRatio(T var_sum, T step_sum) {
  const T norm = std::sqrt(var_sum), step_norm = std::sqrt(step_sum);
  return norm > 0 && step_norm > 0 ? norm / step_norm : T(1);
}

// What multiplies the learning rate, from the squares of norms; 1 where either is not above 0.
template <typename T>
T LarsRatio(T var_sum, T grad_sum, T coeff, T decay, T epsilon) {
  const T norm = std::sqrt(var_sum), grad_norm = std::sqrt(grad_sum), below = grad_norm + decay * norm + epsilon;
  return norm > 0 && grad_norm > 0 ? coeff * norm / (below > 0 ? below : T(1)) : T(1);
}

}  // namespace epl

#undef EPL_CLONES
#undef EPL_INLINE
#endif  // EPL_LAYER_WISE_H_
