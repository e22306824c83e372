// Parts of the scalar models of docs/numerics.md (model.cc, channels_model.cc): sums in their order, moments, statistics.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "run.h"

namespace normkit::test {

inline constexpr int64_t kBlock = 4096;
inline constexpr int kLanes = 64;
inline constexpr int64_t kGradBlock = 64;

template <class T>
using Lanes = std::array<T, kLanes>;

template <class T>
T tree_sum(Lanes<T> lane) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
  return lane[0];
}

// Sum over the elements [0, n) in the normative order: add(i, lane) returns the lane with element i added.
template <class T, class Add>
double row_sum(int64_t n, const Add& add) {
  double total = 0;
  for (int64_t block = 0; block < n; block += kBlock) {
    Lanes<T> lane{};
    for (int64_t i = block; i < std::min(n, block + kBlock); ++i) lane[i % kLanes] = add(i, lane[i % kLanes]);
    total += tree_sum(lane);
  }
  return total;
}

struct Stats {
  double m0 = 0, delta = 0, rstd = 0;  // xhat = ((h*scale - m0) - delta) * rstd
  double scale = 1;
  bool rescued = false;
  bool wide = false;  // xhat and dx are formed in f64
  double derivative = 1;
  double mean_out = 0, rstd_out = 0;
};

inline double held(double v) { return v > std::numeric_limits<double>::max() ? std::numeric_limits<double>::max() : v; }

inline void set_rstd(Stats& s, EpsMode mode, double q, double eps) {
  const double root = std::sqrt(q);
  const double divisor = mode == EpsMode::inside    ? std::sqrt(q + eps)
                         : mode == EpsMode::outside ? root + eps
                         : root < eps               ? eps
                                                    : root;
  s.rstd = divisor == 0 ? 0 : held(1 / divisor);
  if (mode == EpsMode::outside) s.derivative = root == 0 ? 0 : held(divisor / root);
  if (mode == EpsMode::clamp) s.derivative = root < eps ? 0 : 1;
}

// The mean is origin + shift.
struct Moments {
  double n = 0, origin = 0, shift = 0, m2 = 0, slack = 0;
};

template <class T>
Moments block_moments(const T* h, int64_t m) {
  Lanes<T> probe{}, s1{}, s2{};
  const bool few = m < kLanes;
  for (int64_t j = 0; j < std::min<int64_t>(m, kLanes); ++j) probe[static_cast<size_t>(j)] = few ? h[j] - h[0] : h[j];
  const T mean = tree_sum(probe) * (few ? T{1} / static_cast<T>(m) : static_cast<T>(1.0 / kLanes));
  const T shift = few ? mean + h[0] : mean;
  for (int64_t i = 0; i < m; ++i) {
    const T d = h[i] - shift;
    s1[i % kLanes] += d;
    s2[i % kLanes] = std::fma(d, d, s2[i % kLanes]);
  }
  const double sum = tree_sum(s1), squares = tree_sum(s2), delta = sum / static_cast<double>(m);
  const double m2 = squares - sum * delta;
  return {static_cast<double>(m), shift, delta, m2 < 0 ? 0 : m2, sum * delta};
}

inline void merge(Moments& a, const Moments& b) {  // Chan
  if (a.n == 0) {
    a = b;
    return;
  }
  const double n = a.n + b.n, share = b.n / n, d = (b.origin - a.origin) + (b.shift - a.shift);
  a.shift += d * share;
  a.m2 += b.m2 + d * d * (a.n * share);
  a.slack += b.slack;
  a.n = n;
}

template <class T>
bool needs_rescue(const Moments& m, double q, EpsMode mode, double eps) {
  const bool wide = sizeof(T) == 8;
  const double base = q + (mode == EpsMode::inside ? eps : eps * eps);
  return !(m.slack <= 4 * m.m2) || !(m.m2 <= (wide ? 0x1p1023 : 0x1p127)) || !(base >= (wide ? 0x1p-900 : 0x1p-100));
}

template <class T>
double rescue_scale(const T* h, int64_t n, double eps) {
  if (sizeof(T) == 4) return 1;
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max<double>(largest, std::abs(h[i]));
  if (!std::isfinite(largest) || largest == 0) return 1;
  const int e = std::ilogb(largest);
  if (e > 480) return std::ldexp(1.0, -e);
  if (e >= -480) return 1;
  const int room = eps > 0 ? (1000 - std::ilogb(eps)) / 2 : 1000;
  return std::ldexp(1.0, std::min({-e, 1000, room}));
}

// Mean as an unevaluated sum of two numbers of the compute type.
template <class T>
void set_mean(Stats& s, double origin, double shift) {
  s.mean_out = origin + shift;
  s.m0 = sizeof(T) == 8 ? origin : static_cast<double>(static_cast<float>(s.mean_out));
  s.delta = sizeof(T) == 8 ? shift : s.mean_out - s.m0;
}

// What is saved, and whether the compute type holds it.
template <class T>
void set_outputs(Stats& s) {
  s.mean_out = (s.m0 + s.delta) / s.scale;
  s.rstd_out = held(s.rstd * s.scale);
  const double rstd = std::abs(s.rstd_out), mean = std::abs(s.mean_out);
  s.wide = s.scale != 1 || (sizeof(T) == 4 && ((rstd != 0 && rstd < 0x1p-126) || rstd > 0x1p127 || mean > 0x1p126));
  if (!s.wide) set_mean<T>(s, s.m0, s.delta);
}

}  // namespace normkit::test
