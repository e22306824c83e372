#include "reference.h"

#include <algorithm>

namespace normkit::test {
namespace {

// What one row needs in both directions.
template <class Real>
struct Row {
  std::vector<Real> xhat;
  Real mean = 0, deviation = 0, rstd = 0;
  Real derivative = 1;  // d(rstd)/dq relative to that of 1/sqrt(q + eps)
};

// The mean as an unevaluated sum of two numbers: one alone cannot tell rows apart that lie far away from 0.
template <class Real>
struct Mean {
  Real high = 0, low = 0;
  Real distance(double h) const { return (h - high) - low; }
};
template <class Real>
Mean<Real> mean_of(const double* h, int64_t n) {
  Mean<Real> mean;
  for (int64_t i = 0; i < n; ++i) mean.high += h[i] / static_cast<Real>(n);
  if (!std::isfinite(mean.high)) return mean;
  for (int64_t i = 0; i < n; ++i) mean.low += h[i] - mean.high;
  mean.low /= static_cast<Real>(n);
  return mean;
}

template <class Real>
Row<Real> normalize(const Case& c, const double* h) {
  const int64_t n = c.cols;
  Row<Real> row;
  const Mean<Real> mean = c.op == Op::layer ? mean_of<Real>(h, n) : Mean<Real>();
  row.mean = mean.high + mean.low;
  Real q = 0;
  for (int64_t i = 0; i < n; ++i) q += mean.distance(h[i]) * mean.distance(h[i]);
  row.deviation = std::sqrt(q / static_cast<Real>(n));
  if (c.op != Op::l2) q /= static_cast<Real>(n);
  const EpsMode mode = c.op == Op::l2 ? EpsMode::clamp : c.eps_mode;
  const Real eps = static_cast<Real>(c.eps), root = std::sqrt(q);
  const Real divisor = mode == EpsMode::inside    ? std::sqrt(q + eps)
                       : mode == EpsMode::outside ? root + eps
                                                  : (root < eps ? eps : root);  // NaN stays NaN
  row.rstd = divisor == 0 ? Real(0) : 1 / divisor;
  if (mode == EpsMode::outside) row.derivative = root == 0 ? Real(0) : divisor / root;
  if (mode == EpsMode::clamp && root <= eps) row.derivative = 0;
  for (int64_t i = 0; i < n; ++i) row.xhat.push_back(mean.distance(h[i]) * row.rstd);
  return row;
}

double h_value(const Case& c, const Inputs& in, int64_t i) {
  const double x = in.x.get(i);
  if (!in.residual) return x;
  const double r = in.residual.get(i);
  const double sum = compute_type(c.x) == DType::f64 ? x + r : static_cast<float>(x) + static_cast<float>(r);
  return c.residual_stats == ResidualStats::rounded ? round_to(c.h_type(), sum) : sum;
}

std::vector<double> h_values(const Case& c, const Inputs& in) {
  std::vector<double> h;
  for (int64_t i = 0; i < c.rows * c.cols; ++i) h.push_back(h_value(c, in, i));
  return h;
}

// weight + weight_offset, added in f32 (f64 for f64 x).
double weight_value(const Case& c, const Inputs& in, int64_t i) {
  if (!in.weight) return 1;
  const double w = in.weight.get(c.single_weight ? 0 : i);
  return round_to(compute_type(c.x), w + c.weight_offset);
}

template <class Real>
void forward_row(const Case& c, const Inputs& in, const Row<Real>& row, int64_t r, Reference& ref) {
  for (int64_t i = 0; i < c.cols; ++i) {
    const size_t at = static_cast<size_t>(r * c.cols + i);
    const double w = weight_value(c, in, i), b = in.bias ? in.bias.get(c.single_weight ? 0 : i) : 0;
    Real xhat = row.xhat[static_cast<size_t>(i)];
    ref.y.scale[at] = std::abs(w) * (std::abs(static_cast<double>(xhat)) + 1) + std::abs(b);
    if (c.rounding == Rounding::before_weight && c.x != compute_type(c.x)) {
      // xhat may round the other way: one ulp of x's type, expressed in units of 16 * 2^-24.
      const double ulp = 2 * unit_roundoff(c.x) * std::abs(static_cast<double>(xhat)) + 2 * half_smallest(c.x);
      ref.y.scale[at] += std::abs(w) * ulp / (16 * unit_roundoff(DType::f32));
      xhat = round_to(c.x, static_cast<double>(xhat));
    }
    ref.y.value[at] = static_cast<long double>(xhat * w + b);
  }
}

template <class Real>
void backward_row(const Case& c, const Inputs& in, const Row<Real>& row, int64_t r, Reference& ref) {
  const int64_t n = c.cols;
  std::vector<Real> g(static_cast<size_t>(n));
  Real sum = 0, product = 0, magnitude = 0;
  for (int64_t i = 0; i < n; ++i) {
    const size_t k = static_cast<size_t>(i);
    g[k] = static_cast<Real>(in.dy.get(r * n + i)) * weight_value(c, in, i);
    sum += g[k];
    product += g[k] * row.xhat[k];
    magnitude += std::abs(g[k]);
  }
  const Real count = static_cast<Real>(n);
  const Real centre = c.op == Op::layer ? sum / count : Real(0);
  const Real slope = row.derivative * (c.op == Op::l2 ? product : product / count);
  for (int64_t i = 0; i < n; ++i) {
    const size_t k = static_cast<size_t>(i), at = static_cast<size_t>(r * n + i);
    const double dres = in.dresidual_out ? in.dresidual_out.get(r * n + i) : 0;
    ref.dx.value[at] = static_cast<long double>(row.rstd * (g[k] - centre - row.xhat[k] * slope) + dres);
    const double size = std::abs(static_cast<double>(row.xhat[k])) + 1;
    const double typical = static_cast<double>(c.op == Op::l2 ? magnitude : magnitude / count);
    ref.dx.scale[at] =
        static_cast<double>(row.rstd) * (size * typical + std::abs(static_cast<double>(g[k]))) + std::abs(dres);
  }
}

template <class Real>
void parameter_gradients(const Case& c, const Inputs& in, const std::vector<Row<Real>>& rows, Reference& ref) {
  std::vector<Real> dweight(ref.dweight.value.size()), dbias(dweight.size());
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t i = 0; i < c.cols; ++i) {
      const size_t k = c.single_weight ? 0 : static_cast<size_t>(i);
      const Real exact = rows[static_cast<size_t>(r)].xhat[static_cast<size_t>(i)];
      const Real xhat = c.rounding == Rounding::before_weight && c.x != compute_type(c.x)
                            ? static_cast<Real>(round_to(c.x, static_cast<double>(exact)))
                            : exact;
      const double dy = in.dy.get(r * c.cols + i), size = std::abs(static_cast<double>(exact));
      dweight[k] += dy * xhat;
      dbias[k] += dy;
      ref.dweight.scale[k] += std::abs(dy) * (size + 1);
      if (xhat != exact)
        ref.dweight.scale[k] += std::abs(dy) * (size * unit_roundoff(c.x) + half_smallest(c.x)) / (8 * 0x1p-24);
      ref.dbias.scale[k] += std::abs(dy);
    }
  }
  for (size_t k = 0; k < dweight.size(); ++k) {
    ref.dweight.value[k] = static_cast<long double>(dweight[k]);
    ref.dbias.value[k] = static_cast<long double>(dbias[k]);
  }
}

template <class Real>
Reference reference_in(const Case& c, const Inputs& in) {
  const int64_t n = c.rows * c.cols;
  Reference ref{.y = Expected(n),
                .dx = Expected(n),
                .dweight = Expected(c.weight_size()),
                .dbias = Expected(c.weight_size()),
                .h = {},
                .mean = {},
                .rstd = {},
                .deviation = {}};
  ref.h = h_values(c, in);
  for (int64_t r = 0; r < c.rows; ++r) {
    const Row<Real> row = normalize<Real>(c, ref.h.data() + r * c.cols);
    ref.mean.push_back(static_cast<long double>(row.mean));
    ref.rstd.push_back(static_cast<long double>(row.rstd));
    ref.deviation.push_back(static_cast<double>(row.deviation));
    forward_row(c, in, row, r, ref);
  }
  const std::vector<double> h = h_values(c.for_backward(), in);
  std::vector<Row<Real>> rows;
  for (int64_t r = 0; r < c.rows; ++r) {
    rows.push_back(normalize<Real>(c, h.data() + r * c.cols));
    backward_row(c, in, rows.back(), r, ref);
  }
  parameter_gradients(c, in, rows, ref);
  return ref;
}

}  // namespace

Reference reference(const Case& c, const Inputs& in) {
  return c.x == DType::f64 ? reference_in<long double>(c, in) : reference_in<double>(c, in);
}

void Measure::merge(const Measure& m) {
  if (m.share > share) share = m.share, worst = m.worst;
  constant = std::max(constant, m.constant);
}

Measure measure(const Buffer& got, const Expected& expected, DType compute) {
  const double u_out = unit_roundoff(got.dtype()), u = unit_roundoff(compute), tiny = half_smallest(got.dtype());
  Measure m;
  for (int64_t i = 0; i < got.size(); ++i) {
    const size_t k = static_cast<size_t>(i);
    const long double ref = expected.value[k];
    const double value = got.get(i);
    if (std::isnan(ref) && std::isnan(value)) continue;
    const long double rounding = u_out * std::abs(ref) + tiny;
    const long double bound = rounding + 16 * u * expected.scale[k];
    // Results too large for the type become infinite: the largest finite value and half an ulp is the border.
    const bool overflows = std::abs(ref) + bound > largest(got.dtype()) * (1 + static_cast<long double>(u_out) / 2);
    if (value == ref || (std::isinf(value) && overflows && std::signbit(value) == std::signbit(ref))) continue;
    const long double error = std::abs(value - ref);
    const double share = static_cast<double>(error / bound);
    if (!(share <= m.share)) m.share = std::isnan(share) ? std::numeric_limits<double>::infinity() : share, m.worst = i;
    if (error > rounding)
      m.constant = std::max(m.constant, static_cast<double>((error - rounding) / (u * expected.scale[k])));
  }
  return m;
}

}  // namespace normkit::test
