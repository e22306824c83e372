// Backward kernels. Pass 1 sums over each row of a group, pass 2 goes over its columns, writes dx and adds the rows, in
// rising order, to the sums of the weight gradients. Out of cache pass 1 of the next group runs beside pass 2.
#pragma once

#include "rows/statistics-inl.h"

namespace normkit::NORMKIT_SIMD {
namespace {

// Rows of a group: at most kGradRows (divides kGradBlock), and as many as stay in a quarter of the L1 cache with their dy.
inline constexpr int kGradRows = 4;
inline constexpr int64_t kGradGroupBytes = 8 << 10;

// Which optional operands a loop handles, as Form does for forward: one loop each for the common combinations.
struct GradForm {
  bool generic = false;
  bool weight = false, dres = false;
  bool sums = false;  // of dweight, and of dbias where a mean is subtracted
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
// Fills a row in its place, field by field: a copy of the whole would wait for the stores that made it.
NORMKIT_INLINE void set_row(GradRow& r, const Backward& call, int64_t row, const RowStats& stats) {
  r.src = row_of(call.src, row);
  r.dy = row_of(call.dy, row);
  r.weight = row_of(call.weight, 0);
  r.dres = row_of(call.dres, row);
  r.dx = row_of(call.dx, row);
  r.xhat = xhat_maker(stats);
  r.stats = &stats;
  r.offset = splat(static_cast<C>(call.recipe.weight_offset));
  r.round_xhat = call.recipe.round_xhat;
  r.add_offset = call.recipe.offset;
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
  const GradRow& r;

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
  if (f.generic || f.sums) sums.dw = fma(dy, f.generic && r.round_xhat ? round_x(xhat) : xhat, sums.dw);
  if (f.generic || (f.sums && kCentre)) sums.db = sums.db + dy;
}

// Sums of one weight-gradient block; null if not wanted.
struct BlockSums {
  C *dweight, *dbias;
  template <bool kCentre, GradForm f>
  NORMKIT_INLINE WeightSums load(int64_t c) const {
    WeightSums s{};
    if (f.generic ? dweight != nullptr : f.sums) s.dw = load_sum(dweight + c);
    if (f.generic ? dbias != nullptr : f.sums && kCentre) s.db = load_sum(dbias + c);
    return s;
  }
  template <bool kCentre, GradForm f>
  NORMKIT_INLINE void store(int64_t c, const WeightSums& s) const {
    if (f.generic ? dweight != nullptr : f.sums) store_sum(s.dw, dweight + c);
    if (f.generic ? dbias != nullptr : f.sums && kCentre) store_sum(s.db, dbias + c);
  }

 private:
  static NORMKIT_INLINE Pair load_sum(const C* p) { return {load_vec<V>(p), load_vec<V>(p + L)}; }
  static NORMKIT_INLINE void store_sum(Pair v, C* p) { store_vec(v.a, p), store_vec(v.b, p + L); }
};

// Columns of one turn of the overlapped loop, as in forward; the block sums stay in the L1 cache for the next rows.
inline constexpr int64_t kGradChunk = 1024;
// Rows that take a column together, with their block sums in registers. No more: rows that lie a power of two apart share
// the cache's sets (measured with 4: 4-7x slower). One where dx is streamed: two streams that take turns drain the write
// buffers.
inline constexpr int kTogether = 2;

// Bytes from what pass 2 reads to what pass 1 of the next group reads soon, so that its memory is on the way while dx is
// written. Only an address: it may lie behind the last row.
struct GradAhead {
  int64_t x = 0, dy = 0;
};
NORMKIT_INLINE GradAhead ahead_of(const Backward& call, int64_t rows, int64_t elems) {
  const int64_t bytes = elems * static_cast<int64_t>(sizeof(X));
  return {rows * call.src.x.step + bytes, rows * call.dy.step + bytes};
}

// Whole pairs of columns [c, end) of kRows rows.
template <bool kCentre, GradForm f, bool kStream, int kRows>
NORMKIT_INLINE void grad_pairs(const GradRow* rows, int64_t c, int64_t end, const BlockSums block, GradAhead ahead) {
  static_assert(kRows == 1 || (kRows == kTogether && !kStream));
  const GradRow first = rows[0], second = rows[kRows - 1];  // copies that no store can change: they stay in registers
  for (; c < end; c += kPairElems) {
    if (kStream) {
      prefetch_far(first.src.x.p + ahead.x + c * static_cast<int64_t>(sizeof(X)));
      prefetch_far(first.dy.p + ahead.dy + c * static_cast<int64_t>(sizeof(X)));
    }
    WeightSums sums = block.load<kCentre, f>(c);
    const Pair weight = weight_of<f>(first, c);
    grad_pair<kCentre, f, kStream>(first, c, weight, sums);
    if (kRows == kTogether) grad_pair<kCentre, f, kStream>(second, c, weight, sums);
    block.store<kCentre, f>(c, sums);
  }
}

template <bool kCentre>
__attribute__((noinline)) void grad_partial(const GradRow& r, int64_t c, int64_t count, const BlockSums& block) {
  StagedGrad staged(r, c, count);
  WeightSums sums = block.load<kCentre, kGenericGrad>(c);
  grad_pair<kCentre, kGenericGrad, false>(staged.row, c, weight_of<kGenericGrad>(staged.row, c), sums);
  block.store<kCentre, kGenericGrad>(c, sums);
  staged.dx.flush(r.dx, c, count);
}

// Columns [c, end) of `count` rows, in rising order for every column.
template <bool kCentre, GradForm f, bool kStream>
NORMKIT_INLINE void grad_columns(const GradRow* rows, int count, int64_t c, int64_t end, const BlockSums& block,
                                 GradAhead ahead = {}) {
  const int64_t whole = c + (end - c) / kPairElems * kPairElems;
  int k = 0;
  if constexpr (!kStream)
    for (; k + kTogether <= count; k += kTogether)
      grad_pairs<kCentre, f, kStream, kTogether>(rows + k, c, whole, block, ahead);
  for (; k < count; ++k) grad_pairs<kCentre, f, kStream, 1>(rows + k, c, whole, block, ahead);
  if (whole == end) return;
  for (k = 0; k < count; ++k) grad_partial<kCentre>(rows[k], whole, end - whole, block);
}

// Only the generic loops form xhat in f64, which slow rows need.
NORMKIT_INLINE bool any_slow(const GradRow* rows, int count) {
  bool slow = false;
  for (int k = 0; k < count; ++k) slow = slow || rows[k].stats->slow;
  return slow;
}
// The same for any rows. Out of line: every form needs the generic one.
template <bool kCentre, GradForm f>
__attribute__((noinline)) void any_columns(const GradRow* rows, int count, int64_t c, int64_t end,
                                           const BlockSums& block) {
  if (!f.generic && any_slow(rows, count)) return any_columns<kCentre, kGenericGrad>(rows, count, c, end, block);
  grad_columns<kCentre, f, false>(rows, count, c, end, block);
}

// The caller's NaN may have any bits; the short rounding to bf16 wants none below the upper 16 (round_bf16_bits).
NORMKIT_INLINE double get_stat(const Operand& o, int64_t row) {
  const char* p = o.data + row * o.step;
  const double v =
      o.f32 ? static_cast<double>(*reinterpret_cast<const float*>(p)) : *reinterpret_cast<const double*>(p);
  return v == v ? v : __builtin_nan("");
}
// In place: a copy would wait for the stores that made it.
template <bool kCentre>
NORMKIT_INLINE void get_stats(RowStats& s, const Backward& call, int64_t row) {
  if (!call.rstd.data) {
    s = row_stats<kCentre>(row_of(call.src, row), call.recipe, call.cols);
    return;
  }
  s.scale = s.c = 1;
  s.rstd = s.rstd_out = held(get_stat(call.rstd, row));
  set_mean(s, kCentre ? get_stat(call.mean, row) : 0, 0);
  s.slow = !fits_compute_type(s);
  if (s.slow) s.m0 = s.mean_out, s.delta = 0;
}

// A few rows on their way: first the sums over them, then their columns.
template <bool kCentre>
class GradGroup {
 public:
  int count = 0;
  bool slow = false;
  GradRow rows[kGradRows];

  void open(const Backward& call, int64_t row, int64_t row1, int64_t group) {
    count = static_cast<int>(min64(group, row1 - row));
    for (int k = 0; k < count; ++k) {
      get_stats<kCentre>(stats_[k], call, row + k);
      set_row(rows[k], call, row + k, stats_[k]);
      totals_[k] = {};
    }
    slow = any_slow(rows, count);
  }
  // Adds columns [c, end) of one block to the rows' sums; end is a multiple of 64 or the end of the rows.
  template <GradForm f>
  __attribute__((noinline)) void sum(int64_t c, int64_t end, int64_t cols) {
    for (int k = 0; k < count; ++k) {
      if (!f.generic && slow) {
        sum_row<kGenericGrad>(k, c, end);
      } else {
        sum_row<f>(k, c, end);
      }
    }
    if (end % kBlock == 0 || end == cols) close_block();
  }
  void set_sums(const Backward& call) {
    for (int k = 0; k < count; ++k) NORMKIT_SIMD::set_sums(rows[k], call.recipe, call.cols, totals_[k]);
  }

 private:
  template <GradForm f>
  NORMKIT_INLINE void sum_row(int k, int64_t c, int64_t end) {
    if (c % kBlock == 0) {
      sweep<true>(lanes_[k], c, end, GradOp<kCentre, f>{rows[k]});
    } else {
      sweep<false>(lanes_[k], c, end, GradOp<kCentre, f>{rows[k]});
    }
  }
  void close_block() {
    RowSums<kGradRows> g, gx;
    C sum_g[kGradRows] = {}, sum_gx[kGradRows];
    for (int k = 0; k < count; ++k) {
      if (kCentre) g.put(k, lanes_[k].s1);
      gx.put(k, lanes_[k].s2);
    }
    if (kCentre) g.finish(count, sum_g);
    gx.finish(count, sum_gx);
    for (int k = 0; k < count; ++k) {
      totals_[k].g += static_cast<double>(sum_g[k]);
      totals_[k].gx += static_cast<double>(sum_gx[k]);
    }
  }

  RowStats stats_[kGradRows];
  Lanes lanes_[kGradRows];
  GradSums totals_[kGradRows];
};

template <bool kCentre, GradForm f, bool kStream>
void backward_groups(const Backward& call, int64_t row0, int64_t row1, const BlockSums& block) {
  GradGroup<kCentre> groups[2];
  const int64_t fit = kGradGroupBytes / (2 * call.cols * static_cast<int64_t>(sizeof(X)));
  const int64_t group = min64(kGradRows, fit > 1 ? fit : 1);
  const GradAhead ahead = ahead_of(call, group, kGradChunk);
  for (int64_t row = row0; row < row1; row += group) {
    const int64_t turn = (row - row0) / group % 2;
    GradGroup<kCentre>&now = groups[turn], &next = groups[1 - turn];
    const bool more = kStream && row + group < row1;
    if (!kStream || row == row0) {
      now.open(call, row, row1, group);
      for (int64_t c = 0; c < call.cols && call.dx.data; c += kBlock)
        now.template sum<f>(c, min64(c + kBlock, call.cols), call.cols);
      now.set_sums(call);
    }
    if (more) next.open(call, row + group, row1, group);
    for (int64_t c = 0; c < call.cols; c += kGradChunk) {
      const int64_t end = min64(c + kGradChunk, call.cols);
      if (more) next.template sum<f>(c, end, call.cols);
      if (now.slow) {
        any_columns<kCentre, kGenericGrad>(now.rows, now.count, c, end, block);
      } else {
        grad_columns<kCentre, f, kStream>(now.rows, now.count, c, end, block, ahead);
      }
    }
    if (more) next.set_sums(call);
  }
}
template <bool kCentre, GradForm f>
void backward_rows(const Backward& call, int64_t row0, int64_t row1, const BlockSums& block) {
  if (call.stream && aligned(row_of(call.dx, row0)) && call.dx.step % kVecBytes == 0)
    return backward_groups<kCentre, f, true>(call, row0, row1, block);
  backward_groups<kCentre, f, false>(call, row0, row1, block);
}
// Sums over columns [c0, c1) of one row, a block or its part at the end of the row.
template <bool kCentre, GradForm f>
GradSums part_sums(const Backward& call, int64_t row, int64_t c0, int64_t c1, const RowStats& stats) {
  if (!f.generic && stats.slow) return part_sums<kCentre, kGenericGrad>(call, row, c0, c1, stats);
  GradRow r;
  Lanes lanes;
  set_row(r, call, row, stats);
  sweep<true>(lanes, c0, c1, GradOp<kCentre, f>{r});
  return {kCentre ? static_cast<double>(sum_lanes(lanes.s1)) : 0, static_cast<double>(sum_lanes(lanes.s2))};
}

// The loops of one form.
struct GradLoops {
  void (*rows)(const Backward&, int64_t row0, int64_t row1, const BlockSums&);
  GradSums (*part)(const Backward&, int64_t row, int64_t c0, int64_t c1, const RowStats&);
  void (*columns)(const GradRow*, int count, int64_t c, int64_t end, const BlockSums&);
};
template <bool kCentre, GradForm f>
inline constexpr GradLoops kGradLoops{backward_rows<kCentre, f>, part_sums<kCentre, f>, any_columns<kCentre, f>};

template <bool kCentre, GradForm f, GradForm... rest>
const GradLoops& pick_form(const GradForm& wanted) {
  if (f == wanted) return kGradLoops<kCentre, f>;
  if constexpr (sizeof...(rest) > 0) return pick_form<kCentre, rest...>(wanted);
  return kGradLoops<kCentre, kGenericGrad>;
}
// The form of a call; generic when an operand has a type of its own, or another set of gradients is wanted.
inline GradForm form_of(const Backward& call, const BlockSums& block) {
  GradForm f;
  f.weight = call.weight.data;
  f.dres = call.dres.data;
  f.sums = block.dweight;
  const Recipe& r = call.recipe;
  const bool mixed = call.dy.f32 || call.dx.f32 || !call.dx.data || call.dres.f32 || call.weight.f32 ||
                     call.src.residual.data || r.offset || r.round_xhat ||
                     (block.dbias != nullptr) != (f.sums && r.centre);
  return mixed ? kGenericGrad : f;
}
template <bool kCentre>
const GradLoops& pick_backward(const GradForm& form) {
  if constexpr (!kFastFma) return kGradLoops<kCentre, kGenericGrad>;
  constexpr GradForm w{.weight = true}, wr{.weight = true, .dres = true};
  constexpr GradForm ws{.weight = true, .sums = true}, wrs{.weight = true, .dres = true, .sums = true};
  return pick_form<kCentre, GradForm{}, w, wr, ws, wrs>(form);
}
inline const GradLoops& pick_grad_loops(const Backward& call, const GradForm& form) {
  return call.recipe.centre ? pick_backward<true>(form) : pick_backward<false>(form);
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
