// Gradients against finite differences of the forward in f64, and what the backward does with its outputs.
#include "expect.h"

namespace normkit::test {
namespace {

// The loss whose gradient the backward computes: sum(dy * y) + sum(dresidual_out * h).
double loss(const Case& c, const Inputs& in) {
  const Outputs out = forward(c, in);
  double sum = 0;
  for (int64_t i = 0; i < out.y.size(); ++i) sum += in.dy.get(i) * out.y.get(i);
  for (int64_t i = 0; i < out.residual_out.size(); ++i) sum += in.dresidual_out.get(i) * out.residual_out.get(i);
  return sum;
}

void expect_gradient(const Case& c, const Inputs& in, Buffer Inputs::* operand, const Buffer& gradient) {
  constexpr double step = 1e-5;
  for (int64_t i = 0; i < (in.*operand).size(); ++i) {
    Inputs moved = in;
    const double at = (in.*operand).get(i);
    (moved.*operand).set(i, at + step);
    const double above = loss(c, moved);
    (moved.*operand).set(i, at - step);
    const double below = loss(c, moved);
    const double numeric = (above - below) / (2 * step);
    EXPECT_NEAR(gradient.get(i), numeric, 1e-7 * (1 + std::abs(numeric))) << c << " element " << i;
  }
}

std::vector<Case> gradient_cases() {
  std::vector<Case> cases;
  for (Op op : {Op::layer, Op::rms, Op::l2}) {
    const Case base{.op = op, .x = DType::f64, .weight = DType::f64, .bias = DType::f64, .rows = 3, .cols = 7};
    auto add = [&](auto change) {
      Case c = base;
      change(c);
      cases.push_back(c);
    };
    add([](Case&) {});
    add([](Case& c) { c.weight = c.bias = DType::none; });
    add([](Case& c) { c.weight_offset = 1; });
    add([](Case& c) { c.single_weight = true; });
    add([](Case& c) { c.residual = c.residual_out = DType::f64; });
    add([](Case& c) { c.eps = 100; });  // l2_norm: every row is clamped
    add([](Case& c) { c.cols = 2; });
    if (op == Op::l2) continue;
    add([](Case& c) { c.eps = 0.5, c.eps_mode = EpsMode::outside; });
    add([](Case& c) { c.eps = 1e-3, c.eps_mode = EpsMode::clamp; });
    add([](Case& c) { c.eps = 100, c.eps_mode = EpsMode::clamp; });
  }
  return cases;
}

TEST(Gradients, AgreeWithFiniteDifferences) {
  for (const Case& c : gradient_cases()) {
    const Inputs in = make_inputs(c);
    const Outputs out = backward(c, in);
    expect_gradient(c, in, &Inputs::x, out.dx);
    if (in.residual) expect_gradient(c, in, &Inputs::residual, out.dx);
    if (in.weight) expect_gradient(c, in, &Inputs::weight, out.dweight);
    if (in.bias) expect_gradient(c, in, &Inputs::bias, out.dbias);
  }
}

// accumulate adds the sums to what is there, with one rounding.
TEST(Gradients, AccumulateAddsToWhatIsThere) {
  for (const Case& c : all_cases()) {
    if (c.wide) continue;
    const Inputs in = make_inputs(c);
    Outputs exact;  // the sums in f64
    NormGradArgs a = backward_args(c, in, exact);
    exact.dweight = Buffer(DType::f64, exact.dweight.size()), exact.dbias = Buffer(DType::f64, exact.dbias.size());
    a.dweight = view(exact.dweight, {c.weight_size()}), a.dbias = view(exact.dbias, {c.weight_size()});
    call(c.op, a);

    Outputs out;
    a = backward_args(c, in, out);
    a.accumulate = true;
    out.dweight.fill(3);
    out.dbias.fill(-100);
    call(c.op, a);
    for (int64_t i = 0; i < c.weight_size(); ++i) {
      ASSERT_EQ(out.dweight.get(i), round_to(out.dweight.dtype(), 3 + exact.dweight.get(i))) << c << " element " << i;
      ASSERT_EQ(out.dbias.get(i), round_to(out.dbias.dtype(), -100 + exact.dbias.get(i))) << c << " element " << i;
    }
  }
}

// The types of the gradients do not have to be those of the operands.
TEST(Gradients, MixedTypes) {
  for (DType x : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Case c{.op = Op::layer, .x = x, .weight = x, .rows = 70, .cols = 100};
    const Inputs in = make_inputs(c);
    const Reference ref = reference(c, in);
    for (DType grad : {x, DType::f32, DType::f64}) {
      Outputs out;
      NormGradArgs a = backward_args(c, in, out);
      out.dweight = Buffer(grad, c.cols), out.dbias = Buffer(grad, c.cols);
      a.dweight = view(out.dweight, {c.cols}), a.dbias = view(out.dbias, {c.cols});
      if (grad != DType::f64) out.dx = Buffer(grad, c.rows * c.cols), a.dx = view(out.dx, {c.rows, c.cols});
      call(c.op, a);
      EXPECT_TRUE(measure(out.dx, ref.dx, compute_type(x)).passes()) << dtype_name(x) << " " << dtype_name(grad);
      EXPECT_TRUE(measure(out.dweight, ref.dweight, compute_type(x)).passes())
          << dtype_name(x) << " " << dtype_name(grad);
      EXPECT_TRUE(measure(out.dbias, ref.dbias, compute_type(x)).passes()) << dtype_name(x) << " " << dtype_name(grad);
    }
  }
}

// The gradients of a weight per element, where the weight is one element, are summed over all elements.
TEST(Gradients, SingleWeight) {
  for (Op op : {Op::layer, Op::rms, Op::l2}) {
    Case c{.op = op, .weight = DType::f32, .rows = 150, .cols = 300, .single_weight = true};
    const Inputs in = make_inputs(c);
    const Outputs out = expect_within_tolerance(c, in);
    EXPECT_EQ(out.dweight.size(), 1);
    // A gradient per element is allowed as well.
    Buffer each(DType::f64, c.cols);
    Outputs other;
    NormGradArgs a = backward_args(c, in, other);
    a.dweight = view(each, {c.cols});
    call(op, a);
    double sum = 0;
    for (int64_t i = 0; i < c.cols; ++i) sum += each.get(i);
    EXPECT_EQ(out.dweight.get(0), static_cast<float>(sum));
  }
}

// From residual_out instead of x and residual: the same gradients, since h is what was stored.
TEST(Gradients, FromTheStoredSum) {
  for (const Case& c : all_cases()) {
    if (c.residual != c.x || c.residual_out != c.x || c.residual_stats != ResidualStats::rounded) continue;
    const Inputs in = make_inputs(c);
    const Outputs all = run(c, in);
    for (int threads : {1, 2}) {
      Outputs out;
      NormGradArgs a = backward_args(c, in, out);
      a.x = view(all.residual_out, {c.rows, c.cols});
      a.residual = {};
      call(c.op, a, {threads});
      out.y = all.y, out.residual_out = all.residual_out, out.mean = all.mean, out.rstd = all.rstd;
      ASSERT_EQ(difference(out, all), "") << c;
    }
  }
}

}  // namespace
}  // namespace normkit::test
