// The same bits, whatever the threads, the batch, the memory or the caller's floating-point state look like.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "placed.h"
#include "run.h"

namespace normkit::test {
namespace {

// Calls f(case, inputs, results on one thread) for every case, or for those of ordinary size.
template <class F>
void for_each_case(bool wide_too, F f) {
  for (const Case& c : all_cases()) {
    if (c.wide && !wide_too) continue;
    SCOPED_TRACE(name_of(c));
    const Inputs in = make_inputs(c);
    f(c, in, run(c, in));
  }
}

std::vector<int64_t> rising(int64_t n) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// The part of the results that belongs to these rows: everything but the sums over rows.
Outputs results_of_rows(const Case& c, const Outputs& all, const std::vector<int64_t>& order) {
  return {.y = take_rows(all.y, c.cols, order),
          .residual_out = take_rows(all.residual_out, c.cols, order),
          .mean = take_rows(all.mean, 1, order),
          .rstd = take_rows(all.rstd, 1, order),
          .dx = take_rows(all.dx, c.cols, order),
          .dweight = {},
          .dbias = {}};
}
Outputs run_rows(const Case& c, const Inputs& in, const std::vector<int64_t>& order) {
  Case part = c;
  part.rows = static_cast<int64_t>(order.size());
  Outputs out = run(part, take_rows(c, in, order));
  out.dweight = out.dbias = Buffer();
  return out;
}

TEST(Bits, AnyNumberOfThreads) {
  for_each_case(true, [](const Case& c, const Inputs& in, const Outputs& one) {
    for (int threads = 2; threads <= 8; threads += c.wide ? 1 : 3)
      ASSERT_EQ(difference(run(c, in, {threads}), one), "") << threads << " threads";
  });
}

TEST(Bits, RowOrderPermuted) {
  for_each_case(false, [](const Case& c, const Inputs& in, const Outputs& all) {
    std::vector<int64_t> order = rising(c.rows);
    Random random(1);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.bits() % i]);
    ASSERT_EQ(difference(run_rows(c, in, order), results_of_rows(c, all, order)), "");
  });
}

// vllm-project/vllm#48271, sgl-project/sglang#28787: the bits of a row depended on the size of the batch.
TEST(Bits, BatchSliced) {
  for_each_case(false, [](const Case& c, const Inputs& in, const Outputs& all) {
    for (int64_t size : {1, 2, 5, 256}) {
      if (size >= c.rows) continue;
      for (int64_t first = 0; first < c.rows; first += std::max(size, c.rows / 7)) {
        std::vector<int64_t> order = rising(std::min(size, c.rows - first));
        for (int64_t& r : order) r += first;
        ASSERT_EQ(difference(run_rows(c, in, order), results_of_rows(c, all, order)), "")
            << size << " rows at " << first;
      }
    }
  });
}

// All operands in one layout; the gaps between the elements must stay as they are.
Outputs run_in_layout(const Case& c, const Inputs& in, const Layout& l, const Exec& exec) {
  Outputs like;
  NormArgs f = forward_args(c, in, like);
  NormGradArgs b = backward_args(c, in, like);
  auto input = [&](const Buffer& values) { return Placed(values, c.rows, c.cols, l); };
  auto output = [&](const Buffer& values) { return Placed(values, c.rows, c.cols, l.forwards(), true); };
  Placed x = input(in.x), residual = input(in.residual), dy = input(in.dy), dres = input(in.dresidual_out);
  Placed y = output(like.y), h = output(like.residual_out), dx = output(like.dx);
  // Parameters and statistics have one dimension, which takes the layout of the columns or rows.
  auto line = [&](const Buffer& values, const Layout& layout, bool is_output) {
    Layout flat{.name = "",
                .shift = layout.shift,
                .col_step = layout.col_step + (layout.transposed ? 2 : 0),
                .cols_backwards = layout.cols_backwards};
    return Placed(values, 1, values.size(), is_output ? flat.forwards() : flat, is_output);
  };
  auto row_view = [](Placed& p) {
    const View v = p.view();
    return v ? View(v.data, v.dtype, std::span(&v.shape[1], 1), std::span(&v.strides[1], 1)) : v;
  };
  Placed weight = line(in.weight, l, false), bias = line(in.bias, l, false);
  Placed mean = line(like.mean, l, true), rstd = line(like.rstd, l, true);
  Placed dweight = line(like.dweight, l, true), dbias = line(like.dbias, l, true);

  f.x = b.x = x.view(), f.residual = b.residual = residual.view();
  f.weight = b.weight = row_view(weight), f.bias = row_view(bias);
  f.y = y.view(), f.residual_out = h.view(), f.mean = row_view(mean), f.rstd = row_view(rstd);
  b.dy = dy.view(), b.dresidual_out = dres.view(), b.dx = dx.view();
  b.dweight = row_view(dweight), b.dbias = row_view(dbias);
  call(c.op, f, exec);
  call(c.op, b, exec);
  for (Placed* p : {&x, &residual, &dy, &dres, &y, &h, &dx, &weight, &bias, &mean, &rstd, &dweight, &dbias})
    EXPECT_TRUE(p->gaps_untouched());
  EXPECT_EQ(x.contents(), in.x) << "an input was written";
  return {.y = y.contents(),
          .residual_out = h.contents(),
          .mean = mean.contents(),
          .rstd = rstd.contents(),
          .dx = dx.contents(),
          .dweight = dweight.contents(),
          .dbias = dbias.contents()};
}

class Layouts : public testing::TestWithParam<Layout> {};
TEST_P(Layouts, GiveTheSameBits) {
  for_each_case(false, [](const Case& c, const Inputs& in, const Outputs& packed) {
    if (c.rows * c.cols > 10000) return;  // long rows: below
    ASSERT_EQ(difference(run_in_layout(c, in, GetParam(), {}), packed), "");
  });
}
TEST_P(Layouts, GiveTheSameBitsOnThreads) {
  for (DType type : {DType::f32, DType::bf16})
    for (const auto& [rows, cols] : {std::pair{150, 1000}, std::pair{1, 70'000}, std::pair{3, 66'000}}) {
      const Case c{.op = Op::layer,
                   .x = type,
                   .weight = type,
                   .residual = type,
                   .residual_out = type,
                   .rows = rows,
                   .cols = cols};
      const Inputs in = make_inputs(c);
      const Outputs packed = run(c, in);
      for (int threads : {2, 3, 5}) ASSERT_EQ(difference(run_in_layout(c, in, GetParam(), {threads}), packed), "") << c;
    }
}
INSTANTIATE_TEST_SUITE_P(Bits, Layouts,
                         testing::Values(Layout{.name = "shifted_by_one", .shift = 1},
                                         Layout{.name = "shifted_by_seven", .shift = 7},
                                         Layout{.name = "padded_rows", .row_pad = 3},
                                         Layout{.name = "every_second_element", .shift = 1, .col_step = 2},
                                         Layout{.name = "transposed", .transposed = true},
                                         Layout{.name = "rows_backwards", .row_pad = 1, .rows_backwards = true},
                                         Layout{.name = "columns_backwards", .cols_backwards = true}),
                         [](const auto& info) { return std::string(info.param.name); });

// The gradients of `subset`: 1 dx, 2 dweight, 4 dbias. The others stay as they were made.
void backward_of(const Case& c, const Inputs& in, int subset, Outputs& out, const Exec& exec = {}) {
  NormGradArgs b = backward_args(c, in, out);
  if (!(subset & 1)) b.dx = {}, b.dresidual_out = {};
  if (!(subset & 2)) b.dweight = {};
  if (!(subset & 4)) b.dbias = {};
  call(c.op, b, exec);
}

void expect_gradients(const Outputs& got, const Outputs& expected, int subset) {
  if (subset & 1) {
    ASSERT_EQ(got.dx, expected.dx);
  }
  if (subset & 2) {
    ASSERT_EQ(got.dweight, expected.dweight);
  }
  if (subset & 4) {
    ASSERT_EQ(got.dbias, expected.dbias);
  }
}

// Calls larger than the last-level cache write past it. The same rows over and over must give the same results.
constexpr int64_t kRowsOver = 64;  // rows of a weight-gradient block
void expect_same_beyond_the_cache(Case c, const Inputs& in, int subset, bool forward_too = false) {
  const auto run_subset = [&](const Inputs& inputs, const Exec& exec) {
    Outputs out = forward_too ? forward(c, inputs, exec) : Outputs();
    backward_of(c, inputs, subset, out, exec);
    return out;
  };
  c.rows = kRowsOver;
  Outputs expected = run_subset(in, {});
  const int64_t copies = cache_bytes() / (2 * c.rows * c.cols * dtype_size(c.x)) + 1;
  std::vector<int64_t> order;
  for (int64_t i = 0; i < copies * kRowsOver; ++i) order.push_back(i % kRowsOver);
  // As many times the sum of one block; in f32 without another rounding.
  for (Buffer* sum : {&expected.dweight, &expected.dbias})
    for (int64_t i = 0; i < sum->size(); ++i) sum->set(i, sum->get(i) * static_cast<double>(copies));
  c.rows = copies * kRowsOver;
  Outputs out = run_subset(take_rows(c, in, order), {2});
  if (!(subset & 2) || out.dweight.dtype() != DType::f32) out.dweight = expected.dweight;
  if (!(subset & 4) || out.dbias.dtype() != DType::f32) out.dbias = expected.dbias;
  for (int64_t copy : {int64_t{0}, copies / 2, copies - 1}) {
    std::vector<int64_t> rows = rising(kRowsOver);
    for (int64_t& r : rows) r += copy * kRowsOver;
    Outputs part = results_of_rows(c, out, rows);
    part.dweight = out.dweight, part.dbias = out.dbias;
    ASSERT_EQ(difference(part, expected), "") << c << " copy " << copy << " gradients " << subset;
  }
}
void expect_same_beyond_the_cache(Case c, int subset = 7) {
  c.rows = kRowsOver;
  expect_same_beyond_the_cache(c, make_inputs(c), subset, true);
}
TEST(Bits, OutputsLargerThanTheCache) {
  for (DType x : {DType::f32, DType::bf16}) {
    for (int64_t cols : {768, 1001, 3008}) {  // the second: most rows are not aligned
      expect_same_beyond_the_cache(
          {.op = Op::layer, .x = x, .weight = x, .bias = x, .residual = x, .residual_out = x, .cols = cols});
      expect_same_beyond_the_cache({.op = Op::rms, .x = x, .weight = x, .cols = cols}, 3);
    }
  }
  for (DType x : {DType::f64, DType::f16})
    expect_same_beyond_the_cache({.op = Op::layer, .x = x, .weight = x, .cols = 3008});
}
// Backward forms of their own: with and without a weight, its gradients and dresidual_out; groups of four rows, of one,
// several blocks to a row; a row whose rstd f32 does not hold among others.
TEST(Bits, GradientsLargerThanTheCache) {
  for (Op op : {Op::layer, Op::rms}) {
    const int all = op == Op::layer ? 7 : 3;
    for (int64_t cols : {128, 1000, 4160}) {
      Case c{.op = op, .weight = DType::f32, .bias = DType::f32, .rows = kRowsOver, .cols = cols, .eps = 0};
      Inputs in = make_inputs(c);
      for (int64_t i = 0; i < cols; ++i) in.x.set(5 * cols + i, static_cast<double>(i % 7 - 3) * 1e-40);
      expect_same_beyond_the_cache(c, in, all);
      if (cols != 1000) continue;
      expect_same_beyond_the_cache(c, in, 1);
      in.dresidual_out = in.dy;
      expect_same_beyond_the_cache(c, in, all);
      expect_same_beyond_the_cache(c, in, 1);
      c.weight = c.bias = DType::none;
      in.weight = in.bias = in.dresidual_out = Buffer();
      expect_same_beyond_the_cache(c, in, 1);
    }
  }
}

TEST(Bits, BroadcastInputs) {
  for (DType type : {DType::f32, DType::bf16}) {
    const Case c{
        .op = Op::layer, .x = type, .weight = type, .residual = type, .residual_out = type, .rows = 6, .cols = 130};
    Inputs in = make_inputs(c);
    for (int64_t i = 0; i < c.rows * c.cols; ++i) {
      in.residual.set(i, in.residual.get(i % c.cols));  // one row for all
      in.dy.set(i, in.dy.get(0));                       // one value for all
    }
    in.weight.fill(1.5);
    const Outputs expected = run(c, in);
    Outputs got;
    NormArgs f = forward_args(c, in, got);
    NormGradArgs b = backward_args(c, in, got);
    f.residual = b.residual = strided<ConstView>(std::as_const(in).residual, 0, {c.rows, c.cols}, {0, 1});
    f.weight = b.weight = strided<ConstView>(std::as_const(in).weight, 0, {c.cols}, {0});
    b.dy = strided<ConstView>(std::as_const(in).dy, 0, {c.rows, c.cols}, {0, 0});
    call(c.op, f);
    call(c.op, b);
    EXPECT_EQ(difference(got, expected), "");
  }
}

// Any rank, any axis: the dims before it are the batch, those from it on the row.
TEST(Bits, MoreDimensions) {
  const Case c{.op = Op::layer, .weight = DType::f32, .bias = DType::f32, .rows = 6, .cols = 20};
  const Inputs in = make_inputs(c);
  const Outputs expected = run(c, in);
  for (int axis : {2, -2}) {
    Outputs got;
    NormArgs f = forward_args(c, in, got);
    NormGradArgs b = backward_args(c, in, got);
    f.axis = b.axis = axis;
    f.x = b.x = view(in.x, {2, 3, 4, 5});
    f.y = view(got.y, {2, 3, 4, 5});
    f.weight = b.weight = view(in.weight, {4, 5});
    f.bias = view(in.bias, {20});  // one dimension with as many elements
    f.mean = view(got.mean, {2, 3, 1, 1});
    f.rstd = view(got.rstd, {2, 3});
    b.dy = view(in.dy, {2, 3, 4, 5});
    b.dx = view(got.dx, {2, 3, 4, 5});
    b.dweight = view(got.dweight, {4, 5});
    call(c.op, f);
    call(c.op, b);
    EXPECT_EQ(difference(got, expected), "") << "axis " << axis;
  }
}

TEST(Bits, BatchDimensionsThatDoNotCollapse) {
  const Case c{.op = Op::rms, .weight = DType::f32, .rows = 24, .cols = 70};
  const Inputs in = make_inputs(c);
  const Outputs expected = run(c, in);
  // x is [2, 3, 4, 70] in memory ordered [4, 2, 3, 70 + 5].
  const int64_t row = 75;
  Buffer x(DType::f32, 24 * row);
  std::vector<int64_t> order;
  for (int64_t a = 0; a < 2; ++a)
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t d = 0; d < 4; ++d) order.push_back(d * 6 + a * 3 + b);
  for (size_t r = 0; r < order.size(); ++r)
    for (int64_t i = 0; i < c.cols; ++i) x.set(order[r] * row + i, in.x.get(static_cast<int64_t>(r) * c.cols + i));
  Outputs got;
  NormArgs f = forward_args(c, in, got);
  NormGradArgs b = backward_args(c, in, got);
  f.x = b.x = strided<ConstView>(std::as_const(x), 0, {2, 3, 4, 70}, {3 * row, row, 6 * row, 1});
  f.y = view(got.y, {2, 3, 4, 70});
  f.rstd = view(got.rstd, {2, 3, 4});
  b.dy = view(in.dy, {2, 3, 4, 70});
  b.dx = view(got.dx, {2, 3, 4, 70});
  call(c.op, f);
  call(c.op, b);
  EXPECT_EQ(difference(got, expected), "");
}

TEST(Bits, InPlace) {
  for_each_case(false, [](const Case& c, const Inputs& original, const Outputs& fresh) {
    Inputs in = original;
    Outputs out;
    NormArgs f = forward_args(c, in, out);
    const bool over_x = c.y_type() == c.x;
    const bool over_residual = c.residual_out != DType::none && c.residual_out == c.residual;
    if (over_x) f.y = view(in.x, {c.rows, c.cols});
    if (over_residual) f.residual_out = view(in.residual, {c.rows, c.cols});
    call(c.op, f);
    if (over_x) out.y = in.x;
    if (over_residual) out.residual_out = in.residual;
    out.dx = fresh.dx, out.dweight = fresh.dweight, out.dbias = fresh.dbias;
    EXPECT_EQ(difference(out, fresh), "");
  });
}

TEST(Bits, InPlaceTheOtherWayRound) {
  for_each_case(false, [](const Case& c, const Inputs& original, const Outputs& fresh) {
    if (c.residual != c.x || c.y_type() != c.x || c.residual_out != c.x) return;
    Inputs in = original;
    Outputs out;
    NormArgs f = forward_args(c, in, out);
    f.y = view(in.residual, {c.rows, c.cols});
    f.residual_out = view(in.x, {c.rows, c.cols});
    call(c.op, f);
    ASSERT_EQ(in.residual, fresh.y);
    ASSERT_EQ(in.x, fresh.residual_out);
  });
}

TEST(Bits, GradientInPlace) {
  for_each_case(false, [](const Case& c, const Inputs& original, const Outputs& fresh) {
    for (Buffer Inputs::* target : {&Inputs::dy, &Inputs::x, &Inputs::dresidual_out}) {
      Inputs in = original;
      if (!(in.*target)) continue;
      Outputs out;
      NormGradArgs b = backward_args(c, in, out);
      b.dx = view(in.*target, {c.rows, c.cols});
      call(c.op, b);
      out.dx = in.*target;
      ASSERT_EQ(out.dx, fresh.dx);
      ASSERT_EQ(out.dweight, fresh.dweight);
      ASSERT_EQ(out.dbias, fresh.dbias);
    }
  });
}

// Statistics saved as f64 by the forward lose nothing against computing them again. (f64 x is different where more than
// one double per row is needed: for a mean, and for a scale; see docs/numerics.md.)
TEST(Bits, BackwardFromSavedStatistics) {
  for_each_case(true, [](const Case& c, const Inputs& in, const Outputs& all) {
    const bool scaled = c.dist == Dist::huge || c.dist == Dist::tiny;
    if (c.x == DType::f64 && (c.op == Op::layer || scaled)) return;
    if (c.for_backward().h_type() != c.h_type()) return;
    for (int threads : {1, 3}) {
      Outputs got;
      NormGradArgs b = backward_args(c, in, got);
      b.mean = view(all.mean, {c.rows});
      b.rstd = view(all.rstd, {c.rows});
      call(c.op, b, {threads});
      got.y = all.y, got.residual_out = all.residual_out, got.mean = all.mean, got.rstd = all.rstd;
      EXPECT_EQ(difference(got, all), "") << threads << " threads";
    }
  });
}

// A NaN with any bits, in statistics that the caller saved, gives NaN in its row.
TEST(Bits, BackwardFromSavedNaN) {
  for (DType type : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (Op op : {Op::layer, Op::rms})
      for (uint32_t bits : {0xffffffffu, 0x7fffffffu, 0x7f800001u}) {
        const Case c{.op = op, .x = type, .weight = type, .rows = 1, .cols = 70};
        const Inputs in = make_inputs(c);
        const float nan = std::bit_cast<float>(bits), one = 1;
        for (bool in_mean : {false, true}) {
          if (in_mean && op == Op::rms) continue;
          Outputs out;
          NormGradArgs b = backward_args(c, in, out);
          b.dweight = b.dbias = {};  // a loop of its own, not the generic one
          b.rstd = ConstView(in_mean ? &one : &nan, {1});
          if (op == Op::layer) b.mean = ConstView(in_mean ? &nan : &one, {1});
          call(c.op, b);
          for (int64_t i = 0; i < c.cols; ++i) ASSERT_TRUE(std::isnan(out.dx.get(i))) << c << " column " << i;
        }
      }
}

// Every output by itself has the bits that it has beside the others.
TEST(Bits, AnySubsetOfTheGradients) {
  for_each_case(false, [](const Case& c, const Inputs& in, const Outputs& all) {
    for (int subset = 1; subset < 7; ++subset) {
      Outputs got;
      backward_of(c, in, subset, got);
      expect_gradients(got, all, subset);
    }
  });
}

// One fused call gives the bits of an addition followed by a norm.
TEST(Bits, FusedResidualEqualsTwoCalls) {
  for_each_case(false, [](const Case& c, const Inputs& in, const Outputs& fused) {
    if (c.residual_out != c.x || c.residual != c.x || c.residual_stats != ResidualStats::rounded) return;
    Case plain = c;
    plain.residual = plain.residual_out = DType::none;
    Inputs two = in;
    two.x = fused.residual_out;
    two.residual = two.dresidual_out = Buffer();
    ASSERT_EQ(forward(plain, two).y, fused.y);
    two.dresidual_out = in.dresidual_out;
    for (int subset : {7, 3, 1}) {
      Outputs got;
      backward_of(plain, two, subset, got);
      expect_gradients(got, fused, subset);
    }
  });
}

// microsoft/onnxruntime#26407: a negative axis was not resolved.
TEST(Bits, NegativeAxisCountsFromTheEnd) {
  const Case c{.op = Op::rms, .rows = 4, .cols = 33};
  const Inputs in = make_inputs(c);
  Outputs a, b;
  NormArgs f = forward_args(c, in, a);
  f.axis = -1;
  call(c.op, f);
  f = forward_args(c, in, b);
  f.axis = 1;
  call(c.op, f);
  EXPECT_EQ(difference(a, b), "");
}

}  // namespace
}  // namespace normkit::test
