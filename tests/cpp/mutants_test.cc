// The tolerance must bite: kernels that are wrong in one way each, in the ways that real libraries were wrong, must
// fail the formula on at least one case of the table; the same kernel without the fault must pass on all.
#include <gtest/gtest.h>

#include "reference.h"

namespace normkit::test {
namespace {

// The faults of the forward, then those of the backward.
// clang-format off
#define FORWARD_FAULTS(X)                                                                                             \
  X(one_pass_variance) X(welford_in_f32) X(n_minus_1) X(dropped_tail) X(padded_lanes) X(eps_forgotten) X(eps_outside) \
  X(eps_inside) X(clamp_forgotten) X(mean_kept) X(mean_in_bf16) X(bf16_accumulator) X(offset_forgotten)               \
  X(offset_in_16_bit) X(bias_forgotten) X(residual_forgotten) X(weight_shifted) X(early_rounding) X(truncated)        \
  X(approximate_rstd) X(x_rstd_minus_mean_rstd)
#define BACKWARD_FAULTS(X)                                                                                            \
  X(offset_forgotten_in_backward) X(mean_of_g_forgotten) X(slope_forgotten) X(slope_of_inside)                        \
  X(gradient_of_h_forgotten) X(n_minus_1_in_backward) X(dweight_row_block_dropped) X(dweight_in_bf16)                 \
  X(dweight_of_h) X(dbias_of_g) X(weight_ignored)
// clang-format on
#define NAME(fault) fault,
#define TEXT(fault) #fault,
enum class Fault { none, FORWARD_FAULTS(NAME) BACKWARD_FAULTS(NAME) kinds_end };
constexpr const char* kFaultNames[] = {"none", FORWARD_FAULTS(TEXT) BACKWARD_FAULTS(TEXT)};
constexpr Fault kFirstBackward = Fault::offset_forgotten_in_backward;

float to_bf16(double v) { return static_cast<float>(bf16(static_cast<float>(v))); }

// One kernel in f64 with a place for every fault.
class Kernel {
 public:
  Kernel(const Case& c, const Inputs& in, Fault fault) : c_(c), in_(in), fault_(fault), n_(c.cols) {
    for (int64_t i = 0; i < c.rows * n_; ++i) {
      double h = in.x.get(i);
      if (in.residual && !is(Fault::residual_forgotten)) {
        h += in.residual.get(i);
        if (c.x != DType::f64) h = static_cast<float>(h);
        if (c.residual_stats == ResidualStats::rounded) h = round_to(c.h_type(), h);
      }
      h_.push_back(h);
    }
    for (int64_t r = 0; r < c.rows; ++r) statistics(h_.data() + r * n_);
  }

  Outputs forward() const {
    Outputs out;
    out.y = Buffer(c_.y_type(), c_.rows * n_);
    for (int64_t i = 0; i < out.y.size(); ++i) {
      const double b = in_.bias && !is(Fault::bias_forgotten) ? in_.bias.get(c_.single_weight ? 0 : i % n_) : 0;
      double xhat = this->xhat(i);
      if (c_.rounding == Rounding::before_weight || is(Fault::early_rounding)) xhat = round_to(c_.x, xhat);
      const double y = xhat * weight(i % n_) + b;
      out.y.set(i, is(Fault::truncated) ? truncate(y) : y);
    }
    return out;
  }

  Outputs backward() const {
    Outputs out;
    out.dx = Buffer(c_.x, c_.rows * n_);
    for (int64_t r = 0; r < c_.rows; ++r) dx_row(r, out.dx);
    std::vector<double> dweight(static_cast<size_t>(c_.weight_size())), dbias(dweight.size());
    const int64_t rows = is(Fault::dweight_row_block_dropped) ? c_.rows / 64 * 64 : c_.rows;
    for (int64_t i = 0; i < rows * n_; ++i) {
      const size_t k = c_.single_weight ? 0 : static_cast<size_t>(i % n_);
      const double dy = in_.dy.get(i);
      double xhat = is(Fault::dweight_of_h) ? h_[static_cast<size_t>(i)] : this->xhat(i);
      if (c_.rounding == Rounding::before_weight) xhat = round_to(c_.x, xhat);
      dweight[k] += dy * xhat;
      dbias[k] += is(Fault::dbias_of_g) ? dy * gradient_weight(i % n_) : dy;
      if (is(Fault::dweight_in_bf16)) dweight[k] = to_bf16(dweight[k]);
    }
    Outputs like;
    backward_args(c_, in_, like);
    out.dweight = like.dweight;
    out.dbias = like.dbias;
    for (int64_t i = 0; i < c_.weight_size(); ++i) {
      out.dweight.set(i, dweight[static_cast<size_t>(i)]);
      out.dbias.set(i, dbias[static_cast<size_t>(i)]);
    }
    return out;
  }

 private:
  bool is(Fault f) const { return fault_ == f; }

  struct Row {
    double mean, rstd, derivative;
  };

  double mean_of(const double* h) const {
    double sum = 0, rest = 0;
    for (int64_t i = 0; i < n_; ++i) sum += h[i];
    const double mean = sum / static_cast<double>(n_);
    for (int64_t i = 0; i < n_; ++i) rest += h[i] - mean;
    return is(Fault::mean_in_bf16) ? to_bf16(mean) : mean + rest / static_cast<double>(n_);
  }

  double sum_of_squares(const double* h, double mean) const {
    double sum = 0;
    const int64_t used = is(Fault::dropped_tail) ? n_ / 64 * 64 : n_;
    for (int64_t i = 0; i < used; ++i) {
      sum += (h[i] - mean) * (h[i] - mean);
      if (is(Fault::bf16_accumulator)) sum = to_bf16(sum);
    }
    if (is(Fault::padded_lanes)) sum += mean * mean * static_cast<double>((n_ + 63) / 64 * 64 - n_);
    return sum;
  }

  // Variances in f32 as other libraries compute them.
  double one_pass(const double* h) const {
    float sum = 0, squares = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const float v = static_cast<float>(h[i]);
      sum += v, squares += v * v;
    }
    const float mean = sum / static_cast<float>(n_);
    return squares / static_cast<float>(n_) - mean * mean;
  }
  double welford(const double* h) const {
    float mean = 0, m2 = 0;
    for (int64_t i = 0; i < n_; ++i) {
      const float d = static_cast<float>(h[i]) - mean;
      mean += d / static_cast<float>(i + 1);
      m2 += d * (static_cast<float>(h[i]) - mean);
    }
    return m2 / static_cast<float>(n_);
  }

  void statistics(const double* h) {
    const double mean = c_.op == Op::layer ? mean_of(h) : 0;
    // f64 data whose squares leave the range are scaled; a power of two, so exact.
    double largest = 0;
    for (int64_t i = 0; i < n_; ++i) largest = std::max(largest, std::abs(h[i] - mean));
    const double scale =
        largest > 1e150 || (largest < 1e-150 && largest > 0) ? std::ldexp(1.0, -std::ilogb(largest)) : 1;
    std::vector<double> scaled(h, h + n_);
    for (double& v : scaled) v *= scale;
    double q = sum_of_squares(scaled.data(), mean * scale);
    if (c_.op != Op::l2) q /= static_cast<double>(is(Fault::n_minus_1) && n_ > 1 ? n_ - 1 : n_);
    if (is(Fault::one_pass_variance) && c_.op == Op::layer) q = one_pass(h);
    if (is(Fault::welford_in_f32) && c_.op == Op::layer) q = welford(h);
    const double root = std::sqrt(q) / scale, divisor = divisor_of(root);
    Row row{is(Fault::mean_kept) ? 0 : mean, divisor == 0 ? 0 : 1 / divisor, 1};
    if (is(Fault::approximate_rstd)) row.rstd = round_to(DType::f32, row.rstd) * (1 + 0x1p-16);
    const EpsMode mode = mode_of();
    if (mode == EpsMode::outside) row.derivative = root == 0 ? 0 : divisor / root;
    if (mode == EpsMode::clamp && root <= c_.eps) row.derivative = 0;
    if (is(Fault::slope_of_inside)) row.derivative = 1;
    if (is(Fault::slope_forgotten)) row.derivative = 0;
    rows_.push_back(row);
  }
  EpsMode mode_of() const {
    if (c_.op == Op::l2) return EpsMode::clamp;
    if (is(Fault::eps_outside)) return EpsMode::outside;
    if (is(Fault::eps_inside)) return EpsMode::inside;
    return c_.eps_mode;
  }
  double divisor_of(double root) const {
    if (is(Fault::eps_forgotten)) return root;
    switch (mode_of()) {
      case EpsMode::inside: return std::hypot(root, std::sqrt(c_.eps));
      case EpsMode::outside: return root + c_.eps;
      case EpsMode::clamp: return root < c_.eps && !is(Fault::clamp_forgotten) ? c_.eps : root;
    }
    return root;
  }

  double xhat(int64_t i) const {
    const Row& row = rows_[static_cast<size_t>(i / n_)];
    const double h = h_[static_cast<size_t>(i)];
    if (is(Fault::x_rstd_minus_mean_rstd))
      return static_cast<float>(static_cast<float>(h) * static_cast<float>(row.rstd)) -
             static_cast<float>(static_cast<float>(row.mean) * static_cast<float>(row.rstd));
    return (h - row.mean) * row.rstd;
  }
  double weight_at(int64_t column) const {
    if (!in_.weight) return 1;
    return in_.weight.get(c_.single_weight ? 0 : is(Fault::weight_shifted) ? (column + 1) % n_ : column);
  }
  double weight(int64_t column) const {
    if (!in_.weight || is(Fault::offset_forgotten)) return weight_at(column);
    const double w = weight_at(column) + c_.weight_offset;
    return round_to(is(Fault::offset_in_16_bit) ? in_.weight.dtype() : compute_type(c_.x), w);
  }
  double gradient_weight(int64_t column) const {
    if (is(Fault::weight_ignored)) return 1;
    return is(Fault::offset_forgotten_in_backward) ? weight_at(column) : weight(column);
  }
  double truncate(double y) const {
    double t = round_to(c_.y_type(), y);
    if (std::abs(t) > std::abs(y)) t = round_to(c_.y_type(), t * (1 - 2 * unit_roundoff(c_.y_type())));
    return t;
  }

  void dx_row(int64_t r, Buffer& dx) const {
    const Row& row = rows_[static_cast<size_t>(r)];
    double sum = 0, product = 0;
    for (int64_t i = r * n_; i < (r + 1) * n_; ++i) {
      const double g = in_.dy.get(i) * gradient_weight(i % n_);
      sum += g, product += g * xhat(i);
    }
    const double count = static_cast<double>(is(Fault::n_minus_1_in_backward) && n_ > 1 ? n_ - 1 : n_);
    const double centre = c_.op == Op::layer && !is(Fault::mean_of_g_forgotten) ? sum / count : 0;
    const double slope = row.derivative * (c_.op == Op::l2 ? product : product / count);
    for (int64_t i = r * n_; i < (r + 1) * n_; ++i) {
      const double g = in_.dy.get(i) * gradient_weight(i % n_);
      double v = row.rstd * (g - centre - xhat(i) * slope);
      if (in_.dresidual_out && !is(Fault::gradient_of_h_forgotten)) v += in_.dresidual_out.get(i);
      dx.set(i, v);
    }
  }

  const Case& c_;
  const Inputs& in_;
  Fault fault_;
  int64_t n_;
  std::vector<double> h_;
  std::vector<Row> rows_;
};

// f64 cases need a kernel in more than f64 and are left to the model; wide ones add nothing here.
bool suits(const Case& c) { return !c.wide && c.x != DType::f64; }

bool passes(const Case& c, Fault fault, bool forward) {
  const Inputs in = make_inputs(c);
  const Reference ref = reference(c, in);
  if (forward) return measure(Kernel(c, in, fault).forward().y, ref.y, DType::f32).passes();
  const Case b = c.for_backward();
  const Outputs out = Kernel(b, in, fault).backward();
  return measure(out.dx, ref.dx, DType::f32).passes() && measure(out.dweight, ref.dweight, DType::f32).passes() &&
         measure(out.dbias, ref.dbias, DType::f32).passes();
}

TEST(Mutants, TheKernelWithoutAFaultPasses) {
  for (const Case& c : all_cases()) {
    if (!suits(c)) continue;
    EXPECT_TRUE(passes(c, Fault::none, true)) << c;
    EXPECT_TRUE(passes(c, Fault::none, false)) << c;
  }
}

class Mutant : public testing::TestWithParam<int> {};
TEST_P(Mutant, IsFound) {
  const Fault fault = static_cast<Fault>(GetParam());
  for (const Case& c : all_cases())
    if (suits(c) && !passes(c, fault, fault < kFirstBackward)) return;
  FAIL() << "no case of the table finds this fault";
}
INSTANTIATE_TEST_SUITE_P(Mutants, Mutant, testing::Range(1, static_cast<int>(Fault::kinds_end)),
                         [](const auto& info) { return std::string(kFaultNames[info.param]); });

}  // namespace
}  // namespace normkit::test
