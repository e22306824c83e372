// The channel norms: every case of their table against the f64 reference, and the same bits however it is run.
#include "channels.h"

#include <gtest/gtest.h>

namespace normkit::test {
namespace {

void expect_passes(const ChannelCase& c, const char* what, const Buffer& got, const Expected& expected, DType compute) {
  const Measure m = measure(got, expected, compute);
  EXPECT_TRUE(m.passes()) << c << ": " << what << "[" << m.worst << "] is " << got.get(m.worst) << ", expected "
                          << static_cast<double>(expected.value[static_cast<size_t>(m.worst)]) << ": " << m.share
                          << " times the bound";
}

TEST(Channels, WithinTheTolerance) {
  for (const ChannelCase& c : channel_cases()) {
    const ChannelInputs in = make_inputs(c);
    const ChannelOutputs out = run(c, in);
    const ChannelReference ref = reference(c, in);
    const DType compute = compute_type(c.x);
    expect_passes(c, "y", out.y, ref.y, compute);
    expect_passes(c, "dx", out.dx, ref.dx, compute);
    expect_passes(c, "dweight", out.dweight, ref.dweight, compute);
    expect_passes(c, "dbias", out.dbias, ref.dbias, compute);
  }
}

TEST(Channels, HaveTheBitsOfTheContract) {
  for (const ChannelCase& c : channel_cases()) {
    if (c.op == ChannelOp::instance && !c.training) continue;  // batch_norm's, see below
    const ChannelInputs in = make_inputs(c);
    const ChannelOutputs got = run(c, in);
    EXPECT_EQ(difference(got, channel_model(c, in, got)), "") << c;
  }
}

// By running statistics instance_norm is batch_norm.
TEST(Channels, RunningInstanceNormHasTheBitsOfBatchNorm) {
  for (ChannelCase c : channel_cases()) {
    if (c.op != ChannelOp::instance || c.training) continue;
    const ChannelInputs in = make_inputs(c);
    PlacedChannels x(c, in.x, c.memory), dy(c, in.dy, c.memory);
    const auto results = [&](ChannelOp op) {
      PlacedChannels y(c, c.y_type(), c.memory), dx(c, c.x, c.memory);
      ChannelOutputs out;
      out.running_mean = in.running_mean, out.running_var = in.running_var;
      out.dweight = Buffer(DType::f64, c.c), out.dbias = Buffer(DType::f64, c.c);
      const int axis = c.last ? -1 : 1;
      const View mean = view(out.running_mean, {c.c}), var = view(out.running_var, {c.c});
      call(op, {.x = x.view(),
                .weight = view(in.weight, {c.c}),
                .bias = view(in.bias, {c.c}),
                .y = y.view(),
                .running_mean = mean,
                .running_var = var,
                .training = false,
                .channel_axis = axis});
      call(op, {.dy = dy.view(),
                .x = x.view(),
                .weight = view(in.weight, {c.c}),
                .running_mean = mean,
                .running_var = var,
                .dx = dx.view(),
                .dweight = view(out.dweight, {c.c}),
                .dbias = view(out.dbias, {c.c}),
                .training = false,
                .channel_axis = axis});
      out.y = y.contents(), out.dx = dx.contents();
      return out;
    };
    EXPECT_EQ(difference(results(ChannelOp::instance), results(ChannelOp::batch)), "") << c;
  }
}

TEST(Channels, SavedAndRunningStatistics) {
  for (const ChannelCase& c : channel_cases()) {
    const ChannelInputs in = make_inputs(c);
    const ChannelOutputs out = run(c, in);
    if (!c.training) {
      EXPECT_EQ(out.running_mean, in.running_mean) << c;
      EXPECT_EQ(out.running_var, in.running_var) << c;
      continue;
    }
    const ChannelReference ref = reference(c, in);
    const double u = unit_roundoff(compute_type(c.x));
    for (int64_t i = 0; i < c.sets(); ++i) {
      const size_t k = static_cast<size_t>(i);
      const double rstd = static_cast<double>(ref.rstd[k]), mean = static_cast<double>(ref.mean[k]);
      EXPECT_LE(std::abs(out.rstd.get(i) - rstd), 16 * u * rstd) << c << " set " << i;
      EXPECT_LE(std::abs(out.mean.get(i) - mean), std::abs(mean) * 0x1p-50 + 16 * u * ref.deviation[k])
          << c << " set " << i;
    }
    for (size_t i = 0; i < ref.running_mean.size(); ++i) {
      const int64_t k = static_cast<int64_t>(i);
      EXPECT_NEAR(out.running_mean.get(k), ref.running_mean[i],
                  16 * u * (std::abs(ref.running_mean[i]) + std::sqrt(ref.running_var[i])))
          << c;
      if (std::isinf(ref.running_var[i]) || std::isinf(ref.running_mean[i])) continue;
      EXPECT_NEAR(out.running_var.get(k), ref.running_var[i], 32 * u * ref.running_var[i]) << c;
    }
  }
}

// Statistics that the forward saved in f64 give the bits of computed ones where they can be held.
TEST(Channels, SavedStatisticsServeTheBackward) {
  for (const ChannelCase& c : channel_cases()) {
    if (!c.training || c.x == DType::f64) continue;  // in f64 the mean has more digits than one number holds
    const ChannelInputs in = make_inputs(c);
    EXPECT_EQ(difference(run(c, in), run(c, in, {.saved = true})), "") << c;
  }
}

TEST(Channels, SameBitsHoweverItIsRun) {
  for (const ChannelCase& c : channel_cases()) {
    const ChannelInputs in = make_inputs(c);
    const ChannelOutputs plain = run(c, in);
    for (int threads : {2, 3, 8})
      ASSERT_EQ(difference(plain, run(c, in, {.threads = threads})), "") << c << " " << threads;
    ASSERT_EQ(difference(plain, run(c, in, {.in_place = true})), "") << c;
    ASSERT_EQ(difference(plain, run(c, in, {.shift = 1})), "") << c;
    ASSERT_EQ(difference(plain, run(c, in, {.others_dense = true})), "") << c;
  }
}

// Calls that are worth several threads, and larger than a thread's share of the cache.
TEST(Channels, LargeCallsHaveTheSameBitsOnAnyNumberOfThreads) {
  for (ChannelOp op : {ChannelOp::batch, ChannelOp::instance, ChannelOp::group})
    for (DType x : {DType::f32, DType::bf16})
      for (Memory memory : {Memory::planes, Memory::columns})
        for (int64_t n : {1, 5}) {
          const ChannelCase c{
              .op = op, .x = x, .weight = x, .bias = x, .n = n, .c = 12, .s = 4200, .groups = 3, .memory = memory};
          const ChannelInputs in = make_inputs(c);
          const ChannelOutputs plain = run(c, in);
          for (int threads : {2, 3, 7})
            ASSERT_EQ(difference(plain, run(c, in, {.threads = threads})), "") << c << " " << threads;
        }
}

// More blocks of positions than a team keeps the sums of.
TEST(Channels, WavesOfBlocksHaveTheSameBitsOnAnyNumberOfThreads) {
  const ChannelCase c{.x = DType::bf16, .weight = DType::f32, .n = 9, .c = 1024, .s = 260, .memory = Memory::columns};
  const ChannelInputs in = make_inputs(c);
  const ChannelOutputs plain = run(c, in);
  for (int threads : {2, 3}) ASSERT_EQ(difference(plain, run(c, in, {.threads = threads})), "") << threads;
}

}  // namespace
}  // namespace normkit::test
