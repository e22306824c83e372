// The library against the scalar model of the contract, bit by bit.
#include "model.h"

#include <gtest/gtest.h>

namespace normkit::test {
namespace {

TEST(Model, ForwardHasTheBitsOfTheContract) {
  for (const Case& c : all_cases()) {
    const Inputs in = make_inputs(c);
    const Outputs got = forward(c, in);
    EXPECT_EQ(difference(got, model_forward(c, in, got)), "") << c;
  }
}

TEST(Model, BackwardHasTheBitsOfTheContract) {
  for (const Case& c : all_cases()) {
    const Inputs in = make_inputs(c);
    const Outputs got = backward(c, in);
    EXPECT_EQ(difference(got, model_backward(c, in, got)), "") << c;
  }
}

// Divisors at both ends of f64, where rstd or the derivative of its root leave the range.
TEST(Model, ExtremeEpsHasTheBitsOfTheContract) {
  for (Op op : {Op::layer, Op::rms}) {
    for (DType x : {DType::f32, DType::f64}) {
      for (Dist dist : {Dist::constant, Dist::zeros, Dist::tiny, Dist::huge}) {
        for (EpsMode mode : {EpsMode::inside, EpsMode::outside, EpsMode::clamp}) {
          for (double eps : {0.0, 0x1p-1074, 0x1p-1050, 0x1p-160, 0x1p1000}) {
            const Case c{.op = op, .x = x, .rows = 2, .cols = 70, .dist = dist, .eps = eps, .eps_mode = mode};
            const Inputs in = make_inputs(c);
            const Outputs y = forward(c, in), dx = backward(c, in);
            EXPECT_EQ(difference(y, model_forward(c, in, y)), "") << c;
            EXPECT_EQ(difference(dx, model_backward(c, in, dx)), "") << c;
          }
        }
      }
    }
  }
}

// The rescue is reached where it must be and not taken by ordinary data.
TEST(Model, TheTableReachesTheRescue) {
  for (const Case& c : all_cases()) {
    // f16 cannot hold values whose squares leave the range of f32.
    const bool extreme = (c.dist == Dist::tiny || c.dist == Dist::huge) && c.x != DType::f16;
    const bool ordinary = c.dist == Dist::normal || c.dist == Dist::shifted || c.dist == Dist::ramp;
    if (ordinary && c.cols > 1) {
      EXPECT_FALSE(model_rescues(c, make_inputs(c))) << c;
    }
    if (extreme && c.eps == 0) {
      EXPECT_TRUE(model_rescues(c, make_inputs(c))) << c;
    }
    if (c.op == Op::layer && c.dist == Dist::head) {
      EXPECT_TRUE(model_rescues(c, make_inputs(c))) << c;
    }
  }
}

}  // namespace
}  // namespace normkit::test
