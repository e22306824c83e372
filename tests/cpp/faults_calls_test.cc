// Faults that users of other libraries reported in public: shapes, strides, gradients and calls. Each test is named for
// what it checks and names the report.
#include "expect.h"

namespace normkit::test {
namespace {

constexpr DType f32 = DType::f32, f64 = DType::f64, kBf16 = DType::bf16, kF16 = DType::f16;

// ModelTC/LightLLM#1467: the second pass ignored the stride of the last dimension.
TEST(FaultsShapes, TransposedXEqualsItsCopy) {
  for (Op op : {Op::layer, Op::rms, Op::l2}) {
    const Case c{.op = op, .weight = f32, .rows = 50, .cols = 70};
    const Inputs in = make_inputs(c);
    const Outputs expected = run(c, in);
    Buffer transposed(f32, c.rows * c.cols);
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t i = 0; i < c.cols; ++i) transposed.set(i * c.rows + r, in.x.get(r * c.cols + i));
    Outputs out;
    NormArgs f = forward_args(c, in, out);
    NormGradArgs b = backward_args(c, in, out);
    f.x = b.x = strided<ConstView>(std::as_const(transposed), 0, {c.rows, c.cols}, {1, c.rows});
    call(op, f);
    call(op, b);
    EXPECT_EQ(difference(out, expected), "");
  }
}

// vllm-project/vllm-xpu-kernels#397, NVIDIA/TensorRT-LLM#14810: one row stride used for all tensors.
TEST(FaultsShapes, EveryTensorHasItsOwnStrides) {
  const Case c{.op = Op::rms, .weight = f32, .residual = f32, .residual_out = f32, .rows = 6, .cols = 32};
  const Inputs in = make_inputs(c);
  const Outputs expected = forward(c, in);
  Buffer qkv(f32, 6 * 96), wide_out(f32, 6 * 50);
  wide_out.fill(7);
  for (int64_t i = 0; i < in.x.size(); ++i) qkv.set(i / 32 * 96 + 32 + i % 32, in.x.get(i));
  Outputs out;
  NormArgs f = forward_args(c, in, out);
  f.x = strided<ConstView>(std::as_const(qkv), 32, {2, 3, 32}, {3 * 96, 96, 1});  // the middle third of a wider matrix
  f.residual = view(in.residual, {2, 3, 32});
  f.y = strided<View>(wide_out, 10, {2, 3, 32}, {150, 50, 1});
  f.residual_out = view(out.residual_out, {2, 3, 32});
  f.rstd = view(out.rstd, {2, 3});
  call(c.op, f);
  EXPECT_EQ(out.residual_out, expected.residual_out);
  for (int64_t r = 0; r < 6; ++r)
    for (int64_t i = 0; i < 50; ++i)
      ASSERT_EQ(wide_out.get(r * 50 + i), i < 10 || i >= 42 ? 7 : expected.y.get(r * 32 + i - 10));
}

// linkedin/Liger-Kernel#518, unslothai/unsloth#1867: padded lanes added mean^2 to the variance.
TEST(FaultsShapes, WidthsThatAreNoPowerOfTwo) {
  const Case c{.op = Op::layer, .rows = 1, .cols = 3};
  const Outputs out = expect_within_tolerance(c, with_x(c, {5, 6, 7}));
  expect_values(out.y, {-1.2247357, 0, 1.2247357}, 1e-6);
  for (int64_t cols = 1; cols < 200; ++cols)
    for (DType type : {f32, kBf16}) {
      const Case wide{
          .op = Op::layer, .x = type, .weight = type, .bias = type, .rows = 2, .cols = cols, .dist = Dist::shifted};
      expect_within_tolerance(wide, make_inputs(wide));
    }
  const Case wider{.op = Op::layer, .rows = 2, .cols = 1536, .dist = Dist::shifted};
  expect_within_tolerance(wider, make_inputs(wider));
}

// BobMcDear/attorch#18: the last block of rows dropped from dweight.
TEST(FaultsShapes, EveryRowCountsInTheWeightGradient) {
  auto check = [](int64_t rows, int64_t cols) {
    const Case c{.op = Op::rms, .weight = f32, .rows = rows, .cols = cols, .eps = 0};
    Inputs in = with_x(c, [](int64_t, int64_t) { return 3; });
    in.dy.fill(1);
    for (int threads : {1, 3}) {
      const Outputs out = backward(c, in, {threads});
      expect_all(out.dweight, static_cast<double>(rows));
      expect_all(out.dbias, static_cast<double>(rows));
    }
  };
  for (int64_t rows = 1; rows <= 140; ++rows) check(rows, 32);
  check(1025, 32);
  check(1025, 1000);
}

// microsoft/onnxruntime#12917: the weight shorter than what is normalized was read past its end.
TEST(FaultsShapes, ShortWeightIsRefusedAndTheFullOneUsed) {
  const Case c{.op = Op::layer, .weight = f32, .bias = f32, .rows = 1, .cols = 6};
  Inputs in = with_x(c, {1.2416, .946123, 13.1685, .36423, 21.145, .03941});
  for (int64_t i = 0; i < 6; ++i) {
    in.weight.set(i, i % 2 ? 5.1824 : -.6953);
    in.bias.set(i, i % 2 ? -.3964 : .6435);
  }
  Outputs out;
  NormArgs f = forward_args(c, in, out);
  f.x = view(in.x, {1, 3, 2}), f.y = view(out.y, {1, 3, 2}), f.axis = 1;
  call(c.op, f);
  expect_values(out.y, {1.0636061, -3.7161139, .0429607, -4.0872636, -.6396289, -4.2944441}, 2e-5);
  f.weight = strided<ConstView>(std::as_const(in).weight, 0, {2}, {1});
  EXPECT_THROW(call(c.op, f), std::invalid_argument);
}

// onnxruntime#32020: an axis without elements is refused; a batch without rows is not (see edges_test.cc).
TEST(FaultsShapes, EmptyNormalizedAxisIsRefused) {
  float dummy = 7;
  for (Op op : {Op::layer, Op::rms, Op::l2})
    EXPECT_THROW(call(op, NormArgs{.x = ConstView(&dummy, {2, 0}), .y = View(&dummy, {2, 0})}), std::invalid_argument);
  EXPECT_EQ(dummy, 7);
}

// pytorch/pytorch#2421, #184575, tracel-ai/burn#1992: gradients at 0.
TEST(FaultsGradients, FiniteAtZero) {
  for (DType type : {f32, f64, kBf16, kF16}) {
    for (Op op : {Op::layer, Op::rms, Op::l2}) {
      const Case c{.op = op, .x = type, .rows = 1, .cols = 4, .dist = Dist::zeros, .eps = 1e-3};
      expect_within_tolerance(c, make_inputs(c));
      expect_finite(backward(c, make_inputs(c)).dx);
    }
    // With nothing to divide by the gradient is 0, as the output is.
    const Case c{.op = Op::l2, .x = type, .rows = 1, .cols = 5, .dist = Dist::zeros, .eps = 0};
    expect_all(backward(c, make_inputs(c)).dx, 0);
  }
}

// pytorch/pytorch#184575: below eps the forward is x / eps, and so the gradient is dy / eps.
TEST(FaultsGradients, ClampedNormIsConsistentWithItsForward) {
  const Case c{.op = Op::l2, .rows = 1, .cols = 3, .eps = 0.5};
  Inputs in = with_x(c, {0, 0.125, -0.25});
  const Outputs out = run(c, in);
  expect_values(out.y, {0, 0.25, -0.5}, 0);
  expect_values(out.dx, {2 * in.dy.get(0), 2 * in.dy.get(1), 2 * in.dy.get(2)}, 0);
}

// NVIDIA/TransformerEngine#67: weight 0 with offset 1 is a weight of 1, forward and backward.
TEST(FaultsGradients, ZeroCentredWeightInBackward) {
  for (Op op : {Op::layer, Op::rms, Op::l2}) {
    Case c{.op = op, .weight = f32, .rows = 5, .cols = 200, .weight_offset = 1};
    Inputs in = make_inputs(c);
    in.weight.fill(0);
    const Outputs offset = run(c, in);
    Case plain{.op = op, .weight = f32, .rows = 5, .cols = 200};
    in.weight.fill(1);
    EXPECT_EQ(difference(offset, run(plain, in)), "");
  }
}

// BobMcDear/attorch#17: a term per row broadcast over the wrong axis.
TEST(FaultsGradients, ManyShortRows) {
  for (Op op : {Op::layer, Op::rms, Op::l2}) {
    const Case c{.op = op, .weight = f32, .rows = 2048, .cols = 2};
    expect_within_tolerance(c, make_inputs(c));
  }
}

// flagos-ai/FlagGems#5392: backward for two dimensions only.
TEST(FaultsGradients, ThreeDimensionsEqualTheReshape) {
  const Case c{.op = Op::layer, .weight = f32, .rows = 6, .cols = 4};
  const Inputs in = make_inputs(c);
  const Outputs expected = backward(c, in);
  Outputs out;
  NormGradArgs b = backward_args(c, in, out);
  b.x = view(in.x, {2, 3, 4}), b.dy = view(in.dy, {2, 3, 4}), b.dx = view(out.dx, {2, 3, 4});
  call(c.op, b);
  EXPECT_EQ(difference(out, expected), "");
}

// Oneflow-Inc/oneflow#10045, unslothai/unsloth#45: each gradient alone, with and without a weight.
TEST(FaultsGradients, OnlyTheOnesThatAreWanted) {
  for (bool weight : {false, true}) {
    const Case c{.op = Op::layer, .weight = weight ? f32 : DType::none, .rows = 20, .cols = 30};
    const Inputs in = make_inputs(c);
    const Reference ref = reference(c, in);
    Outputs out;
    NormGradArgs b = backward_args(c, in, out);
    b.dweight = {}, b.dbias = {};
    call(c.op, b);
    EXPECT_TRUE(measure(out.dx, ref.dx, f32).passes());
    b = backward_args(c, in, out);
    b.dx = {}, b.dbias = {};
    call(c.op, b);
    EXPECT_TRUE(measure(out.dweight, ref.dweight, f32).passes());
  }
}

// flagos-ai/FlagGems, pytorch/pytorch#140913: gradients of 16-bit x beside f32 weights.
TEST(FaultsGradients, MixedTypesEqualTheReference) {
  for (DType type : {kBf16, kF16}) {
    const Case c{
        .op = Op::layer, .x = type, .weight = f32, .bias = f32, .rows = 200, .cols = 96, .dist = Dist::shifted};
    expect_within_tolerance(c, make_inputs(c));
  }
}

// GeeeekExplorer/nano-vllm#170: an input was changed in place.
TEST(FaultsCalls, InputsAreNotChanged) {
  const Case c{
      .op = Op::rms, .weight = f32, .bias = f32, .residual = f32, .residual_out = f32, .rows = 30, .cols = 100};
  const Inputs in = make_inputs(c), copy = in;
  run(c, in, {2});
  for (Buffer Inputs::* b :
       {&Inputs::x, &Inputs::weight, &Inputs::bias, &Inputs::residual, &Inputs::dy, &Inputs::dresidual_out})
    EXPECT_EQ(in.*b, copy.*b);
}

// pytorch/pytorch#108048, microsoft/onnxruntime#18967: a weight without a bias crashed; and the other way round.
TEST(FaultsCalls, WeightAndBiasAreIndependent) {
  for (DType weight : {DType::none, f32})
    for (DType bias : {DType::none, f32})
      for (Op op : {Op::layer, Op::rms, Op::l2}) {
        const Case c{.op = op, .weight = weight, .bias = bias, .rows = 3, .cols = 10};
        expect_within_tolerance(c, make_inputs(c));
      }
}

// pytorch/pytorch#141727: results amplified by a second norm of constant data.
TEST(FaultsCalls, ConstantDataStaysExactThroughTwoNorms) {
  const Case c{.op = Op::layer, .rows = 6, .cols = 120};
  Inputs in = with_x(c, [](int64_t, int64_t) { return 1; });
  in.x = forward(c, in).y;
  expect_all(forward(c, in).y, 0);
}

}  // namespace
}  // namespace normkit::test
