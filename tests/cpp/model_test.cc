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
