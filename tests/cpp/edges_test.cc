// The edges of docs/numerics.md.
#include "expect.h"
#include "float_state.h"

namespace normkit::test {
namespace {

constexpr Op kOps[] = {Op::layer, Op::rms, Op::l2};
constexpr DType kTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

TEST(Edges, EmptyBatch) {
  for (Op op : kOps) {
    const Case c{.op = op,
                 .weight = DType::f32,
                 .bias = DType::f32,
                 .residual = DType::f32,
                 .residual_out = DType::f32,
                 .rows = 0,
                 .cols = 5};
    const Inputs in = make_inputs(c);
    Outputs out = run(c, in);
    expect_all(out.dweight, 0);
    expect_all(out.dbias, 0);
    NormGradArgs b = backward_args(c, in, out);
    out.dweight.fill(2.5);
    b.accumulate = true;
    call(op, b);
    expect_all(out.dweight, 2.5);
    // Null data is fine where there are no elements.
    NormArgs f = forward_args(c, in, out);
    for (View* v : {&f.y, &f.residual_out, &f.mean, &f.rstd}) v->data = nullptr;
    f.x.data = f.residual.data = nullptr;
    EXPECT_NO_THROW(call(op, f));
  }
}

// microsoft/onnxruntime#25896, pytorch/pytorch#19250: the same rule for every batch size, y = bias.
TEST(Edges, OneElementPerStatistic) {
  for (DType type : kTypes) {
    for (int64_t rows : {1, 2, 9}) {
      const Case c{.op = Op::layer, .x = type, .weight = type, .bias = type, .rows = rows, .cols = 1};
      const Inputs in = make_inputs(c);
      const Outputs out = run(c, in);
      expect_all(out.y, in.bias.get(0));
      expect_all(out.dx, 0);
      expect_all(out.dweight, 0);
    }
  }
}

TEST(Edges, ConstantRowsWithoutEps) {
  for (DType type : kTypes) {
    for (double value : {0.0, 1234.0, -11.000001907348633, 1000.1, 1e-5}) {
      Case c{.op = Op::layer, .x = type, .weight = type, .bias = type, .rows = 3, .cols = 257, .eps = 0};
      const Inputs in = with_x(c, [=](int64_t, int64_t) { return value; });
      const Outputs out = run(c, in);
      for (int64_t i = 0; i < out.y.size(); ++i) ASSERT_EQ(out.y.get(i), in.bias.get(i % c.cols));
      expect_all(out.rstd, 0);
      expect_all(out.dx, 0);
      expect_all(out.dweight, 0);
      expect_finite(out.dbias);
    }
  }
}

TEST(Edges, ZeroRowsWithoutEps) {
  for (Op op : kOps) {
    for (DType type : kTypes) {
      for (EpsMode mode : {EpsMode::inside, EpsMode::outside, EpsMode::clamp}) {
        if (op == Op::l2 && mode != EpsMode::inside) continue;
        const Case c{.op = op, .x = type, .rows = 2, .cols = 70, .dist = Dist::zeros, .eps = 0, .eps_mode = mode};
        const Outputs out = run(c, make_inputs(c));
        expect_all(out.y, 0);
        expect_finite(out.dx);
        expect_all(out.dweight, 0);
      }
    }
  }
}

// NaN and inf give the IEEE result in their row and touch no other row.
TEST(Edges, NotANumberStaysInItsRow) {
  for (Op op : kOps) {
    for (DType type : kTypes) {
      for (double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
        for (int64_t at : {0, 5, 63, 70, 99}) {
          const Case c{.op = op, .x = type, .weight = type, .rows = 9, .cols = 100};
          Inputs in = make_inputs(c);
          const Outputs clean = run(c, in);
          in.x.set(4 * c.cols + at, bad);
          const Outputs out = run(c, in);
          const Reference ref = reference(c, in);
          EXPECT_TRUE(measure(out.y, ref.y, compute_type(type)).passes()) << c << " " << bad << " at " << at;
          std::vector<int64_t> others = {0, 1, 2, 3, 5, 6, 7, 8};
          EXPECT_EQ(take_rows(out.y, c.cols, others), take_rows(clean.y, c.cols, others));
          EXPECT_EQ(take_rows(out.dx, c.cols, others), take_rows(clean.dx, c.cols, others));
          EXPECT_TRUE(std::isnan(out.y.get(4 * c.cols + at)));
        }
      }
    }
  }
}

TEST(Edges, NotANumberInTheParameters) {
  const Case c{.op = Op::rms, .weight = DType::f32, .bias = DType::f32, .rows = 5, .cols = 90};
  Inputs in = make_inputs(c);
  const Outputs clean = forward(c, in);
  in.weight.set(17, NAN);
  in.bias.set(80, NAN);
  const Outputs out = forward(c, in);
  for (int64_t i = 0; i < out.y.size(); ++i) {
    const bool hit = i % c.cols == 17 || i % c.cols == 80;
    EXPECT_EQ(std::isnan(out.y.get(i)), hit);
    if (!hit) {
      EXPECT_EQ(out.y.get(i), clean.y.get(i));
    }
  }
}

// Subnormal inputs count, and subnormal results are not flushed.
TEST(Edges, Subnormals) {
  for (Op op : kOps) {
    for (DType type : {DType::f32, DType::bf16, DType::f16}) {
      Case c{.op = op, .x = type, .rows = 3, .cols = 150, .eps = 0};
      const double smallest = 2 * half_smallest(type);
      const Inputs in =
          with_x(c, [=](int64_t r, int64_t i) { return smallest * static_cast<double>((i * 37 + r) % 23 - 11); });
      const Outputs out = forward(c, in);
      EXPECT_TRUE(measure(out.y, reference(c, in).y, DType::f32).passes()) << c;
      c.weight = type, c.eps = 1;  // results near the smallest values of the type
      Inputs small = make_inputs(c);
      small.weight.fill(16 * smallest);
      const Outputs tiny = forward(c, small);
      EXPECT_TRUE(measure(tiny.y, reference(c, small).y, DType::f32).passes()) << c;
      int64_t subnormal = 0;
      for (int64_t i = 0; i < tiny.y.size(); ++i) subnormal += tiny.y.get(i) != 0;
      EXPECT_GT(subnormal, tiny.y.size() / 2) << c;
    }
  }
}

// The first 64 elements stand apart from the rest by ever more.
TEST(Edges, ProbesThatMissTheMean) {
  for (DType type : {DType::f32, DType::f64}) {
    for (double apart : {10.0, 1e3, 1e6}) {
      for (int64_t cols : {65, 128, 5000, 9000}) {
        const Case c{.op = Op::layer, .x = type, .weight = type, .rows = 2, .cols = cols};
        Random random(3);
        expect_within_tolerance(c,
                                with_x(c, [&](int64_t, int64_t i) { return random.normal() + (i < 64 ? apart : 0); }));
      }
    }
  }
}

TEST(Edges, LargestAndSmallestMagnitudes) {
  for (Op op : kOps) {
    for (double size : {1e30, 1e-30, 3e38, 1e19, 1e-19, 1e-22}) {
      const Case c{.op = op, .rows = 2, .cols = 700, .eps = 0};
      Random random(5);
      expect_within_tolerance(c, with_x(c, [&](int64_t, int64_t) { return size * (random.uniform() - 0.5); }));
    }
    for (double size : {1e300, 1e-300, 1e155, 1e-155, 1e308}) {
      const Case c{.op = op, .x = DType::f64, .rows = 2, .cols = 700, .eps = 0};
      Random random(5);
      expect_within_tolerance(c, with_x(c, [&](int64_t, int64_t) { return size * (random.uniform() - 0.5); }));
    }
  }
}

// ---- the caller's floating-point state -------------------------------------------------------------------------------

TEST(Edges, FloatingPointStateOfTheCallerIsNotTrusted) {
  for (Op op : kOps) {
    for (DType type : kTypes) {
      for (int64_t cols : {80, 70000}) {  // the second is split over threads
        Case c{.op = op,
               .x = type,
               .weight = type,
               .bias = DType::f32,
               .residual = type,
               .residual_out = type,
               .rows = 3,
               .cols = cols,
               .eps = 1e-7,
               .weight_offset = 0.1};
        Inputs in = make_inputs(c);
        for (int64_t i = 0; i < 40; ++i) in.x.set(i, half_smallest(type) * static_cast<double>(2 * i));
        for (int64_t i = 0; i < 40; ++i) in.residual.set(i, 0);
        const Outputs expected = run(c, in);
        for (int rounding : {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO}) {
          Outputs out;
          NormArgs f = forward_args(c, in, out);
          NormGradArgs b = backward_args(c, in, out);
          EXPECT_TRUE(under_float_state(rounding, [&] {
            call(op, f, {4});
            call(op, b, {4});
          })) << "the state was not restored";
          EXPECT_EQ(difference(out, expected), "") << c << " rounding mode " << rounding;
        }
      }
    }
  }
}

}  // namespace
}  // namespace normkit::test
