// Faults that users of other libraries reported in public: numerics and types. Each test is named for what it checks
// and names the report.
#include "expect.h"

namespace normkit::test {
namespace {

constexpr DType f32 = DType::f32, f64 = DType::f64, kBf16 = DType::bf16, kF16 = DType::f16;

// microsoft/onnxruntime#28463
TEST(FaultsNumerics, ShortRampFarFromZeroIsFinite) {
  const Case c{.op = Op::layer, .rows = 2, .cols = 4};
  const Outputs out = expect_within_tolerance(c, with_x(c, {40000, 40001, 40002, 40003, 80000, 80001, 80002, 80003}));
  expect_values(out.y, {-1.3416354, -0.4472118, 0.4472118, 1.3416354, -1.3416354, -0.4472118, 0.4472118, 1.3416354},
                1e-6);
}

// microsoft/onnxruntime#21935, jax-ml/jax#30426, keras-team/keras#18795, BVLC/caffe#3963, pytorch/pytorch#141727
TEST(FaultsNumerics, ConstantRowIsExactlyZero) {
  for (double value : {1234.0, -11.000001907348633, 1000.1, 100.0, 1.0, 1e-5}) {
    for (int64_t cols : {3, 7, 9, 10, 256, 5000}) {
      for (DType type : {f32, f64, kBf16, kF16}) {
        const Case c{.op = Op::layer, .x = type, .rows = 2, .cols = cols};
        const Outputs out = expect_within_tolerance(c, with_x(c, [=](int64_t, int64_t) { return value; }));
        expect_all(out.y, 0);
      }
    }
  }
}

// pytorch/pytorch#40302
TEST(FaultsNumerics, SmallSpreadOnAnOffsetKeepsItsVariance) {
  const Case c{.op = Op::layer, .rows = 1, .cols = 1024};
  const Inputs in =
      with_x(c, [](int64_t, int64_t i) { return 100 + 0.01 * static_cast<double>((37 * i) % 101 - 50) / 50; });
  const Outputs out = expect_within_tolerance(c, in);
  const double variance = 1 / (out.rstd.get(0) * out.rstd.get(0)) - c.eps;
  EXPECT_NEAR(variance, 3.403132e-5, 3.403132e-5 * 1e-5);
}

// pytorch/pytorch#81090
TEST(FaultsNumerics, ConsecutiveIntegersDoNotDrift) {
  const std::vector<int64_t> starts = {0, 1000, 50000, 100000, 199999};
  const Case c{.op = Op::layer, .rows = 5, .cols = 32};
  const Outputs out = expect_within_tolerance(
      c, with_x(c, [&](int64_t r, int64_t i) { return static_cast<double>(32 * starts[static_cast<size_t>(r)] + i); }));
  for (int64_t r = 0; r < 5; ++r) {
    EXPECT_NEAR(out.y.get(r * 32), -1.6787440, 1e-6);
    EXPECT_NEAR(out.y.get(r * 32 + 31), 1.6787440, 1e-6);
  }
}

// pytorch/pytorch#108072: x*rstd - mean*rstd leaves a residue.
TEST(FaultsNumerics, NoResidueOnShortConstantRows) {
  const Case c{.op = Op::layer, .rows = 2, .cols = 2, .eps = 1e-6};
  expect_all(forward(c, with_x(c, {2, 2, 14, 14})).y, 0);
}

// pytorch/pytorch#162489
TEST(FaultsNumerics, SquaredDeviationsThatOverflow) {
  const Case c{.op = Op::layer, .rows = 1, .cols = 4};
  const Outputs out = expect_within_tolerance(c, with_x(c, {1e30, -1e30, 2e30, -2e30}));
  expect_values(out.y, {0.6324555, -0.6324555, 1.2649111, -1.2649111}, 1e-6);
}

// microsoft/onnxruntime#32574
TEST(FaultsNumerics, NormsWhoseSquaresLeaveTheRange) {
  for (double size : {1e30, 1e-30, 3e38}) {
    const Case c{.op = Op::l2, .rows = 1, .cols = 2, .eps = 0};
    expect_values(expect_within_tolerance(c, with_x(c, {size, -size})).y, {0.70710678, -0.70710678}, 1e-6);
  }
  const Case c{.op = Op::l2, .rows = 1, .cols = 3, .eps = 1e-12};
  const Outputs out = forward(c, with_x(c, {1, double(NAN), 2}));
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(out.y.get(i)));
}

// pytorch/pytorch#193006
TEST(FaultsNumerics, LargeNormHasUnitVectorAndGradient) {
  const Case c{.op = Op::l2, .rows = 1, .cols = 3, .eps = 1e-12};
  Inputs in = with_x(c, {1e20, 1, 1});
  in.dy.set(0, 0), in.dy.set(1, 1), in.dy.set(2, -2);
  const Outputs out = expect_within_tolerance(c, in);
  expect_values(out.y, {1, 1e-20, 1e-20}, 1e-6);
  EXPECT_NEAR(out.dx.get(1), 1e-20, 1e-26);
  EXPECT_NEAR(out.dx.get(2), -2e-20, 2e-26);
}

// openvinotoolkit/openvino#35887
TEST(FaultsNumerics, ZeroRowOfANormIsZero) {
  const Case c{.op = Op::l2, .rows = 4, .cols = 2, .eps = 1e-12};
  const Outputs out = forward(c, with_x(c, {5, 12, 0, 0, -3, 4, 0, 0}));
  expect_values(out.y, {.3846154, .9230769, 0, 0, -.6, .8, 0, 0}, 1e-6);
  const Case without_eps{.op = Op::l2, .rows = 4, .cols = 2, .eps = 0};
  expect_values(forward(without_eps, with_x(c, {5, 12, 0, 0, -3, 4, 0, 0})).y,
                {.3846154, .9230769, 0, 0, -.6, .8, 0, 0}, 1e-6);
}

// Eventual-Inc/Daft#7474: a running mean that no longer moves.
TEST(FaultsNumerics, VarianceOfDoublesAround1e15) {
  const Case c{.op = Op::layer, .x = f64, .rows = 1, .cols = 4096, .eps = 0};
  Random random(9);
  const Inputs in = with_x(c, [&](int64_t, int64_t) { return 1e15 + random.normal(); });
  expect_within_tolerance(c, in);
}

// microsoft/onnxruntime#31973
TEST(FaultsNumerics, LargeBaseSmallSpread) {
  for (int64_t cols : {256, 1024})
    for (const auto& [base, spread] : {std::pair{1e6, 1e-3}, std::pair{1e7, 1e-2}, std::pair{1e6, 0.5}}) {
      const Case c{.op = Op::layer, .rows = 2, .cols = cols};
      Random random(11);
      const Outputs out = expect_within_tolerance(
          c, with_x(c, [&, b = base, s = spread](int64_t, int64_t) { return b + s * random.normal(); }));
      expect_finite(out.y);
    }
}

// pytorch/pytorch#54293
TEST(FaultsNumerics, LongRowOfUniformNumbers) {
  const Case c{.op = Op::layer, .rows = 1, .cols = 1 << 20};
  Random random(13);
  expect_within_tolerance(c, with_x(c, [&](int64_t, int64_t) { return random.uniform(); }));
}

// tensorflow/tensorflow#33027: eps dominates small data by definition.
TEST(FaultsNumerics, SmallDataFollowsTheFormulaWithEps) {
  const Case c{.op = Op::layer, .rows = 1, .cols = 2, .eps = 1e-3};
  const double expected = 1e-3 / std::sqrt(1e-6 + 1e-3);
  expect_values(expect_within_tolerance(c, with_x(c, {1e-3, -1e-3})).y, {expected, -expected}, 1e-6);
}

// pytorch/pytorch#41527, pytorch/pytorch#192017: eps rounded to half precision is 0.
TEST(FaultsTypes, ZerosWithAnEpsBelowHalfPrecision) {
  for (Op op : {Op::layer, Op::rms, Op::l2})
    for (DType type : {kF16, kBf16, f32, f64}) {
      const Case c{.op = op, .x = type, .rows = 1, .cols = 10, .dist = Dist::zeros, .eps = 1e-12};
      expect_all(forward(c, make_inputs(c)).y, 0);
    }
}

// microsoft/onnxruntime#29034
TEST(FaultsTypes, SumOfSquaresBeyondHalfPrecision) {
  for (double value : {8000.0, 60000.0}) {
    const Case c{.op = Op::rms, .x = kF16, .weight = kF16, .residual = kF16, .rows = 1, .cols = 512};
    Inputs in = with_x(c, [=](int64_t, int64_t) { return value; });
    in.weight.fill(1), in.residual.fill(0);
    expect_all(forward(c, in).y, 1);
  }
}

// microsoft/onnxruntime#31626, ml-explore/mlx#4228, microsoft/onnxruntime#10079
TEST(FaultsTypes, DeviationsWhoseSquaresOverflowHalfPrecision) {
  const Case c{.op = Op::layer, .x = kF16, .rows = 2, .cols = 64};
  const Outputs out =
      expect_within_tolerance(c, with_x(c, [](int64_t r, int64_t i) { return (i % 2 ? 1 : -1) * (r ? 795 : 256); }));
  for (int64_t i = 0; i < out.y.size(); ++i) EXPECT_EQ(out.y.get(i), i % 2 ? 1 : -1);
}

// jingyaogong/minimind#301
TEST(FaultsTypes, SquaresThatUnderflowHalfPrecision) {
  const Case c{.op = Op::rms, .x = kF16, .rows = 1, .cols = 64, .eps = 1e-12};
  const Outputs out = expect_within_tolerance(c, with_x(c, [](int64_t, int64_t) { return 1e-4; }));
  for (int64_t i = 0; i < 64; ++i) EXPECT_NEAR(out.y.get(i), 0.99995, 1e-3);
}

// pytorch/pytorch#77507: moments accumulated in bf16 stick at 256.
TEST(FaultsTypes, MomentsOfBfloat16AreThoseOfF32) {
  const Case c{.op = Op::layer, .x = kBf16, .rows = 2, .cols = 5120};
  Random random(17);
  const Inputs in = with_x(c, [&](int64_t r, int64_t) { return r ? 1 + random.normal() : 1; });
  const Outputs out = expect_within_tolerance(c, in);
  EXPECT_EQ(out.mean.get(0), 1);
  Case wide = c;
  wide.x = f32;
  Inputs widened = make_inputs(wide);
  for (int64_t i = 0; i < in.x.size(); ++i) widened.x.set(i, in.x.get(i));
  const Outputs f32_out = forward(wide, widened);
  EXPECT_EQ(out.mean, f32_out.mean);
  EXPECT_EQ(out.rstd, f32_out.rstd);
}

// pytorch/pytorch#109188, pytorch/pytorch#66707: one rounding of the f32 result.
TEST(FaultsTypes, SixteenBitResultsAreTheRoundedF32Results) {
  for (DType type : {kBf16, kF16})
    for (double eps : {0.0, 1e-5}) {
      const Case narrow{.op = Op::layer, .x = type, .rows = 5, .cols = 128, .eps = eps};
      Case wide = narrow;
      wide.y = f32;
      const Inputs in = make_inputs(narrow);
      const Outputs rounded = forward(narrow, in), full = forward(wide, in);
      for (int64_t i = 0; i < full.y.size(); ++i) ASSERT_EQ(rounded.y.get(i), round_to(type, full.y.get(i)));
    }
}

// linkedin/Liger-Kernel#950: dweight summed in bf16 sticks at 256.
TEST(FaultsTypes, WeightGradientOfManyBfloat16Rows) {
  const Case c{.op = Op::rms, .x = kBf16, .weight = kBf16, .rows = 4096, .cols = 8, .eps = 0};
  Inputs in = with_x(c, [](int64_t, int64_t) { return 2; });
  in.dy.fill(1);
  expect_all(backward(c, in).dweight, 4096);
  expect_all(backward(c, in).dbias, 4096);
}

// vllm-project/vllm#29810: 1 + w in bf16 loses the 1.
TEST(FaultsTypes, OffsetIsAddedInF32) {
  const Case c{
      .op = Op::rms, .x = kBf16, .weight = kBf16, .y = f32, .rows = 1, .cols = 64, .eps = 0, .weight_offset = 1};
  Inputs in = with_x(c, [](int64_t, int64_t) { return 4; });
  in.weight.fill(15.8125);
  expect_all(forward(c, in).y, 16.8125);
  Case narrow = c;
  narrow.y = DType::none;
  expect_all(forward(narrow, in).y, round_to(kBf16, 16.8125));
}

// vllm-project/vllm#48324, openxla/xla#10875, huggingface/transformers#30236: f32 parameters beside 16-bit x.
TEST(FaultsTypes, F32ParametersBesideSixteenBitX) {
  for (DType type : {kBf16, kF16}) {
    const Case c{.op = Op::rms,
                 .x = type,
                 .weight = f32,
                 .bias = f32,
                 .residual = type,
                 .residual_out = type,
                 .rows = 4,
                 .cols = 300};
    const Outputs out = expect_within_tolerance(c, make_inputs(c));
    EXPECT_EQ(out.y.dtype(), type);
  }
}

// tensorflow/tensorflow#58863, VeriSilicon/TIM-VX#589: eps lost on the way.
TEST(FaultsTypes, EpsIsHonoured) {
  for (Op op : {Op::layer, Op::rms})
    for (double eps : {1e-12, 1e-2, 0.0}) {
      const Case c{.op = op, .rows = 1, .cols = 4, .eps = eps};
      const double expected = 0.1 / std::sqrt(0.01 + eps);
      expect_values(forward(c, with_x(c, {0.1, -0.1, 0.1, -0.1})).y, {expected, -expected, expected, -expected}, 1e-6);
      expect_all(forward(c, with_x(c, {2, 2, 2, 2})).y, op == Op::layer ? 0 : round_to(f32, 2 / std::sqrt(4 + eps)));
    }
}

// jax-ml/jax#442: the square in place of the root.
TEST(FaultsNumerics, DividesByTheRoot) {
  const Case c{.op = Op::layer, .rows = 1, .cols = 2, .eps = 0};
  expect_values(forward(c, with_x(c, {3, 7})).y, {-1, 1});
}

// An outlier at the end of a short row once stood for the missing probes and pulled the shift away from the mean.
TEST(FaultsNumerics, ShortRowsThatEndInAnOutlierAreWithinTheTolerance) {
  for (DType x : {DType::f32, DType::f64}) {
    for (int64_t cols : {7, 9, 12, 16, 33, 63}) {
      const Case c{.op = Op::layer, .x = x, .rows = 500, .cols = cols};
      Inputs in = make_inputs(c);
      for (int64_t r = 0; r < c.rows; ++r) {
        in.x.set(r * cols + cols - 1, 4 + 0.01 * static_cast<double>(r));
        in.dy.set(r * cols + cols - 1, -10);
      }
      expect_within_tolerance(c, in);
    }
  }
}

// rstd below the normal numbers of f32, which no rescue had noticed.
TEST(FaultsNumerics, HugeEpsKeepsTheGradientsDigits) {
  for (Op op : {Op::layer, Op::rms, Op::l2}) {
    for (EpsMode mode : {EpsMode::inside, EpsMode::outside, EpsMode::clamp}) {
      if (op == Op::l2 && mode != EpsMode::inside) continue;
      const bool inside = op != Op::l2 && mode == EpsMode::inside;
      const Case c{.op = op, .rows = 3, .cols = 70, .eps = inside ? 1e88 : 1e44, .eps_mode = mode};
      Inputs in = make_inputs(c);
      for (int64_t i = 0; i < in.dy.size(); ++i) in.dy.set(i, in.dy.get(i) * 1e6);
      expect_within_tolerance(c, in);
    }
  }
}

}  // namespace
}  // namespace normkit::test
