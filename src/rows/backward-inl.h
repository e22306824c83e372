// Backward kernels. Per group of rows: the sums over each row, then one pass over the columns that writes dx and adds
// the group's rows, in rising order, to the weight gradients while those are in registers.
#pragma once

#include "rows/statistics-inl.h"

namespace normkit::NORMKIT_SIMD {
namespace {

// Rows of a group: at most kGradRows (divides kGradBlock), and as many as stay in the L2 cache with their dy.
inline constexpr int kGradRows = 4;
inline constexpr int64_t kGradGroupBytes = 32 << 10;

// Which optional operands a loop handles, as Form does for forward: one loop each for the common combinations.
struct GradForm {
  bool generic = false;
  bool weight = false, dres = false;
  constexpr bool operator==(const GradForm&) const = default;
};
inline constexpr GradForm kGenericGrad{.generic = true};

struct GradRow {
  SourceRow src;
  RowPtr dy, weight, dres, dx;
  XhatMaker xhat;
  const RowStats* stats;
  V offset;
  bool round_xhat, add_offset;
  V c1{}, c2{};  // dx = rstd * ((g - c1) - xhat * c2)
  double c1_d = 0, c2_d = 0;
};
NORMKIT_INLINE GradRow row_of(const Backward& call, int64_t row, const RowStats& stats) {
  const Recipe& r = call.recipe;
  return {row_of(call.src, row),
          row_of(call.dy, row),
          row_of(call.weight, 0),
          row_of(call.dres, row),
          row_of(call.dx, row),
          xhat_maker(stats),
          &stats,
          splat(static_cast<C>(r.weight_offset)),
          r.round_xhat,
          r.offset};
}
// Loads of operands whose type a form knows.
template <GradForm f>
NORMKIT_INLINE Pair load_as(RowPtr o, int64_t c) {
  return load(f.generic ? o : RowPtr{o.p, false}, c);
}
template <GradForm f>
NORMKIT_INLINE Pair load_h(const GradRow& r, int64_t c) {
  return load<f.generic ? Src::any : Src::x>(r.src, c);
}
template <GradForm f>
NORMKIT_INLINE bool has_weight(const GradRow& r) {
  return f.generic ? r.weight.p != nullptr : f.weight;
}
template <GradForm f>
NORMKIT_INLINE Pair weight_of(const GradRow& r, int64_t c) {
  if (!has_weight<f>(r)) return Pair{V{}, V{}};
  const Pair w = load_as<f>(r.weight, c);
  return f.generic && r.add_offset ? w + r.offset : w;
}
template <GradForm f>
NORMKIT_INLINE Pair g_of(const GradRow& r, Pair dy, Pair weight) {
  return has_weight<f>(r) ? dy * weight : dy;
}
NORMKIT_INLINE void set_sums(GradRow& r, const Recipe& recipe, int64_t cols, const GradSums& s) {
  const double n = static_cast<double>(cols);
  r.c1_d = s.g / n;
  r.c2_d = r.stats->c * q_of(recipe, s.gx, n);  // a mean where q is one
  r.c1 = splat(static_cast<C>(r.c1_d));
  r.c2 = splat(static_cast<C>(r.c2_d));
}

// A pair of the row in a buffer. Behind its end dy is 0 and h the last element: the xhat of another h could be infinite,
// and 0 * infinity would spoil the row's sum.
struct StagedGrad {
  Staged x, residual, dy, weight, dres, dx;
  GradRow row;
  StagedGrad(const GradRow& r, int64_t c, int64_t count) : row(r) {
    row.src.x = x.in_repeated(r.src.x, c, count);
    row.src.residual = residual.in_repeated(r.src.residual, c, count);
    row.dy = dy.in(r.dy, c, count);
    row.weight = weight.in(r.weight, c, count);
    row.dres = dres.in(r.dres, c, count);
    row.dx = dx.out(r.dx, c);
  }
};

template <bool kCentre, GradForm f>
struct GradOp {
  static constexpr int kSums = kCentre ? 2 : 1;
  GradRow r;

  NORMKIT_INLINE void add(int64_t c, PairRef sum_g, PairRef sum_gx) const { add_pair<f>(r, c, sum_g, sum_gx); }
  __attribute__((noinline)) void add_partial(int64_t c, int64_t count, PairRef sum_g, PairRef sum_gx) const {
    const StagedGrad staged(r, c, count);
    add_pair<kGenericGrad>(staged.row, c, sum_g, sum_gx);
  }

 private:
  template <GradForm form>
  static NORMKIT_INLINE void add_pair(const GradRow& r, int64_t c, PairRef sum_g, PairRef sum_gx) {
    const Pair g = g_of<form>(r, load_as<form>(r.dy, c), weight_of<form>(r, c));
    if constexpr (kCentre) sum_g = Pair(sum_g) + g;
    sum_gx = fma(g, xhat_of<kCentre, form.generic>(r.xhat, load_h<form>(r, c)), Pair(sum_gx));
  }
};

template <bool kCentre, GradForm f>
NORMKIT_INLINE GradSums grad_sums(const GradRow& r, int64_t begin, int64_t end) {
  GradSums total;
  for (int64_t c = begin; c < end; c += kBlock) {
    Lanes lanes;
    sweep<true>(lanes, c, min64(c + kBlock, end), GradOp<kCentre, f>{r});
    if (kCentre) total.g += static_cast<double>(sum_lanes(lanes.s1));
    total.gx += static_cast<double>(sum_lanes(lanes.s2));
  }
  return total;
}

// Rows whose rstd does not fit x's compute type, in f64 like their xhat.
__attribute__((noinline)) Pair slow_dx(const GradRow& r, Pair g, Pair xhat, Pair dres) {
  C gb[kPairElems], xb[kPairElems], rb[kPairElems];
  store_c(g, gb);
  store_c(xhat, xb);
  store_c(dres, rb);
  for (int j = 0; j < kPairElems; ++j) {
    const double t = (static_cast<double>(gb[j]) - r.c1_d) - static_cast<double>(xb[j]) * r.c2_d;
    rb[j] = static_cast<C>(t * r.stats->rstd * r.stats->scale + static_cast<double>(rb[j]));
  }
  return load_c(rb);
}

template <bool kCentre, GradForm f>
NORMKIT_INLINE Pair dx_of(const GradRow& r, int64_t c, Pair g, Pair xhat) {
  const bool dres = f.generic ? r.dres.p != nullptr : f.dres;
  if (f.generic && __builtin_expect(r.xhat.slow != nullptr, 0))
    return slow_dx(r, g, xhat, dres ? load(r.dres, c) : Pair{V{}, V{}});
  const Pair minus{-xhat.a, -xhat.b};
  const Pair t = fma(minus, r.c2, kCentre ? g - r.c1 : g);
  return dres ? fma(t, r.xhat.rstd, load_as<f>(r.dres, c)) : t * r.xhat.rstd;
}

// Weight-gradient sums of a pair of columns, held in register order.
struct WeightSums {
  Pair dw, db;
};
template <bool kCentre, GradForm f, bool kStream>
NORMKIT_INLINE void grad_pair(const GradRow& r, int64_t c, Pair weight, WeightSums& sums) {
  const Pair dy = load_as<f>(r.dy, c);
  const Pair xhat = xhat_of<kCentre, f.generic>(r.xhat, load_h<f>(r, c));
  if (!f.generic || r.dx.p) {
    const Pair dx = dx_of<kCentre, f>(r, c, g_of<f>(r, dy, weight), xhat);
    store<kStream, !f.generic>(f.generic ? r.dx : RowPtr{r.dx.p, false}, c, dx);
  }
  sums.dw = fma(dy, f.generic && r.round_xhat ? round_x(xhat) : xhat, sums.dw);
  sums.db = sums.db + dy;
}

// Sums of one weight-gradient block; null if not wanted.
struct BlockSums {
  C *dweight, *dbias;
  NORMKIT_INLINE WeightSums load(int64_t c) const {
    WeightSums s{};
    if (dweight) s.dw = {load_vec<V>(dweight + c), load_vec<V>(dweight + c + L)};
    if (dbias) s.db = {load_vec<V>(dbias + c), load_vec<V>(dbias + c + L)};
    return s;
  }
  NORMKIT_INLINE void store(int64_t c, const WeightSums& s) const {
    if (dweight) store_vec(s.dw.a, dweight + c), store_vec(s.dw.b, dweight + c + L);
    if (dbias) store_vec(s.db.a, dbias + c), store_vec(s.db.b, dbias + c + L);
  }
};

// Columns that a row takes at a time: their block sums stay in the L1 cache for the group's next row. (All rows of a
// group at once, column by column, would keep the sums in registers, but rows that lie a power of two apart share the
// cache's sets: measured 4-7x slower.)
inline constexpr int64_t kGradChunk = 512;

// Whole pairs of columns [c, end) of one row. `ahead_x`, `ahead_dy`: bytes from the row to the one that is read in its
// place by the next group, so that its memory is on the way while this one is written.
template <bool kCentre, GradForm f, bool kStream>
NORMKIT_INLINE void grad_pairs(const GradRow& row, int64_t c, int64_t end, const BlockSums block, int64_t ahead_x,
                               int64_t ahead_dy) {
  const GradRow r = row;  // a copy that no store can change: its fields stay in registers
  const char *x = r.src.x.p + ahead_x, *dy = r.dy.p + ahead_dy;
  for (; c < end; c += kPairElems) {
    if (kStream) {
      prefetch_far(x + c * static_cast<int64_t>(sizeof(X)));
      prefetch_far(dy + c * static_cast<int64_t>(sizeof(X)));
    }
    WeightSums sums = block.load(c);
    grad_pair<kCentre, f, kStream>(r, c, weight_of<f>(r, c), sums);
    block.store(c, sums);
  }
}

template <bool kCentre>
__attribute__((noinline)) void grad_partial(const GradRow& r, int64_t c, int64_t count, const BlockSums& block) {
  StagedGrad staged(r, c, count);
  WeightSums sums = block.load(c);
  grad_pair<kCentre, kGenericGrad, false>(staged.row, c, weight_of<kGenericGrad>(staged.row, c), sums);
  block.store(c, sums);
  staged.dx.flush(r.dx, c, count);
}

// Columns [c, end) of `count` rows, in rising order for every column.
template <bool kCentre, GradForm f, bool kStream>
NORMKIT_INLINE void grad_columns(const GradRow* rows, int count, int64_t c, int64_t end, const BlockSums& block,
                                 int64_t ahead_x, int64_t ahead_dy) {
  for (; c < end; c += kGradChunk) {
    const int64_t stop = min64(c + kGradChunk, end), whole = c + (stop - c) / kPairElems * kPairElems;
    for (int k = 0; k < count; ++k) {
      grad_pairs<kCentre, f, kStream>(rows[k], c, whole, block, ahead_x, ahead_dy);
      if (whole < stop) grad_partial<kCentre>(rows[k], whole, stop - whole, block);
    }
  }
}

NORMKIT_INLINE double get_stat(const Operand& o, int64_t row) {
  const char* p = o.data + row * o.step;
  return o.f32 ? static_cast<double>(*reinterpret_cast<const float*>(p)) : *reinterpret_cast<const double*>(p);
}
template <bool kCentre>
NORMKIT_INLINE RowStats saved_stats(const Backward& call, int64_t row) {
  if (!call.rstd.data) return row_stats<kCentre>(row_of(call.src, row), call.recipe, call.cols);
  RowStats s;
  s.rstd = s.rstd_out = held(get_stat(call.rstd, row));
  s.mean_out = kCentre ? get_stat(call.mean, row) : 0;
  set_mean(s, s.mean_out, 0);
  s.slow = !fits_compute_type(s);
  if (s.slow) s.m0 = s.mean_out, s.delta = 0;
  return s;
}

template <bool kCentre, GradForm f>
void backward_rows(const Backward& call, int64_t row0, int64_t row1, const BlockSums& block) {
  RowStats stats[kGradRows];
  const int64_t fit = kGradGroupBytes / (2 * call.cols * static_cast<int64_t>(sizeof(X)));
  const int64_t group = min64(kGradRows, fit > 1 ? fit : 1);
  for (int64_t row = row0; row < row1; row += group) {
    const int count = static_cast<int>(min64(group, row1 - row));
    GradRow rows[kGradRows];
    bool stream = call.stream, slow = false;
    for (int k = 0; k < count; ++k) {
      stats[k] = saved_stats<kCentre>(call, row + k);
      slow = slow || stats[k].slow;
      rows[k] = row_of(call, row + k, stats[k]);
      stream = stream && aligned(rows[k].dx);
    }
    for (int k = 0; k < count && call.dx.data; ++k)
      set_sums(rows[k], call.recipe, call.cols,
               slow ? grad_sums<kCentre, kGenericGrad>(rows[k], 0, call.cols)
                    : grad_sums<kCentre, f>(rows[k], 0, call.cols));
    const int64_t ahead_x = group * call.src.x.step, ahead_dy = group * call.dy.step;
    if (slow) {
      grad_columns<kCentre, kGenericGrad, false>(rows, count, 0, call.cols, block, 0, 0);
    } else if (stream) {
      grad_columns<kCentre, f, true>(rows, count, 0, call.cols, block, ahead_x, ahead_dy);
    } else {
      grad_columns<kCentre, f, false>(rows, count, 0, call.cols, block, 0, 0);
    }
  }
}
using BackwardRows = void (*)(const Backward&, int64_t, int64_t, const BlockSums&);

template <bool kCentre>
BackwardRows pick_backward(const Backward& call) {
  if constexpr (kFastFma) {
    const bool mixed = call.dy.f32 || call.dx.f32 || !call.dx.data || call.dres.f32 || call.weight.f32;
    const Recipe& r = call.recipe;
    const bool plain = !mixed && !call.src.residual.data && !r.offset && !r.round_xhat;
    if (plain && call.weight.data)
      return call.dres.data ? backward_rows<kCentre, GradForm{.weight = true, .dres = true}>
                            : backward_rows<kCentre, GradForm{.weight = true}>;
    if (plain && !call.dres.data) return backward_rows<kCentre, GradForm{}>;
  }
  return backward_rows<kCentre, kGenericGrad>;
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
