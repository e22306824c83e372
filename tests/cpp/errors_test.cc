// Every mistake of a caller throws std::invalid_argument that names operation, operand, what was given and what was
// expected, and nothing is written.
#include <gtest/gtest.h>

#include <functional>

#include "run.h"

namespace normkit::test {
namespace {

// A call with every operand: x f32 [4, 6].
struct World {
  Case c{.op = Op::layer,
         .weight = DType::f32,
         .bias = DType::f32,
         .residual = DType::f32,
         .residual_out = DType::f32,
         .rows = 4,
         .cols = 6};
  Inputs in = make_inputs(c);
  Outputs out;
  NormArgs f;
  NormGradArgs b;
  Exec exec;
  Buffer spare{DType::f32, 64}, half{DType::f16, 64}, wide{DType::f64, 64};

  explicit World(Op op) {
    c.op = op;
    f = forward_args(c, in, out);
    b = backward_args(c, in, out);
    for (Buffer* o : outputs()) o->fill(7);
  }
  std::vector<Buffer*> outputs() {
    std::vector<Buffer*> list;
    for (Buffer* o : {&out.y, &out.residual_out, &out.mean, &out.rstd, &out.dx, &out.dweight, &out.dbias})
      if (*o) list.push_back(o);
    return list;
  }
};

struct Mistake {
  const char* name;
  std::function<void(World&)> make;
  std::vector<const char*> says;  // after "operation: "
};

// Runs the call with the mistake and checks the message and that no output has changed.
void expect_refused(Op op, bool backward, const Mistake& m) {
  World w(op);
  m.make(w);
  std::vector<Buffer> before;
  for (Buffer* o : w.outputs()) before.push_back(*o);
  std::string message;
  try {
    backward ? call(op, w.b, w.exec) : call(op, w.f, w.exec);
  } catch (const std::invalid_argument& e) {
    message = e.what();
  }
  const std::string start = std::string(function_name(op, backward)) + ": ";
  ASSERT_NE(message, "") << function_name(op, backward) << " took: " << m.name;
  EXPECT_TRUE(message.starts_with(start)) << m.name << ": " << message;
  for (const char* text : m.says) EXPECT_NE(message.find(text), std::string::npos) << m.name << ": " << message;
  const std::vector<Buffer*> after = w.outputs();
  for (size_t i = 0; i < after.size(); ++i) EXPECT_EQ(*after[i], before[i]) << m.name << " wrote something";
}

// Mistakes in fields that both directions have.
template <class Args>
std::vector<Mistake> common_mistakes(Args World::* a) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  return {
      {"no x", [=](World& w) { (w.*a).x = {}; }, {"x is absent", "expected"}},
      {"null x", [=](World& w) { (w.*a).x.data = nullptr; }, {"x has null data", "expected 24 elements"}},
      {"weight too short",
       [=](World& w) { (w.*a).weight = view(w.in.weight, {5}); },
       {"weight has 5 elements", "expected 6", "x"}},
      {"weight of another shape",
       [=](World& w) { (w.*a).weight = view(w.in.weight, {2, 3}); },
       {"weight has the shape (2, 3)", "expected (6)"}},
      {"weight of another type",
       [=](World& w) { (w.*a).weight = view(w.wide, {6}); },
       {"weight has dtype f64", "expected f32"}},
      {"weight of a 16-bit type beside f32",
       [=](World& w) { (w.*a).weight = view(w.half, {6}); },
       {"weight has dtype f16", "expected f32"}},
      {"null weight", [=](World& w) { (w.*a).weight.data = nullptr; }, {"weight has null data", "expected 6 elements"}},
      {"residual of another shape",
       [=](World& w) { (w.*a).residual = view(w.in.residual, {3, 6}); },
       {"residual has the shape (3, 6)", "expected (4, 6)"}},
      {"residual of another rank",
       [=](World& w) { (w.*a).residual = view(w.in.residual, {24}); },
       {"residual has the shape (24)", "expected (4, 6)"}},
      {"residual of another type",
       [=](World& w) { (w.*a).residual = view(w.wide, {4, 6}); },
       {"residual has dtype f64", "expected f32"}},
      {"axis too large", [=](World& w) { (w.*a).axis = 2; }, {"axis is 2", "expected -2 to 1"}},
      {"axis too small", [=](World& w) { (w.*a).axis = -3; }, {"axis is -3", "expected -2 to 1"}},
      {"negative eps", [=](World& w) { (w.*a).eps = -1e-9; }, {"eps is -1e-09", "expected", "0 or more"}},
      {"NaN eps", [=](World& w) { (w.*a).eps = nan; }, {"eps is nan", "expected"}},
      {"infinite eps", [=](World& w) { (w.*a).eps = inf; }, {"eps is inf", "expected"}},
      {"NaN offset", [=](World& w) { (w.*a).weight_offset = nan; }, {"weight_offset is nan", "expected"}},
      {"offset without a weight",
       [=](World& w) { (w.*a).weight_offset = 1, (w.*a).weight = {}; },
       {"weight_offset", "weight", "expected 0"}},
      {"unrounded without a residual",
       [=](World& w) {
         (w.*a).residual_stats = ResidualStats::unrounded, (w.*a).residual = {};
         w.f.residual_out = {}, w.b.dresidual_out = {};
       },
       {"residual_stats", "residual"}},
      {"unknown rounding",
       [=](World& w) { (w.*a).rounding = static_cast<Rounding>(9); },
       {"rounding is 9", "expected"}},
      {"unknown eps_mode", [=](World& w) { (w.*a).eps_mode = static_cast<EpsMode>(9); }, {"eps_mode is", "expected"}},
      {"unknown residual_stats",
       [=](World& w) { (w.*a).residual_stats = static_cast<ResidualStats>(9); },
       {"residual_stats is 9", "expected"}},
      {"unknown dtype", [=](World& w) { (w.*a).x.dtype = static_cast<DType>(77); }, {"x has the unknown dtype 77"}},
      {"rank too large", [=](World& w) { (w.*a).x.rank = 9; }, {"x has rank 9", "expected 0 to 8"}},
      {"negative size", [=](World& w) { (w.*a).x.shape[0] = -4; }, {"x has the shape (-4, 6)", "expected"}},
      {"sizes that overflow",
       [=](World& w) { (w.*a).x.shape[0] = int64_t{1} << 40, (w.*a).x.shape[1] = int64_t{1} << 40; },
       {"x has the shape (1099511627776, 1099511627776)"}},
      {"misaligned x", [=](World& w) { (w.*a).x.data = w.in.x.data() + 1; }, {"x has data that is not aligned", "f32"}},
      {"no dtype", [=](World& w) { (w.*a).weight.dtype = DType::none; }, {"weight has data but no dtype"}},
      {"empty normalized axis",
       [=](World& w) { (w.*a).x = view(w.in.x, {4, 0}); },
       {"x has the shape (4, 0)", "expected at least one element"}},
      {"no threads", [=](World& w) { w.exec.threads = 0; }, {"threads is 0", "expected 1 or more"}},
      {"negative threads", [=](World& w) { w.exec.threads = -2; }, {"threads is -2", "expected 1 or more"}},
  };
}

std::vector<Mistake> forward_mistakes() {
  return {
      {"no y", [](World& w) { w.f.y = {}; }, {"y is absent"}},
      {"null y", [](World& w) { w.f.y.data = nullptr; }, {"y has null data"}},
      {"y of another shape",
       [](World& w) { w.f.y = view(w.out.y, {6, 4}); },
       {"y has the shape (6, 4)", "expected (4, 6)"}},
      {"y of another type", [](World& w) { w.f.y = view(w.wide, {4, 6}); }, {"y has dtype f64", "expected f32"}},
      {"bias too long",
       [](World& w) { w.f.bias = view(std::as_const(w.spare), {7}); },
       {"bias has 7 elements", "expected 6"}},
      {"bias of another type", [](World& w) { w.f.bias = view(w.half, {6}); }, {"bias has dtype f16", "expected f32"}},
      {"residual_out without residual", [](World& w) { w.f.residual = {}; }, {"residual_out", "residual"}},
      {"residual_out of another shape",
       [](World& w) { w.f.residual_out = view(w.out.residual_out, {2, 12}); },
       {"residual_out has the shape (2, 12)", "expected (4, 6)"}},
      {"residual_out of another type",
       [](World& w) { w.f.residual_out = view(w.half, {4, 6}); },
       {"residual_out has dtype f16", "expected f32"}},
      {"rstd of another shape",
       [](World& w) { w.f.rstd = view(w.out.rstd, {3}); },
       {"rstd has the shape (3)", "expected (4)"}},
      {"rstd of another type", [](World& w) { w.f.rstd = view(w.half, {4}); }, {"rstd has dtype f16", "f32", "f64"}},
      {"y overlaps x by a row",
       [](World& w) {
         w.f.x = view(std::as_const(w.spare), {4, 6}), w.f.y = strided<View>(w.spare, 6, {4, 6}, {6, 1});
       },
       {"y overlaps x", "expected"}},
      {"y is x with other strides",
       [](World& w) {
         w.f.x = view(std::as_const(w.spare), {4, 6}), w.f.y = strided<View>(w.spare, 0, {4, 6}, {1, 4});
       },
       {"y overlaps x", "expected"}},
      {"y over the weight",
       [](World& w) { w.f.weight = ConstView(w.out.y.data(), DType::f32, std::array{int64_t{6}}); },
       {"y overlaps weight", "expected"}},
      {"y and residual_out the same", [](World& w) { w.f.residual_out = w.f.y; }, {"overlaps", "expected"}},
      {"y with stride 0",
       [](World& w) { w.f.y = strided<View>(w.spare, 0, {4, 6}, {0, 1}); },
       {"y has strides", "distinct"}},
      {"rstd over y", [](World& w) { w.f.rstd = strided<View>(w.out.y, 0, {4}, {1}); }, {"overlaps", "expected"}},
  };
}

std::vector<Mistake> backward_mistakes() {
  const auto saved = [](World& w, bool mean, bool rstd) {
    if (mean) w.b.mean = view(std::as_const(w.wide), {4});
    if (rstd) w.b.rstd = strided<ConstView>(std::as_const(w.wide), 8, {4}, {1});
  };
  return {
      {"no dy", [](World& w) { w.b.dy = {}; }, {"dy is absent"}},
      {"dy of another shape",
       [](World& w) { w.b.dy = view(w.in.dy, {24}); },
       {"dy has the shape (24)", "expected (4, 6)"}},
      {"dy of another type", [](World& w) { w.b.dy = view(w.wide, {4, 6}); }, {"dy has dtype f64", "expected f32"}},
      {"nothing asked for",
       [](World& w) { w.b.dx = w.b.dweight = w.b.dbias = {}, w.b.dresidual_out = {}; },
       {"dx", "dweight", "dbias"}},
      {"dx of another shape",
       [](World& w) { w.b.dx = view(w.out.dx, {6, 4}); },
       {"dx has the shape (6, 4)", "expected (4, 6)"}},
      {"dx of another type", [](World& w) { w.b.dx = view(w.wide, {4, 6}); }, {"dx has dtype f64", "expected f32"}},
      {"dweight too short",
       [](World& w) { w.b.dweight = view(w.out.dweight, {5}); },
       {"dweight has 5 elements", "expected 6"}},
      {"dweight of another type", [](World& w) { w.b.dweight = view(w.half, {6}); }, {"dweight has dtype f16"}},
      {"dbias too long", [](World& w) { w.b.dbias = view(w.spare, {12}); }, {"dbias has 12 elements", "expected 6"}},
      {"dresidual_out of another shape",
       [](World& w) { w.b.dresidual_out = view(w.in.dresidual_out, {4, 5}); },
       {"dresidual_out has the shape (4, 5)", "expected (4, 6)"}},
      {"dresidual_out without dx", [](World& w) { w.b.dx = {}; }, {"dresidual_out", "dx"}},
      {"dx overlaps x by an element",
       [](World& w) {
         w.b.x = view(std::as_const(w.spare), {4, 6}), w.b.dx = strided<View>(w.spare, 1, {4, 6}, {6, 1});
       },
       {"dx overlaps x", "expected"}},
      {"dweight over dbias", [](World& w) { w.b.dbias = w.b.dweight; }, {"overlaps", "expected"}},
      {"dweight over dy", [](World& w) { w.b.dweight = strided<View>(w.in.dy, 0, {6}, {1}); }, {"dweight overlaps dy"}},
      {"rstd of another shape",
       [=](World& w) { saved(w, w.c.op == Op::layer, true), w.b.rstd.shape[0] = 5; },
       {"rstd has the shape (5)", "expected (4)"}},
      {"rstd of another type",
       [=](World& w) { saved(w, w.c.op == Op::layer, true), w.b.rstd = view(std::as_const(w.half), {4}); },
       {"rstd has dtype f16", "f32", "f64"}},
  };
}

class Errors : public testing::TestWithParam<Op> {};
TEST_P(Errors, Forward) {
  for (const Mistake& m : common_mistakes(&World::f)) expect_refused(GetParam(), false, m);
  for (const Mistake& m : forward_mistakes()) expect_refused(GetParam(), false, m);
}
TEST_P(Errors, Backward) {
  for (const Mistake& m : common_mistakes(&World::b)) expect_refused(GetParam(), true, m);
  for (const Mistake& m : backward_mistakes()) expect_refused(GetParam(), true, m);
}
INSTANTIATE_TEST_SUITE_P(Errors, Errors, testing::Values(Op::layer, Op::rms, Op::l2),
                         [](const auto& info) { return std::string(function_name(info.param, false)); });

// Options that an operation does not use must stay at their defaults.
TEST(Errors, UnusedOptions) {
  for (Op op : {Op::rms, Op::l2}) {
    expect_refused(
        op, false,
        {"mean", [](World& w) { w.f.mean = strided<View>(w.wide, 0, {4}, {1}); }, {"mean is not used", "expected"}});
    expect_refused(op, true,
                   {"mean",
                    [](World& w) {
                      w.b.mean = strided<ConstView>(std::as_const(w.wide), 0, {4}, {1});
                      w.b.rstd = strided<ConstView>(std::as_const(w.wide), 4, {4}, {1});
                    },
                    {"mean is not used", "expected"}});
  }
  expect_refused(Op::l2, false, {"outside", [](World& w) { w.f.eps_mode = EpsMode::outside; }, {"eps_mode"}});
  expect_refused(Op::l2, true, {"outside", [](World& w) { w.b.eps_mode = EpsMode::outside; }, {"eps_mode"}});
  // One of the two statistics is not enough for layer_norm.
  expect_refused(Op::layer, true,
                 {"rstd alone",
                  [](World& w) { w.b.rstd = strided<ConstView>(std::as_const(w.wide), 0, {4}, {1}); },
                  {"mean", "rstd"}});
  expect_refused(Op::layer, true,
                 {"mean alone",
                  [](World& w) { w.b.mean = strided<ConstView>(std::as_const(w.wide), 0, {4}, {1}); },
                  {"mean", "rstd"}});
}

TEST(Errors, ScalarX) {
  float x = 1, y = 7;
  EXPECT_THROW(layer_norm({.x = ConstView(&x, {}), .y = View(&y, {})}), std::invalid_argument);
  EXPECT_EQ(y, 7);
}

// What looks like an overlap but is none must be allowed: columns of one matrix as x and y.
TEST(Errors, NeighboursAreNoOverlap) {
  Buffer memory(DType::f32, 4 * 12), expected(DType::f32, 24);
  for (int64_t i = 0; i < 48; ++i) memory.set(i, static_cast<double>(i % 7));
  const Buffer original = memory;
  rms_norm({.x = strided<ConstView>(original, 0, {4, 6}, {12, 1}), .y = view(expected, {4, 6})});
  rms_norm({.x = strided<ConstView>(std::as_const(memory), 0, {4, 6}, {12, 1}),
            .y = strided<View>(memory, 6, {4, 6}, {12, 1})});
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(memory.get(r * 12 + 6 + i), expected.get(r * 6 + i));
      EXPECT_EQ(memory.get(r * 12 + i), original.get(r * 12 + i));
    }
}

}  // namespace
}  // namespace normkit::test
