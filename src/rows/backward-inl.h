// Backward kernels. Per group of rows: the sums over each row, then one pass over the columns that writes dx and adds
// the group's rows, in rising order, to the weight gradients while those are in registers.
#pragma once

#include "rows/statistics-inl.h"

namespace normkit::NORMKIT_SIMD {
namespace {

inline constexpr int kGradRows = 4;  // rows of a group; divides kGradBlock

struct GradRow {
  SourceRow src;
  RowPtr dy, weight, dres, dx;
  XhatMaker xhat;
  const RowStats* stats;
  V offset;
  bool round_xhat, add_offset;
  V c1{}, c2{};          // dx = rstd * ((g - c1) - xhat * c2)
  double c1_d = 0, c2_d = 0;
};
NORMKIT_INLINE GradRow row_of(const Backward& call, int64_t row, const RowStats& stats) {
  const Recipe& r = call.recipe;
  return {row_of(call.src, row),  row_of(call.dy, row), row_of(call.weight, 0),
          row_of(call.dres, row), row_of(call.dx, row), xhat_maker(stats),
          &stats,                 splat(static_cast<C>(r.weight_offset)), r.round_xhat, r.offset};
}
NORMKIT_INLINE void set_sums(GradRow& r, const Recipe& recipe, int64_t cols, const GradSums& s) {
  const double n = static_cast<double>(cols);
  r.c1_d = s.g / n;
  r.c2_d = r.stats->c * (recipe.sum ? s.gx : s.gx / n);
  r.c1 = splat(static_cast<C>(r.c1_d));
  r.c2 = splat(static_cast<C>(r.c2_d));
}

NORMKIT_INLINE Pair g_of(const GradRow& r, int64_t c, Pair dy) {
  if (!r.weight.p) return dy;
  Pair w = load(r.weight, c);
  if (r.add_offset) w = w + r.offset;
  return dy * w;
}

// A pair of the row in a buffer, zero behind its end.
struct StagedGrad {
  Staged x, residual, dy, weight, dres, dx;
  GradRow row;
  StagedGrad(const GradRow& r, int64_t c, int64_t count) : row(r) {
    row.src.x = x.in(r.src.x, c, count);
    row.src.residual = residual.in(r.src.residual, c, count);
    row.dy = dy.in(r.dy, c, count);
    row.weight = weight.in(r.weight, c, count);
    row.dres = dres.in(r.dres, c, count);
    row.dx = dx.out(r.dx, c);
  }
};

template <bool kCentre>
struct GradOp {
  static constexpr int kSums = kCentre ? 2 : 1;
  const GradRow& r;

  NORMKIT_INLINE void add(int64_t c, PairRef sum_g, PairRef sum_gx) const { add_pair(r, c, sum_g, sum_gx); }
  __attribute__((noinline)) void add_partial(int64_t c, int64_t count, PairRef sum_g, PairRef sum_gx) const {
    const StagedGrad staged(r, c, count);
    add_pair(staged.row, c, sum_g, sum_gx);
  }

 private:
  static NORMKIT_INLINE void add_pair(const GradRow& r, int64_t c, PairRef sum_g, PairRef sum_gx) {
    const Pair g = g_of(r, c, load(r.dy, c));
    if constexpr (kCentre) sum_g = Pair(sum_g) + g;
    sum_gx = fma(g, xhat_of<kCentre>(r.xhat, load(r.src, c)), Pair(sum_gx));
  }
};

template <bool kCentre>
NORMKIT_INLINE GradSums grad_sums(const GradRow& r, int64_t begin, int64_t end) {
  GradSums total;
  for (int64_t c = begin; c < end; c += kBlock) {
    Lanes lanes;
    sweep<true>(lanes, c, min64(c + kBlock, end), GradOp<kCentre>{r});
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
    rb[j] = static_cast<C>(t * r.stats->rstd_out + static_cast<double>(rb[j]));
  }
  return load_c(rb);
}

template <bool kCentre>
NORMKIT_INLINE Pair dx_of(const GradRow& r, int64_t c, Pair dy, Pair xhat) {
  const Pair g = g_of(r, c, dy);
  if (__builtin_expect(r.xhat.slow != nullptr, 0)) return slow_dx(r, g, xhat, r.dres.p ? load(r.dres, c) : Pair{});
  const Pair minus{-xhat.a, -xhat.b};
  const Pair t = fma(minus, r.c2, kCentre ? g - r.c1 : g);
  return r.dres.p ? fma(t, r.xhat.rstd, load(r.dres, c)) : t * r.xhat.rstd;
}

// Weight-gradient sums of a pair of columns, held in register order.
struct WeightSums {
  Pair dw{}, db{};
};
template <bool kCentre, bool kStream>
NORMKIT_INLINE void grad_pair(const GradRow& r, int64_t c, WeightSums& sums) {
  const Pair dy = load(r.dy, c);
  const Pair xhat = xhat_of<kCentre>(r.xhat, load(r.src, c));
  if (r.dx.p) store<kStream>(r.dx, c, dx_of<kCentre>(r, c, dy, xhat));
  sums.dw = fma(dy, r.round_xhat ? round_x(xhat) : xhat, sums.dw);
  sums.db = sums.db + dy;
}

// dweight, dbias point at column 0 or are null.
template <bool kCentre, bool kStream>
NORMKIT_INLINE void grad_columns(const GradRow* rows, int count, int64_t c, int64_t end, C* dweight, C* dbias) {
  const auto weight_sums = [&](int64_t at, auto&& add) __attribute__((always_inline)) {
    WeightSums s;
    if (dweight) s.dw = {load_vec<V>(dweight + at), load_vec<V>(dweight + at + L)};
    if (dbias) s.db = {load_vec<V>(dbias + at), load_vec<V>(dbias + at + L)};
    for (int k = 0; k < count; ++k) add(rows[k], s);
    if (dweight) store_vec(s.dw.a, dweight + at), store_vec(s.dw.b, dweight + at + L);
    if (dbias) store_vec(s.db.a, dbias + at), store_vec(s.db.b, dbias + at + L);
  };
  for (; c + kPairElems <= end; c += kPairElems)
    weight_sums(c, [&](const GradRow& r, WeightSums& s) __attribute__((always_inline)) {
      grad_pair<kCentre, kStream>(r, c, s);
    });
  if (c == end) return;
  weight_sums(c, [&](const GradRow& r, WeightSums& s) {
    StagedGrad staged(r, c, end - c);
    grad_pair<kCentre, false>(staged.row, c, s);
    staged.dx.flush(r.dx, c, end - c);
  });
}

NORMKIT_INLINE double get_stat(const Operand& o, int64_t row) {
  const char* p = o.data + row * o.step;
  return o.f32 ? static_cast<double>(*reinterpret_cast<const float*>(p)) : *reinterpret_cast<const double*>(p);
}
template <bool kCentre>
NORMKIT_INLINE RowStats saved_stats(const Backward& call, int64_t row) {
  if (!call.rstd.data) return row_stats<kCentre>(row_of(call.src, row), call.recipe, call.cols);
  RowStats s;
  s.rstd = s.rstd_out = get_stat(call.rstd, row);
  s.mean_out = kCentre ? get_stat(call.mean, row) : 0;
  set_mean(s, s.mean_out, 0);
  s.slow = !fits_compute_type(s);
  if (s.slow) s.m0 = s.mean_out, s.delta = 0;
  return s;
}

template <bool kCentre>
void backward_rows(const Backward& call, int64_t row0, int64_t row1, void* dweight, void* dbias) {
  RowStats stats[kGradRows];
  for (int64_t row = row0; row < row1; row += kGradRows) {
    const int count = static_cast<int>(min64(kGradRows, row1 - row));
    GradRow rows[kGradRows];
    bool stream = call.stream;
    for (int k = 0; k < count; ++k) {
      stats[k] = saved_stats<kCentre>(call, row + k);
      rows[k] = row_of(call, row + k, stats[k]);
      if (call.dx.data) set_sums(rows[k], call.recipe, call.cols, grad_sums<kCentre>(rows[k], 0, call.cols));
      stream = stream && reinterpret_cast<uintptr_t>(rows[k].dx.p) % kVecBytes == 0;
    }
    if (stream) {
      grad_columns<kCentre, true>(rows, count, 0, call.cols, static_cast<C*>(dweight), static_cast<C*>(dbias));
    } else {
      grad_columns<kCentre, false>(rows, count, 0, call.cols, static_cast<C*>(dweight), static_cast<C*>(dbias));
    }
  }
  if (call.stream) stream_fence();
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
