#include "problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>

#include "normkit/norm.h"

namespace bench {
namespace {

using normkit::DType;

constexpr double kEps = 0x1p-24;  // half an ulp of f32, in which everything is computed (f64: see check)

template <class T>
constexpr double unit() {  // half an ulp of T, relative
  if constexpr (std::is_same_v<T, double>) return 0x1p-53;
  if constexpr (std::is_same_v<T, float>) return 0x1p-24;
  if constexpr (std::is_same_v<T, normkit::f16>) return 0x1p-11;
  return 0x1p-8;
}

template <class T>
constexpr double tiny() {  // half the smallest subnormal of T
  if constexpr (std::is_same_v<T, double>) return 0x1p-1074;
  if constexpr (std::is_same_v<T, float>) return 0x1p-150;
  if constexpr (std::is_same_v<T, normkit::f16>) return 0x1p-25;
  return 0x1p-134;
}

template <class T>
T* as(const Buffer& b) {
  return static_cast<T*>(b.data());
}

// T(a + b), rounded as the fused residual add rounds it.
template <class T>
double rounded_sum(T a, T b) {
  if constexpr (std::is_same_v<T, double>) return a + b;
  return static_cast<double>(static_cast<float>(T(static_cast<float>(a) + static_cast<float>(b))));
}

template <class T>
double value(T v) {
  if constexpr (std::is_same_v<T, double>) return v;
  return static_cast<double>(static_cast<float>(v));
}

// Normal deviates from a table of prime length: rows differ, and 4 GB are filled in a second.
template <class T>
void fill_normal(const Buffer& b, unsigned seed, float mean, float deviation) {
  constexpr int64_t kTable = 100003;
  const int64_t n = b.bytes() / static_cast<int64_t>(sizeof(T));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<T> table(static_cast<size_t>(std::min(n, kTable)));
  for (T& v : table) v = T(normal(random));
  for (int64_t i = 0; i < n; i += kTable)
    std::memcpy(as<T>(b) + i, table.data(), static_cast<size_t>(std::min(kTable, n - i)) * sizeof(T));
}

// The first, the last and about 64 rows between.
std::vector<int64_t> sampled(int64_t n) {
  std::vector<int64_t> rows;
  const int64_t step = std::max<int64_t>(1, n / 64);
  for (int64_t i = 0; i < n; i += step) rows.push_back(i);
  if (rows.back() != n - 1) rows.push_back(n - 1);
  return rows;
}

// Keeps the largest error / tolerance; NaN counts as infinitely wrong.
struct Worst {
  double share = 0;
  void add(double got, double want, double tolerance) {
    const double s = std::abs(got - want) / tolerance;
    share = s <= share ? share : std::isnan(s) ? std::numeric_limits<double>::infinity() : s;
  }
};

}  // namespace

Problem::Problem(const Case& c)
    : case_(c),
      centred_(c.op == Op::layer_norm),
      x_(c.rows * c.cols * dtype_size(c.dtype)),
      residual_(c.direction == Direction::forward && c.residual ? x_.bytes() : 0),
      dy_(c.direction == Direction::backward ? x_.bytes() : 0),
      dh_(c.direction == Direction::backward && c.residual ? x_.bytes() : 0),
      weight_(c.cols * dtype_size(c.dtype)),
      bias_(c.direction == Direction::forward && centred_ ? weight_.bytes() : 0),
      y_(c.direction == Direction::forward ? x_.bytes() : 0),
      h_(residual_.bytes()),
      dx_(dy_.bytes()),
      dweight_(c.direction == Direction::backward ? c.cols * 4 : 0),
      dbias_(centred_ ? dweight_.bytes() : 0),
      mean_(static_cast<size_t>(c.rows)),
      rstd_(static_cast<size_t>(c.rows)) {
  for (const Buffer* b : {&x_, &residual_, &dy_, &dh_, &weight_, &bias_, &y_, &h_, &dx_, &dweight_, &dbias_})
    bytes_ += b->bytes();
  if (c.direction == Direction::backward) bytes_ += c.rows * 8 * (centred_ ? 2 : 1);
  switch (c.dtype) {
    case DType::f32: fill<float>(); break;
    case DType::f64: fill<double>(); break;
    case DType::bf16: fill<normkit::bf16>(); break;
    default: fill<normkit::f16>();
  }
}

template <class T>
void Problem::fill() {
  fill_normal<T>(x_, 1, 0.5f, 1.5f);
  fill_normal<T>(residual_, 2, -0.25f, 1.0f);
  fill_normal<T>(dy_, 3, 0.1f, 1.0f);
  fill_normal<T>(dh_, 4, 0.0f, 1.0f);
  fill_normal<T>(weight_, 5, 1.0f, 0.25f);
  fill_normal<T>(bias_, 6, 0.0f, 0.5f);
  const double n = static_cast<double>(case_.cols);
  for (int64_t r = 0; r < case_.rows; ++r) {
    const T* x = as<T>(x_) + r * case_.cols;
    const T* add = residual_.bytes() > 0 ? as<T>(residual_) + r * case_.cols : nullptr;
    const auto h = [&](int64_t j) { return add ? rounded_sum(x[j], add[j]) : value(x[j]); };
    double mean = 0, square = 0;
    if (centred_) {
      for (int64_t j = 0; j < case_.cols; ++j) mean += h(j);
      mean /= n;
    }
    for (int64_t j = 0; j < case_.cols; ++j) square += (h(j) - mean) * (h(j) - mean);
    mean_[static_cast<size_t>(r)] = mean;
    rstd_[static_cast<size_t>(r)] = 1 / std::sqrt(square / n + eps_);
  }
}

normkit::ConstView Problem::matrix(const Buffer& b) const {
  if (b.bytes() == 0) return {};
  return {b.data(), case_.dtype, std::array{case_.rows, case_.cols}};
}
normkit::View Problem::matrix_out(const Buffer& b) const {
  if (b.bytes() == 0) return {};
  return {b.data(), case_.dtype, std::array{case_.rows, case_.cols}};
}

void Problem::run() const {
  using normkit::ConstView, normkit::View;
  const std::array width{case_.cols};
  const ConstView weight{weight_.data(), case_.dtype, width};
  const normkit::Exec exec{.threads = case_.threads};
  if (case_.direction == Direction::forward) {
    const normkit::NormArgs args{
        .x = matrix(x_),
        .weight = weight,
        .bias = centred_ ? ConstView{bias_.data(), case_.dtype, width} : ConstView{},
        .residual = matrix(residual_),
        .y = matrix_out(y_),
        .residual_out = matrix_out(h_),
        .eps = eps_,
    };
    return centred_ ? normkit::layer_norm(args, exec) : normkit::rms_norm(args, exec);
  }
  const std::array batch{case_.rows};
  const normkit::NormGradArgs args{
      .dy = matrix(dy_),
      .x = matrix(x_),
      .weight = weight,
      .mean = centred_ ? ConstView{mean_.data(), DType::f64, batch} : ConstView{},
      .rstd = ConstView{rstd_.data(), DType::f64, batch},
      .dresidual_out = matrix(dh_),
      .dx = matrix_out(dx_),
      .dweight = View{dweight_.data(), DType::f32, width},
      .dbias = centred_ ? View{dbias_.data(), DType::f32, width} : View{},
      .eps = eps_,
  };
  return centred_ ? normkit::layer_norm_backward(args, exec) : normkit::rms_norm_backward(args, exec);
}

double Problem::check() const {
  for (const Buffer* b : {&y_, &h_, &dx_, &dweight_, &dbias_})
    std::memset(b->data(), 0xff, static_cast<size_t>(b->bytes()));  // NaN in every type
  run();
  switch (case_.dtype) {
    case DType::f32: return check_as<float>();
    case DType::f64: return check_as<double>();
    case DType::bf16: return check_as<normkit::bf16>();
    default: return check_as<normkit::f16>();
  }
}

template <class T>
double Problem::check_as() const {
  return case_.direction == Direction::forward ? check_forward<T>() : check_backward<T>();
}

template <class T>
double Problem::check_forward() const {
  const double eps = std::is_same_v<T, double> ? 0x1p-53 : kEps;
  const T *weight = as<T>(weight_), *bias = as<T>(bias_);
  Worst worst;
  for (const int64_t r : sampled(case_.rows)) {
    const int64_t row = r * case_.cols;
    for (int64_t j = 0; j < case_.cols; ++j) {
      double h = value(as<T>(x_)[row + j]);
      if (case_.residual) {
        h = rounded_sum(as<T>(x_)[row + j], as<T>(residual_)[row + j]);
        worst.add(value(as<T>(h_)[row + j]), h, tiny<T>());  // h must be equal
      }
      const double xhat = (h - mean_[static_cast<size_t>(r)]) * rstd_[static_cast<size_t>(r)];
      const double w = value(weight[j]), b = centred_ ? value(bias[j]) : 0.0, want = xhat * w + b;
      worst.add(value(as<T>(y_)[row + j]), want,
                unit<T>() * std::abs(want) + 16 * eps * (std::abs(w) * (std::abs(xhat) + 1) + std::abs(b)) + tiny<T>());
    }
  }
  return worst.share;
}

template <class T>
double Problem::check_backward() const {
  const double eps = std::is_same_v<T, double> ? 0x1p-53 : kEps;
  const double n = static_cast<double>(case_.cols);
  const T *x = as<T>(x_), *dy = as<T>(dy_), *weight = as<T>(weight_);
  const auto xhat = [&](int64_t r, int64_t j) {
    return (value(x[r * case_.cols + j]) - mean_[static_cast<size_t>(r)]) * rstd_[static_cast<size_t>(r)];
  };
  const auto grad = [&](int64_t r, int64_t j) { return value(dy[r * case_.cols + j]) * value(weight[j]); };
  Worst worst;
  for (const int64_t r : sampled(case_.rows)) {
    double sum_g = 0, sum_gx = 0, sum_abs = 0;
    for (int64_t j = 0; j < case_.cols; ++j) {
      sum_g += grad(r, j);
      sum_gx += grad(r, j) * xhat(r, j);
      sum_abs += std::abs(grad(r, j));
    }
    const double rstd = rstd_[static_cast<size_t>(r)], mean_g = centred_ ? sum_g / n : 0.0;
    for (int64_t j = 0; j < case_.cols; ++j) {
      const double dh = case_.residual ? value(as<T>(dh_)[r * case_.cols + j]) : 0.0;
      const double want = rstd * (grad(r, j) - mean_g - xhat(r, j) * sum_gx / n) + dh;
      const double scale = rstd * ((std::abs(xhat(r, j)) + 1) * sum_abs / n + std::abs(grad(r, j))) + std::abs(dh);
      worst.add(value(as<T>(dx_)[r * case_.cols + j]), want, unit<T>() * std::abs(want) + 16 * eps * scale + tiny<T>());
    }
  }
  for (const int64_t j : sampled(case_.cols)) {
    double dweight = 0, dbias = 0, weight_scale = 0, bias_scale = 0;
    for (int64_t r = 0; r < case_.rows; ++r) {
      const double d = value(dy[r * case_.cols + j]), h = xhat(r, j);
      dweight += d * h;
      dbias += d;
      weight_scale += std::abs(d) * (std::abs(h) + 1);
      bias_scale += std::abs(d);
    }
    worst.add(value(as<float>(dweight_)[j]), dweight, 16 * kEps * weight_scale);
    if (centred_) worst.add(value(as<float>(dbias_)[j]), dbias, 16 * kEps * bias_scale);
  }
  return worst.share;
}

}  // namespace bench
