// The edges of the channel norms: nothing to normalize, one value, values that are not numbers, and every way to describe
// the same memory.
#include <gtest/gtest.h>

#include <limits>

#include "channels.h"
#include "expect.h"
#include "float_state.h"

namespace normkit::test {
namespace {

constexpr DType f32 = DType::f32, f64 = DType::f64;
constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

Buffer filled(DType t, int64_t size, double value) {
  Buffer b(t, size);
  b.fill(value);
  return b;
}
Buffer random_values(DType t, int64_t size, double mean = 0) {
  Random random(7);
  Buffer b(t, size);
  for (int64_t i = 0; i < size; ++i) b.set(i, mean + random.normal());
  return b;
}

TEST(ChannelEdges, AnEmptyBatchLeavesRunningStatisticsAndGivesZeroGradients) {
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance, ChannelOp::group}) {
    Buffer none(f32, 0), running = filled(f64, 4, 3), running_var = filled(f64, 4, 5);
    Buffer mean = filled(f64, op == ChannelOp::batch ? 4 : 0, 9), dweight = filled(f32, 4, 9),
           dbias = filled(f32, 4, 9);
    const int64_t groups = op == ChannelOp::group ? 2 : 0;
    ChannelNormArgs a{.x = view(none, {0, 4, 3}), .y = view(none, {0, 4, 3}), .groups = groups};
    if (op == ChannelOp::batch) a.mean = view(mean, {4});
    if (op != ChannelOp::group) a.running_mean = view(running, {4}), a.running_var = view(running_var, {4});
    call(op, a);
    expect_all(mean, 0);
    expect_all(running, 3);
    expect_all(running_var, 5);
    ChannelNormGradArgs g{.dy = view(none, {0, 4, 3}),
                          .x = view(none, {0, 4, 3}),
                          .dx = view(none, {0, 4, 3}),
                          .dweight = view(dweight, {4}),
                          .dbias = view(dbias, {4}),
                          .groups = groups};
    call(op, g);
    expect_all(dweight, 0);
    dbias.fill(9);
    g.accumulate = true;
    call(op, g);
    expect_all(dbias, 9);
  }
}

TEST(ChannelEdges, OneValuePerSetGivesTheBias) {
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance, ChannelOp::group}) {
    for (double eps : {0.0, 1e-5}) {
      const ChannelCase c{.op = op,
                          .weight = f32,
                          .bias = f32,
                          .n = op == ChannelOp::batch ? 1 : 3,
                          .c = 5,
                          .s = 1,
                          .groups = 5,
                          .eps = eps};
      const ChannelInputs in = make_inputs(c);
      const ChannelOutputs out = run(c, in);
      for (int64_t n = 0; n < c.n; ++n)
        for (int64_t i = 0; i < c.c; ++i) {
          const auto [set, k] = c.set_of(n, i, 0);
          EXPECT_EQ(out.y.get(set + k), in.bias.get(i));
        }
      for (int64_t i = 0; i < out.dx.size(); ++i)  // two terms that cancel, each rounded
        EXPECT_LE(std::abs(out.dx.get(i)), 0x1p-23 * out.rstd.get(0) * std::abs(in.dy.get(i)));
      expect_all(out.dweight, 0);
      if (op != ChannelOp::group) expect_finite(out.running_var);
    }
  }
}

TEST(ChannelEdges, ConstantChannelsAreExactlyTheBias) {
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance, ChannelOp::group})
    for (DType x : {f32, f64, DType::bf16, DType::f16})
      for (Memory memory : {Memory::planes, Memory::columns})
        for (double eps : {0.0, 1e-5}) {
          const ChannelCase c{.op = op, .x = x, .n = 2, .c = 6, .s = 49, .memory = memory, .eps = eps};
          ChannelInputs in = make_inputs(c);
          in.x.fill(0.1);
          const ChannelOutputs out = run(c, in);
          expect_all(out.y, 0);
          if (eps == 0) expect_all(out.rstd, 0);
          if (eps == 0) expect_all(out.dx, 0);
          for (int64_t i = 0; i < out.running_var.size(); ++i)
            EXPECT_EQ(out.running_var.get(i), (1 - kMomentum) * in.running_var.get(i) + kMomentum * 0) << c;
        }
}

TEST(ChannelEdges, NanAndInfinityStayInTheirSet) {
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance, ChannelOp::group})
    for (Memory memory : {Memory::planes, Memory::columns})
      for (double bad : {kNan, kInf, -kInf}) {
        const ChannelCase c{.op = op, .n = 2, .c = 6, .s = 70, .memory = memory};
        const ChannelInputs good = make_inputs(c);
        ChannelInputs in = good;
        in.x.set(c.set_size() + 3, bad);  // in set 1
        const ChannelOutputs out = run(c, in), clean = run(c, good);
        for (int64_t i = 0; i < out.y.size(); ++i) {
          if (i / c.set_size() == 1) {
            EXPECT_TRUE(std::isnan(out.y.get(i))) << c << " " << i;
          } else {
            EXPECT_EQ(out.y.get(i), clean.y.get(i)) << c << " " << i;
            EXPECT_EQ(out.dx.get(i), clean.dx.get(i)) << c << " " << i;
          }
        }
      }
}

// x as [n, c, s] in the given shape and strides, against the plain call.
struct Described {
  std::vector<int64_t> shape, strides;
  int axis;
};
TEST(ChannelEdges, TheSameMemoryHasTheSameBitsHoweverItIsDescribed) {
  const int64_t n = 3, c = 8, s = 30;
  const Buffer x = random_values(f32, n * c * s, 2);
  const auto normalized = [&](ChannelOp op, const Described& d) {
    Buffer y = filled(f32, n * c * s, 0);
    const ConstView in(x.data(), f32, d.shape, d.strides);
    const View out(y.data(), f32, d.shape, d.strides);
    call(op, {.x = in, .y = out, .channel_axis = d.axis, .groups = op == ChannelOp::group ? 4 : 0});
    return y;
  };
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance, ChannelOp::group}) {
    const Buffer planes = normalized(op, {{n, c, s}, {c * s, s, 1}, 1});
    EXPECT_EQ(planes, normalized(op, {{n, c, 5, 6}, {c * s, s, 6, 1}, 1}));
    EXPECT_EQ(planes, normalized(op, {{n, c, 5, 3, 2}, {c * s, s, 6, 2, 1}, 1}));
    EXPECT_EQ(planes, normalized(op, {{n, c, 1, s, 1}, {c * s, s, 999, 1, 77}, 1}));
    EXPECT_EQ(planes, normalized(op, {{n, s, c}, {c * s, 1, s}, -1}));
    const Buffer columns = normalized(op, {{n, s, c}, {c * s, c, 1}, -1});
    EXPECT_EQ(columns, normalized(op, {{n, 5, 6, c}, {c * s, 6 * c, c, 1}, -1}));
    EXPECT_EQ(columns, normalized(op, {{n, c, 5, 6}, {c * s, 1, 6 * c, c}, 1}));
  }
  // Without positions, [n, c] is [n, c, 1].
  EXPECT_EQ(normalized(ChannelOp::batch, {{n * s, c}, {c, 1}, 1}),
            normalized(ChannelOp::batch, {{n * s, c, 1}, {c, 1, 1}, 1}));
}

TEST(ChannelEdges, BroadcastAndReversedInputs) {
  const int64_t n = 2, c = 4, s = 6;
  const Buffer x = random_values(f32, n * c * s);
  const auto normalized = [&](ConstView in) {
    Buffer y(f32, n * c * s);
    batch_norm({.x = in, .y = view(y, {n, c, s})});
    return y;
  };
  const auto copied = [&](const std::function<int64_t(int64_t, int64_t, int64_t)>& from) {
    Buffer copy(f32, n * c * s);
    for (int64_t i = 0; i < n * c * s; ++i) copy.set(i, x.get(from(i / (c * s), i / s % c, i % s)));
    return normalized(view(std::as_const(copy), {n, c, s}));
  };
  EXPECT_EQ(normalized(strided<ConstView>(x, 0, {n, c, s}, {0, s, 1})),
            copied([&](int64_t, int64_t k, int64_t p) { return k * s + p; }));
  EXPECT_EQ(normalized(strided<ConstView>(x, 0, {n, c, s}, {c * s, s, 0})),
            copied([&](int64_t i, int64_t k, int64_t) { return i * c * s + k * s; }));
  EXPECT_EQ(normalized(strided<ConstView>(x, n * c * s - 1, {n, c, s}, {-c * s, -s, -1})),
            copied([&](int64_t i, int64_t k, int64_t p) { return n * c * s - 1 - i * c * s - k * s - p; }));
}

// Samples of instance_norm and group_norm know nothing of the batch.
TEST(ChannelEdges, SamplesAreIndependent) {
  for (ChannelOp op : {ChannelOp::instance, ChannelOp::group})
    for (Memory memory : {Memory::planes, Memory::columns}) {
      const ChannelCase c{.op = op, .weight = f32, .n = 5, .c = 12, .s = 61, .groups = 3, .memory = memory};
      const ChannelInputs in = make_inputs(c);
      const ChannelOutputs all = run(c, in);
      ChannelCase one = c;
      one.n = 1;
      const int64_t sample = c.c * c.s;
      for (int64_t n = 0; n < c.n; ++n) {
        ChannelInputs part = in;
        part.x = part.dy = Buffer(c.x, sample);
        for (int64_t i = 0; i < sample; ++i)
          part.x.set(i, in.x.get(n * sample + i)), part.dy.set(i, in.dy.get(n * sample + i));
        const ChannelOutputs alone = run(one, part);
        for (int64_t i = 0; i < sample; ++i) {
          ASSERT_EQ(alone.y.get(i), all.y.get(n * sample + i)) << c;
          ASSERT_EQ(alone.dx.get(i), all.dx.get(n * sample + i)) << c;
        }
      }
    }
}

TEST(ChannelEdges, GradientsByThemselvesHaveTheBitsOfAllTogether) {
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance, ChannelOp::group})
    for (Memory memory : {Memory::planes, Memory::columns}) {
      const ChannelCase c{.op = op, .weight = f32, .n = 2, .c = 6, .s = 50, .memory = memory};
      const ChannelInputs in = make_inputs(c);
      const ChannelOutputs all = run(c, in);
      PlacedChannels x(c, in.x, memory), dy(c, in.dy, memory), dx(c, f32, memory);
      Buffer dweight(f32, c.c), dbias(f32, c.c);
      const int64_t groups = op == ChannelOp::group ? c.groups : 0;
      const ChannelNormGradArgs base{
          .dy = dy.view(), .x = x.view(), .weight = view(in.weight, {c.c}), .groups = groups};
      ChannelNormGradArgs a = base;
      a.dx = dx.view();
      call(op, a);
      EXPECT_EQ(dx.contents(), all.dx);
      a = base, a.dweight = view(dweight, {c.c});
      call(op, a);
      EXPECT_EQ(dweight, all.dweight);
      a = base, a.dbias = view(dbias, {c.c});
      call(op, a);
      EXPECT_EQ(dbias, all.dbias);
      a.accumulate = true;
      call(op, a);
      for (int64_t i = 0; i < c.c; ++i)
        EXPECT_NEAR(dbias.get(i), 2 * all.dbias.get(i), 1e-6 * std::abs(all.dbias.get(i)));
    }
}

// torch: the weight of the new, unbiased; Keras and ONNX: the weight of the old, biased. A weight of 0 is exact.
TEST(ChannelEdges, RunningStatisticsMoveByTheNamedConvention) {
  const std::vector<float> x = {1, 2, 3}, zero = {0}, one = {1};
  const auto moved = [&](RunningUpdate update, double momentum, double mean0, double var0) {
    std::vector<float> y(3);
    std::vector<double> mean = {mean0}, var = {var0};
    batch_norm({.x = ConstView(x, {3, 1}),
                .y = View(y, {3, 1}),
                .running_mean = mean,
                .running_var = var,
                .momentum = momentum,
                .running_update = update});
    return std::pair(mean[0], var[0]);
  };
  using enum RunningUpdate;
  EXPECT_EQ(moved(torch, 1, 0, 1), std::pair(2.0, 1.0));
  EXPECT_EQ(moved(keras, 0, 0, 1), std::pair(2.0, 2.0 / 3));
  EXPECT_EQ(moved(torch, 0, 0.3, 0.7), std::pair(0.3, 0.7));
  EXPECT_EQ(moved(keras, 1, 0.3, 0.7), std::pair(0.3, 0.7));
  EXPECT_EQ(moved(torch, 1, kNan, kInf), std::pair(2.0, 1.0));
  const auto [mean, var] = moved(torch, 0.1, 0, 1);
  EXPECT_DOUBLE_EQ(mean, 0.2);
  EXPECT_DOUBLE_EQ(var, 1.0);
  EXPECT_DOUBLE_EQ(moved(keras, 0.9, 0, 1).second, 0.9 + 0.1 * 2 / 3);
}

TEST(ChannelEdges, InstanceNormMovesRunningStatisticsByTheMeanOfItsSamples) {
  const std::vector<float> x = {1, 3, 10, 14};  // two samples of one channel: means 2 and 12, variances 1 and 4
  std::vector<float> y(4);
  std::vector<double> mean = {0}, var = {0};
  instance_norm(
      {.x = ConstView(x, {2, 1, 2}), .y = View(y, {2, 1, 2}), .running_mean = mean, .running_var = var, .momentum = 1});
  EXPECT_EQ(mean[0], 7);
  EXPECT_EQ(var[0], 5);  // unbiased: 2 and 8
}

TEST(ChannelEdges, FloatingPointStateOfTheCallerIsNotTrusted) {
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance, ChannelOp::group})
    for (Memory memory : {Memory::planes, Memory::columns})
      for (bool training : {true, false}) {
        if (op == ChannelOp::group && !training) continue;
        const ChannelCase c{.op = op,
                            .weight = f32,
                            .bias = f32,
                            .n = 4,
                            .c = 16,
                            .s = 3000,
                            .memory = memory,
                            .eps = 1e-7,
                            .training = training};
        ChannelInputs in = make_inputs(c);
        for (int64_t i = 0; i < 40; ++i) in.x.set(i, half_smallest(f32) * static_cast<double>(2 * i));
        in.weight.set(1, 0x1p-130);
        in.bias.set(2, 0x1p-140);
        const ChannelOutputs expected = run(c, in);
        for (int rounding : {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO}) {
          ChannelOutputs out;
          EXPECT_TRUE(under_float_state(rounding, [&] { out = run(c, in, {.threads = 4}); }));
          EXPECT_EQ(difference(out, expected), "") << c << " rounding mode " << rounding;
        }
      }
}

}  // namespace
}  // namespace normkit::test
