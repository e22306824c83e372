// Every mistake in a call of a channel norm is an exception that says what is wrong, before a byte is written.
#include <gtest/gtest.h>

#include <functional>

#include "channels.h"

namespace normkit::test {
namespace {

constexpr int64_t kN = 2, kC = 6, kS = 5, kGroups = 3;

// Right arguments for an operation, and everything that they point to.
template <class Args>
struct Call {
  ChannelOp op;
  Buffer x{DType::f32, kN * kC * kS}, y = x, dy = x, dx = x;
  Buffer weight{DType::f32, kC}, bias = weight, dweight = weight, dbias = weight;
  Buffer mean{DType::f64, kN* kC}, rstd = mean, running_mean{DType::f64, kC}, running_var = running_mean;
  Args args{};

  explicit Call(ChannelOp o) : op(o) {
    for (Buffer* b : {&x, &dy, &weight, &bias, &running_mean, &running_var}) b->fill(1);
    args.x = view(x, {kN, kC, kS});
    args.weight = view(weight, {kC});
    args.mean = sets(mean);
    args.rstd = sets(rstd);
    args.groups = op == ChannelOp::group ? kGroups : 0;
    if constexpr (std::is_same_v<Args, ChannelNormArgs>) {
      args.y = view(y, {kN, kC, kS});
      args.bias = view(bias, {kC});
      if (op == ChannelOp::group) return;
      args.running_mean = view(running_mean, {kC});
      args.running_var = view(running_var, {kC});
    } else {
      args.dy = view(dy, {kN, kC, kS});
      args.dx = view(dx, {kN, kC, kS});
      args.dweight = view(dweight, {kC});
      args.dbias = view(dbias, {kC});
      mean.fill(0), rstd.fill(1);
    }
  }
  Call(const Call&) = delete;
  View sets(Buffer& b) {
    if (op == ChannelOp::batch) return view(b, {kC});
    return view(b, {kN, op == ChannelOp::group ? kGroups : kC});
  }
  std::vector<Buffer> bytes() const {
    return {x, y, dy, dx, weight, bias, dweight, dbias, mean, rstd, running_mean, running_var};
  }
};
using Forward = Call<ChannelNormArgs>;
using Backward = Call<ChannelNormGradArgs>;

// Makes the mistake and expects the message, with nothing written.
template <class C>
void expect_error(ChannelOp op, const std::string& message, const std::function<void(C&)>& mistake, int threads = 1) {
  C c(op);
  mistake(c);
  const std::vector<Buffer> before = c.bytes();
  try {
    call(op, c.args, {threads});
    ADD_FAILURE() << "no error, expected: " << message;
  } catch (const std::invalid_argument& e) {
    EXPECT_EQ(std::string(e.what()), message);
  }
  EXPECT_EQ(before, c.bytes()) << message;
}
void forward(const std::string& message, const std::function<void(Forward&)>& mistake,
             ChannelOp op = ChannelOp::batch) {
  expect_error<Forward>(op, message, mistake);
}
void backward(const std::string& message, const std::function<void(Backward&)>& mistake,
              ChannelOp op = ChannelOp::batch) {
  expect_error<Backward>(op, message, mistake);
}
constexpr ChannelOp batch = ChannelOp::batch, instance = ChannelOp::instance, group = ChannelOp::group;

TEST(ChannelErrors, TheArgumentsAreRightBeforeTheMistake) {
  for (ChannelOp op : {batch, instance, group}) {
    Forward f(op);
    EXPECT_NO_THROW(call(op, f.args));
    Backward b(op);
    EXPECT_NO_THROW(call(op, b.args));
  }
}

TEST(ChannelErrors, Shapes) {
  forward("batch_norm: x is absent, expected a view", [](auto& c) { c.args.x = {}; });
  forward("batch_norm: y is absent, expected a view", [](auto& c) { c.args.y = {}; });
  forward(
      "instance_norm: x has rank 1, expected 2 or more (samples, channels, positions)",
      [](auto& c) { c.args.x = view(c.x, {kN * kC * kS}); }, instance);
  forward("batch_norm: channel_axis is 2, expected 1 (channels first) or -1 (channels last)",
          [](auto& c) { c.args.channel_axis = 2; });
  forward("batch_norm: y has the shape (2, 5, 6), expected (2, 6, 5) (that of x)",
          [](auto& c) { c.args.y = view(c.y, {kN, kS, kC}); });
  forward("batch_norm: weight has the shape (5), expected (6) (the channels of x)",
          [](auto& c) { c.args.weight = view(c.weight, {5}); });
  forward("batch_norm: bias has the shape (1, 6), expected (6) (the channels of x)",
          [](auto& c) { c.args.bias = view(c.bias, {1, kC}); });
  forward("batch_norm: weight has the shape (6), expected (5) (the channels of x)",
          [](auto& c) { c.args.channel_axis = -1; });
  forward("batch_norm: mean has the shape (2, 6), expected (6) (the channels of x)",
          [](auto& c) { c.args.mean = view(c.mean, {kN, kC}); });
  forward(
      "instance_norm: rstd has the shape (6), expected (2, 6) (samples, channels)",
      [](auto& c) { c.args.rstd = view(c.rstd, {kC}); }, instance);
  forward(
      "group_norm: mean has the shape (2, 6), expected (2, 3) (samples, groups)",
      [](auto& c) { c.args.mean = view(c.mean, {kN, kC}); }, group);
  forward("batch_norm: running_var has the shape (5), expected (6) (the channels of x)",
          [](auto& c) { c.args.running_var = view(c.running_var, {5}); });
  backward("batch_norm_backward: dy has the shape (2, 5, 6), expected (2, 6, 5) (that of x)",
           [](auto& c) { c.args.dy = view(c.dy, {kN, kS, kC}); });
  backward(
      "group_norm_backward: dbias has the shape (3), expected (6) (the channels of x)",
      [](auto& c) { c.args.dbias = view(c.dbias, {3}); }, group);
  for (ChannelOp op : {instance, group})
    forward(
        std::string(op == group ? "group" : "instance") +
            "_norm: x has the shape (2, 6, 0), expected at least one position per channel",
        [](auto& c) { c.args.x = view(c.x, {kN, kC, 0}), c.args.y = view(c.y, {kN, kC, 0}); }, op);
}

TEST(ChannelErrors, Types) {
  forward("batch_norm: weight has dtype f64, expected x's or f32",
          [](auto& c) { c.args.weight = view(c.running_mean, {kC}); });
  forward("batch_norm: y has dtype f64, expected f32", [](auto& c) {
    c.y = Buffer(DType::f64, kN * kC * kS);
    c.y.fill(0);
    c.args.y = view(c.y, {kN, kC, kS});
  });
  forward("batch_norm: running_mean has dtype bf16, expected f32 or f64", [](auto& c) {
    c.running_mean = Buffer(DType::bf16, kC);
    c.args.running_mean = view(c.running_mean, {kC});
  });
  backward("batch_norm_backward: rstd has dtype f16, expected f32 or f64", [](auto& c) {
    c.rstd = Buffer(DType::f16, kC);
    c.args.rstd = view(c.rstd, {kC});
  });
  Forward c(batch);
  c.args.weight = view(c.running_mean, {kC});
  EXPECT_THROW(batch_norm(c.args), dtype_error);
}

TEST(ChannelErrors, Options) {
  for (double momentum : {-0.1, 1.5, std::numeric_limits<double>::quiet_NaN()})
    forward("batch_norm: momentum is " + std::to_string(momentum) + ", expected a number from 0 to 1",
            [=](auto& c) { c.args.momentum = momentum; });
  forward("batch_norm: eps is -1e-05, expected a finite number of 0 or more", [](auto& c) { c.args.eps = -1e-5; });
  forward(
      "group_norm: eps is nan, expected a finite number of 0 or more",
      [](auto& c) { c.args.eps = std::numeric_limits<double>::quiet_NaN(); }, group);
  forward("batch_norm: running_update is 7, expected torch or keras",
          [](auto& c) { c.args.running_update = static_cast<RunningUpdate>(7); });
  forward("batch_norm: groups is not used, expected the default 0", [](auto& c) { c.args.groups = 2; });
  for (int64_t groups : {0, -2})
    forward(
        "group_norm: groups is " + std::to_string(groups) + ", expected 1 or more",
        [=](auto& c) { c.args.groups = groups; }, group);
  forward(
      "group_norm: groups is 4, expected a divisor of the 6 channels of x", [](auto& c) { c.args.groups = 4; }, group);
  expect_error<Forward>(batch, "batch_norm: threads is 0, expected 1 or more", [](auto&) {}, 0);
  expect_error<Backward>(group, "group_norm_backward: threads is -1, expected 1 or more", [](auto&) {}, -1);
}

TEST(ChannelErrors, RunningStatistics) {
  forward("batch_norm: running_var is absent, expected running_mean and running_var, or neither",
          [](auto& c) { c.args.running_var = {}; });
  forward(
      "instance_norm: running_mean is absent, expected running_mean and running_var, or neither",
      [](auto& c) { c.args.running_mean = {}; }, instance);
  forward("batch_norm: running_mean is absent, expected running statistics when training is false", [](auto& c) {
    c.args.running_mean = c.args.running_var = {};
    c.args.training = false;
  });
  forward("batch_norm: mean is not used when training is false, expected an absent view",
          [](auto& c) { c.args.training = false; });
  forward(
      "group_norm: running statistics are not used, expected absent views",
      [](auto& c) { c.args.running_mean = c.args.running_var = view(c.running_mean, {kC}); }, group);
  forward(
      "group_norm: training is false, expected true: there are no running statistics",
      [](auto& c) { c.args.training = false; }, group);
  backward("batch_norm_backward: running_mean is not used when training is true, expected an absent view", [](auto& c) {
    c.args.running_mean = view(c.running_mean, {kC}), c.args.running_var = view(c.running_var, {kC});
  });
  backward("batch_norm_backward: mean is not used when training is false, expected an absent view", [](auto& c) {
    c.args.running_mean = view(c.running_mean, {kC}), c.args.running_var = view(c.running_var, {kC});
    c.args.training = false;
  });
}

TEST(ChannelErrors, Outputs) {
  backward("batch_norm_backward: dx, dweight and dbias are absent, expected at least one",
           [](auto& c) { c.args.dx = c.args.dweight = c.args.dbias = {}; });
  backward("batch_norm_backward: accumulate needs dweight or dbias, expected false without them", [](auto& c) {
    c.args.dweight = c.args.dbias = {};
    c.args.accumulate = true;
  });
  backward("batch_norm_backward: rstd is absent, expected mean and rstd, or neither",
           [](auto& c) { c.args.rstd = {}; });
  forward("batch_norm: y overlaps x in memory, expected separate memory or exactly the same view", [](auto& c) {
    c.args.x = view(c.x, {1, kC, kS});
    c.args.y = strided<View>(c.x, 1, {1, kC, kS}, {kC * kS, kS, 1});
  });
  forward("batch_norm: running_var overlaps running_mean in memory, expected separate memory",
          [](auto& c) { c.args.running_var = c.args.running_mean; });
  forward("batch_norm: rstd overlaps mean in memory, expected separate memory",
          [](auto& c) { c.args.rstd = c.args.mean; });
  backward("batch_norm_backward: dbias overlaps dweight in memory, expected separate memory",
           [](auto& c) { c.args.dbias = c.args.dweight; });
  forward("batch_norm: y has strides under which its elements overlap, expected distinct elements",
          [](auto& c) { c.args.y = strided<View>(c.y, 0, {kN, kC, kS}, {kC * kS, 0, 1}); });
}

}  // namespace
}  // namespace normkit::test
