// Faults that users of other libraries met in BatchNorm, GroupNorm and InstanceNorm, each with the right value.
#include <gtest/gtest.h>

#include <functional>

#include "channels.h"
#include "expect.h"

namespace normkit::test {
namespace {

constexpr DType f32 = DType::f32, f64 = DType::f64, bf16_t = DType::bf16, f16_t = DType::f16;
constexpr ChannelOp kOps[] = {ChannelOp::batch, ChannelOp::instance, ChannelOp::group};

// [n, c, s] of type t by element.
struct Data {
  int64_t n, c, s;
  Buffer x;
  Data(DType t, int64_t samples, int64_t channels, int64_t positions, const std::function<double(int64_t)>& value)
      : n(samples), c(channels), s(positions), x(t, n * c * s) {
    for (int64_t i = 0; i < x.size(); ++i) x.set(i, value(i));
  }
  ConstView view() const { return test::view(x, {n, c, s}); }
};
// The same values, each channel's a run (planes) or each position's (columns).
Buffer normalize(ChannelOp op, const Data& d, double eps = 1e-5, int64_t groups = 1, bool columns = false,
                 DType y_type = DType::none) {
  const DType t = y_type == DType::none ? d.x.dtype() : y_type;
  Buffer in(d.x.dtype(), d.x.size()), memory(t, d.x.size()), y(t, d.x.size());
  const int64_t steps[] = {d.c * d.s, columns ? 1 : d.s, columns ? d.c : 1};
  const auto each = [&](const auto& f) {
    for (int64_t i = 0; i < d.x.size(); ++i)
      f(i, i / (d.c * d.s) * steps[0] + i / d.s % d.c * steps[1] + i % d.s * steps[2]);
  };
  each([&](int64_t i, int64_t at) { in.set(at, d.x.get(i)); });
  call(op, {.x = strided<ConstView>(in, 0, {d.n, d.c, d.s}, {steps[0], steps[1], steps[2]}),
            .y = strided<View>(memory, 0, {d.n, d.c, d.s}, {steps[0], steps[1], steps[2]}),
            .eps = eps,
            .groups = op == ChannelOp::group ? groups : 0});
  each([&](int64_t i, int64_t at) { y.set(i, memory.get(at)); });
  return y;
}

TEST(ChannelFaults, NearConstantImagesAreZeroAndTheirVarianceIsNotNegative) {  // B007, B010, B013, B016, B137
  for (ChannelOp op : kOps)
    for (bool columns : {false, true})
      for (double value : {1234.0, 1000.1, 100.0, 0.1, -11.000001907348633})
        for (auto [n, c, s] : {std::array<int64_t, 3>{8, 1, 4096}, {1, 32, 2145}, {1, 1, 9}, {1, 1, 7}, {6, 10, 12}}) {
          const Data d(f32, n, c, s, [=](int64_t) { return value; });
          expect_all(normalize(op, d, 1e-5, c == 32 ? 32 : 1, columns), 0);
          std::vector<double> mean(static_cast<size_t>(c)), var(mean.size(), 1);
          Buffer y(f32, n * c * s);
          batch_norm({.x = d.view(), .y = view(y, {n, c, s}), .running_mean = mean, .running_var = var, .momentum = 1});
          for (double v : var) EXPECT_EQ(v, 0);
        }
}

TEST(ChannelFaults, Bf16ChannelsFarFromZeroComeOutWithDeviationOne) {  // B014
  Random random(1);
  const Data d(bf16_t, 2, 64, 1024, [&](int64_t i) { return (i / 1024 % 2 ? 5 : -5) + 0.1 * random.normal(); });
  for (bool columns : {false, true}) {
    const Buffer y = normalize(ChannelOp::batch, d, 1e-5, 1, columns);
    for (int64_t c = 0; c < 64; ++c) {
      double square = 0;
      for (int64_t n = 0; n < 2; ++n)
        for (int64_t s = 0; s < 1024; ++s) square += std::pow(y.get((n * 64 + c) * 1024 + s), 2);
      EXPECT_NEAR(std::sqrt(square / 2048), 1, 0.01) << c;
    }
  }
}

TEST(ChannelFaults, OneElementPerGroupIsExactlyZero) {  // B019, B064
  Random random(2);
  expect_all(normalize(ChannelOp::group, Data(f32, 7, 27, 1, [&](int64_t) { return random.normal(); }), 1e-5, 27), 0);
  expect_all(normalize(ChannelOp::group, Data(f32, 1, 10, 1, [&](int64_t) { return random.normal(); }), 1e-5, 10), 0);
  for (int64_t n : {1, 2})
    expect_all(normalize(ChannelOp::instance, Data(f32, n, 3, 1, [&](int64_t) { return random.normal(); })), 0);
}

TEST(ChannelFaults, ValuesWhoseSquaresOverflow) {  // B020
  const double values[] = {1e30, -1e30, 2e30, -2e30};
  for (ChannelOp op : kOps)
    for (bool columns : {false, true})
      expect_values(normalize(op, Data(f32, 1, 1, 4, [&](int64_t i) { return values[i]; }), 1e-5, 1, columns),
                    {0.6324555, -0.6324555, 1.2649111, -1.2649111});
}

TEST(ChannelFaults, HalfPrecisionVarianceDoesNotOverflow) {  // B040, B041
  for (double size : {512.0, 256.0})
    for (bool columns : {false, true}) {
      const Data d(f16_t, 1, 2, 64, [=](int64_t i) { return (i + i / 4 + i / 16) % 2 ? size : -size; });
      const Buffer y = normalize(ChannelOp::instance, d, 1e-5, 1, columns);
      for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::abs(y.get(i)), 1);
    }
}

TEST(ChannelFaults, RunningVarianceBeyondHalfPrecisionIsKept) {  // B044
  Buffer x = Buffer(f16_t, 1), y(f16_t, 1);
  x.set(0, 300);
  std::vector<float> mean = {0}, var = {70000};
  batch_norm({.x = view(x, {1, 1}), .y = view(y, {1, 1}), .running_mean = mean, .running_var = var, .training = false});
  EXPECT_NEAR(y.get(0), 1.1338934, 1.1338934 * 0x1p-11);
}

TEST(ChannelFaults, MomentsOfBf16AreNotSummedInBf16) {  // B047
  const Data ones(bf16_t, 1, 20, 256, [](int64_t) { return 1.0; });
  expect_all(normalize(ChannelOp::group, ones), 0);
  Random random(3);
  const Data d(bf16_t, 1, 20, 256, [&](int64_t) { return random.normal() + 1; });
  Data wide(f32, 1, 20, 256, [&](int64_t i) { return d.x.get(i); });
  EXPECT_EQ(normalize(ChannelOp::group, d, 1e-5, 1, false, f32), normalize(ChannelOp::group, wide));
}

TEST(ChannelFaults, LongGroupsKeepTheirDigits) {  // B029
  Random random(4);
  const Data d(f32, 1, 4, 1'000'000, [&](int64_t) { return random.uniform(); });
  double mean = 0, square = 0;
  for (int64_t i = 0; i < d.x.size(); ++i) mean += d.x.get(i) / 4e6;
  for (int64_t i = 0; i < d.x.size(); ++i) square += std::pow(d.x.get(i) - mean, 2) / 4e6;
  for (bool columns : {false, true}) {
    const Buffer y = normalize(ChannelOp::group, d, 1e-5, 1, columns);
    for (int64_t i = 0; i < y.size(); i += 997)
      ASSERT_NEAR(y.get(i), (d.x.get(i) - mean) / std::sqrt(square + 1e-5), 1e-5) << i;
  }
}

TEST(ChannelFaults, EpsMattersForSmallDeviationsAsTheFormulaSays) {  // B028
  const Data d(f64, 2, 1, 1, [](int64_t i) { return i ? 1e-3 : -1e-3; });
  expect_values(normalize(ChannelOp::batch, d, 1e-3), {-1e-3 / std::sqrt(1e-6 + 1e-3), 1e-3 / std::sqrt(1e-6 + 1e-3)});
}

TEST(ChannelFaults, ChannelsLastAndContiguousAgree) {  // B073, B074
  Random random(5);
  const Data d(f16_t, 2, 64, 2500, [&](int64_t) { return 1 + random.normal(); });
  const Buffer a = normalize(ChannelOp::batch, d), b = normalize(ChannelOp::batch, d, 1e-5, 1, true);
  for (int64_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a.get(i), b.get(i), 0x1p-10 * std::abs(a.get(i)) + 1e-6) << i;
  for (Memory memory : {Memory::planes, Memory::columns}) {  // the sum of dy is 0 where dy is all ones: so is dweight
    ChannelCase c{.weight = f32, .n = 4, .c = 3, .s = 64, .memory = memory};
    ChannelInputs in = make_inputs(c);
    in.dy.fill(1);
    const ChannelOutputs out = run(c, in);
    for (int64_t i = 0; i < c.c; ++i) EXPECT_NEAR(out.dweight.get(i), 0, 1e-4);
    expect_all(out.dbias, 256);
  }
}

TEST(ChannelFaults, EvaluationHasABackwardOfItsOwn) {  // B106
  for (Memory memory : {Memory::planes, Memory::columns}) {
    const ChannelCase c{.weight = f32, .n = 4, .c = 5, .s = 3, .memory = memory, .training = false};
    ChannelInputs in = make_inputs(c);
    in.dy.fill(1);
    const ChannelOutputs out = run(c, in);
    for (int64_t i = 0; i < out.dx.size(); ++i) {
      const int64_t channel = i / c.set_size();
      const double want = in.weight.get(channel) / std::sqrt(in.running_var.get(channel) + 1e-5);
      EXPECT_NEAR(out.dx.get(i), want, 1e-6 * std::abs(want));
    }
  }
}

TEST(ChannelFaults, MixedTypesHaveTheGradientsOfF32) {  // B112
  for (ChannelOp op : kOps)
    for (Memory memory : {Memory::planes, Memory::columns}) {
      const ChannelCase c{
          .op = op, .x = bf16_t, .weight = f32, .n = 3, .c = 32, .s = 50, .groups = 4, .memory = memory};
      const ChannelInputs in = make_inputs(c);
      const ChannelOutputs out = run(c, in);
      const ChannelReference ref = reference(c, in);
      EXPECT_TRUE(measure(out.dweight, ref.dweight, f32).passes()) << c;
      EXPECT_TRUE(measure(out.dx, ref.dx, f32).passes()) << c;
    }
}

TEST(ChannelFaults, RunningVarianceStaysPositiveOverManyUpdates) {  // B119
  std::vector<float> mean = {0}, var = {1}, y(2);
  for (int step = 0; step < 2000; ++step) {
    const std::vector<float> x = {static_cast<float>(step), static_cast<float>(step)};
    batch_norm(
        {.x = ConstView(x, {2, 1}), .y = View(y, {2, 1}), .running_mean = mean, .running_var = var, .momentum = 0.9});
    ASSERT_GE(var[0], 0);
  }
}

TEST(ChannelFaults, ZeroEpsIsFineWhereTheVarianceIsPositive) {  // B139
  std::vector<float> x = {3}, y = {0}, mean = {1}, var = {4};
  batch_norm({.x = ConstView(x, {1, 1}),
              .y = View(y, {1, 1}),
              .running_mean = mean,
              .running_var = var,
              .eps = 0,
              .training = false});
  EXPECT_EQ(y[0], 1);
}

TEST(ChannelFaults, FreshRunningStatisticsAreNearlyTheIdentity) {  // B124
  std::vector<float> x = {3}, y = {0}, mean = {0}, var = {1};
  batch_norm(
      {.x = ConstView(x, {1, 1}), .y = View(y, {1, 1}), .running_mean = mean, .running_var = var, .training = false});
  EXPECT_NEAR(y[0], 3, 1e-4);
}

}  // namespace
}  // namespace normkit::test
