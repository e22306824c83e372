// Sweep 1: the statistics of a row, in the order of sums of docs/numerics.md.
#pragma once

#include "rows/source-inl.h"

namespace normkit::NORMKIT_SIMD {
namespace {

// D: double, or a vector of doubles with one row each.
template <class D>
NORMKIT_INLINE D max_or_nan(D a, D b) {
  return a < b ? b : a;
}

// ---- block sums ------------------------------------------------------------------------------------------------------
// The 64 lanes of the sums of one block, kept in memory between two calls of the sweep.
struct Lanes {
  alignas(64) V s1[2 * kPairs], s2[2 * kPairs];
};

// Pairs of accumulators that fit in registers for `kSums` sums; the sweep goes over its columns once per group.
template <int kSums>
inline constexpr int kGroup = kRegisters / 4 / kSums < kPairs ? kRegisters / 4 / kSums : kPairs;

// Fewer than 64 elements: every lane is met once at most.
template <class Op>
NORMKIT_INLINE void sweep_short(Lanes& lanes, int64_t c, int64_t end, const Op& op) {
#pragma GCC unroll 16
  for (int k = 0; k < kPairs; ++k) {
    V s1[2] = {}, s2[2] = {};
    const int64_t at = c + k * kPairElems;
    if (at + kPairElems <= end) {
      op.add(at, pair_at(s1, 0), pair_at(s2, 0));
    } else if (at < end) {
      op.add_partial(at, end - at, pair_at(s1, 0), pair_at(s2, 0));
    }
    if (Op::kSums == 2) pair_at(lanes.s1, k) = Pair{s1[0], s1[1]};
    pair_at(lanes.s2, k) = Pair{s2[0], s2[1]};
  }
}

// Adds elements [c, end) to the lanes (kFresh: to zero); c starts a group of 64. `Op` says what a pair at column c adds
// to its lanes of the two sums (add), the same for a last pair of `count` elements (add_partial), and how many sums it
// uses (kSums).
template <bool kFresh, class Op>
NORMKIT_INLINE void sweep(Lanes& lanes, int64_t c, int64_t end, const Op& op) {
  constexpr int kG = kGroup<Op::kSums>;
  const int64_t whole = c + ((end - c) & ~int64_t{kSumLanes - 1});
  for (int g = 0; g < kPairs; g += kG) {
    V s1[2 * kG], s2[2 * kG];
#pragma GCC unroll 16
    for (int k = 0; k < 2 * kG; ++k) {
      if (Op::kSums == 2) s1[k] = kFresh ? V{} : lanes.s1[2 * g + k];
      s2[k] = kFresh ? V{} : lanes.s2[2 * g + k];
    }
    for (int64_t i = c + g * kPairElems; i < whole; i += kSumLanes) {
#pragma GCC unroll 8
      for (int k = 0; k < kG; ++k) op.add(i + k * kPairElems, pair_at(s1, k), pair_at(s2, k));
    }
#pragma GCC unroll 16
    for (int k = 0; k < 2 * kG; ++k) {
      if (Op::kSums == 2) lanes.s1[2 * g + k] = s1[k];
      lanes.s2[2 * g + k] = s2[k];
    }
  }
  if (whole == end) return;
  int k = 0;
  for (c = whole; c + kPairElems <= end; c += kPairElems, ++k) op.add(c, pair_at(lanes.s1, k), pair_at(lanes.s2, k));
  if (c < end) op.add_partial(c, end - c, pair_at(lanes.s1, k), pair_at(lanes.s2, k));
}

// The two sums of one block as row `i` of a group. Short ones have lanes of their own, which stay in registers.
template <class Op, class Sums>
NORMKIT_INLINE void put_sums(const Op& op, int64_t c, int64_t end, int i, Sums& s1, Sums& s2) {
  const auto put = [&](const Lanes& lanes) __attribute__((always_inline)) {
    if (Op::kSums == 2) s1.put(i, lanes.s1);
    s2.put(i, lanes.s2);
  };
  if (end - c < kSumLanes) {
    Lanes lanes;
    sweep_short(lanes, c, end, op);
    put(lanes);
  } else {
    Lanes lanes;
    sweep<true>(lanes, c, end, op);
    put(lanes);
  }
}

// The sums of moments: distance from the shift, and its square (without a centre: the square alone, shift 0).
template <bool kCentre>
NORMKIT_INLINE void add_moments(Pair d, PairRef s1, PairRef s2) {
  // Half of the sums by a fused multiply-add with 1, the same bits: additions alone would fill their two ports.
  if (kCentre) s1 = {Pair(s1).a + d.a, kFastFma ? fma(d.b, splat(C{1}), Pair(s1).b) : Pair(s1).b + d.b};
  s2 = fma(d, d, Pair(s2));
}
// Of a row's h.
template <bool kCentre, Src kSrc>
struct MomentsOp {
  static constexpr int kSums = kCentre ? 2 : 1;
  SourceRow src;
  C shift_value;
  V shift = splat(shift_value);

  NORMKIT_INLINE void add(int64_t c, PairRef s1, PairRef s2) const {
    const Pair h = load<kSrc>(src, c);
    if (kSrc == Src::x_plus_x) store_x<false, true>(h, src.kept + c);
    add_pair(h, s1, s2);
  }
  // Missing elements must add nothing: they are set to the shift, so that their distance from it is 0.
  __attribute__((noinline)) void add_partial(int64_t c, int64_t count, PairRef s1, PairRef s2) const {
    C last[kPairElems];
    load_natural(src, c, count, last);
    for (int64_t j = count; j < kPairElems; ++j) last[j] = shift_value;
    if (kSrc == Src::x_plus_x) store_x(load_c(last), src.kept + c);
    add_pair(load_c(last), s1, s2);
  }

 private:
  NORMKIT_INLINE void add_pair(Pair h, PairRef s1, PairRef s2) const {
    add_moments<kCentre>(kCentre ? h - shift : h, s1, s2);
  }
};

// The shift of a block is the mean of its probes: its first 64 elements or, in a shorter block, all of them, as distances
// from the first one (so that a constant block has its element as its shift).
NORMKIT_INLINE bool few_probes(int64_t m) { return m < kSumLanes; }
NORMKIT_INLINE C probe_share(int64_t m) {
  return few_probes(m) ? C{1} / static_cast<C>(m) : static_cast<C>(1.0 / kSumLanes);
}
// Loads the probes; returns the first element where they are distances from it.
template <Src kSrc>
NORMKIT_INLINE C load_probes(const SourceRow& s, int64_t c, int64_t m, V (&p)[2 * kPairs]) {
  if (!few_probes(m)) {
    for (int k = 0; k < kPairs; ++k) pair_at(p, k) = load<kSrc>(s, c + k * kPairElems);
    return 0;
  }
  C last[kSumLanes];  // a partial pair (and room that GCC believes in); what is missing is at distance 0 from the first
  load_natural(s, c, min64(m, kPairElems), last);
  const C first = last[0];
  const V base = splat(first);
  for (int k = 0; k < kPairs; ++k) {
    const int64_t at = k * kPairElems;
    pair_at(p, k) = Pair{V{}, V{}};
    if (at + kPairElems <= m) {
      pair_at(p, k) = load<kSrc>(s, c + at) - base;
    } else if (at < m) {
      store_c({base, base}, last);
      load_natural(s, c + at, m - at, last);
      pair_at(p, k) = load_c(last) - base;
    }
  }
  return first;
}

// Moments of a block of m elements from its two sums.
template <bool kCentre, class M = Moments, class D = double>
NORMKIT_INLINE M moments_of(D m, D shift, D s1, D s2) {
  if (!kCentre) return {m, D{}, D{}, s2, D{}};
  const D delta = s1 / m;
  return {m, shift, delta, max_or_nan(s2 - s1 * delta, D{}), s1 * delta};
}

// Statistics of columns [begin, end) of a row, fed from left to right in portions that are multiples of 64.
template <bool kCentre, Src kSrc>
class Summer {
 public:
  NORMKIT_INLINE void start(const SourceRow& s, int64_t begin, int64_t end) {
    src_ = s;
    pos_ = begin;
    end_ = end;
    total_ = {};
  }
  NORMKIT_INLINE void feed(int64_t until) {
    until = min64(until, end_);
    while (pos_ < until) {
      const int64_t block = pos_ & ~(kBlock - 1), block_end = min64(block + kBlock, end_);
      if (pos_ == block) open_block(block_end - block);
      const int64_t stop = min64(until, block_end);
      sweep<false>(lanes_, pos_, stop, MomentsOp<kCentre, kSrc>{src_, shift_});
      pos_ = stop;
      if (pos_ == block_end) close_block(block_end - block);
    }
  }
  const Moments& total() const { return total_; }

 private:
  NORMKIT_INLINE void open_block(int64_t m) {
    shift_ = 0;
    if (kCentre) {
      V probes[2 * kPairs];
      const C first = load_probes<kSrc>(src_, pos_, m, probes);
      shift_ = sum_lanes(probes) * probe_share(m);
      if (few_probes(m)) shift_ += first;
    }
    for (int k = 0; k < 2 * kPairs; ++k) lanes_.s1[k] = lanes_.s2[k] = V{};
  }
  NORMKIT_INLINE void close_block(int64_t m) {
    const double s1 = kCentre ? static_cast<double>(sum_lanes(lanes_.s1)) : 0;
    const double s2 = static_cast<double>(sum_lanes(lanes_.s2));
    merge(total_, moments_of<kCentre>(static_cast<double>(m), static_cast<double>(shift_), s1, s2));
  }

  SourceRow src_;
  Lanes lanes_;
  C shift_ = 0;
  int64_t pos_ = 0, end_ = 0;
  Moments total_;
};

// ---- from the sums to rstd -------------------------------------------------------------------------------------------
// Statistics that f64 does not hold become its largest number: 0 times them stays 0. NaN stays NaN.
NORMKIT_INLINE double held(double v) { return v > __DBL_MAX__ ? __DBL_MAX__ : v; }
// 0 where the formula says 1/0: a constant row then gives xhat = 0 and finite gradients.
NORMKIT_INLINE double inverse(double d) { return d == 0 ? 0 : held(1 / d); }

// The variance or mean square; the sum of squares for l2_norm.
template <class D>
NORMKIT_INLINE D q_of(const Recipe& r, D m2, D n) {
  return r.sum ? m2 : m2 / n;
}

NORMKIT_INLINE void set_rstd(RowStats& s, double q, double eps, EpsKind kind) {
  if (kind == EpsKind::inside) {
    s.rstd = inverse(__builtin_sqrt(q + eps));
    return;
  }
  const double root = __builtin_sqrt(q);
  if (kind == EpsKind::outside) {
    s.rstd = inverse(root + eps);
    s.c = root == 0 ? 0 : held((root + eps) / root);
  } else {
    s.rstd = inverse(root < eps ? eps : root);
    s.c = root < eps ? 0 : 1;
  }
}

// The sums above cannot be trusted: the probes missed the mean by more than two standard deviations, squares
// overflowed, or they may have underflowed while eps does not dominate. Decided by the data alone.
template <class M, class D>
NORMKIT_INLINE auto needs_rescue(const M& m, D q, const Recipe& r) {
  constexpr double kTiny = sizeof(C) == 8 ? 0x1p-900 : 0x1p-100, kHuge = sizeof(C) == 8 ? 0x1p1023 : 0x1p127;
  const D base = q + (r.eps_kind == EpsKind::inside ? r.eps : r.eps * r.eps);
  return (!(m.slack <= 4 * m.m2)) | (!(m.m2 <= kHuge)) | (!(base >= kTiny));
}

// The elements that share statistics: a row, or `outer` times `inner` runs of `cols` elements each, a step apart.
struct Runs {
  SourceRow first;
  int64_t cols;
  int64_t outer = 1, outer_step = 0, inner = 1, inner_step = 0;  // steps in bytes of x

  int64_t count() const { return outer * inner * cols; }
};
// Also gives q (see q_of), if asked.
__attribute__((noinline)) RowStats rescue(const Runs& runs, const Recipe& r, double* q = nullptr);

// The mean as an element and what is left of it.
NORMKIT_INLINE void set_mean(RowStats& s, double origin, double shift) {
  s.mean_out = origin + shift;
  s.m0 = sizeof(C) == 8 ? origin : static_cast<double>(static_cast<float>(s.mean_out));
  s.delta = sizeof(C) == 8 ? shift : s.mean_out - s.m0;
}

// Statistics that f32 holds give xhat in f32, however they were found; others in f64. NaN takes the fast form. Without a
// rescue only an eps of this size leaves a rstd too small.
inline constexpr double kHugeEps = 0x1p120;
NORMKIT_INLINE bool fits_compute_type(const RowStats& s) {
  if (sizeof(C) == 8) return true;
  const double a = __builtin_fabs(s.rstd_out), m = __builtin_fabs(s.mean_out);
  return !((a != 0 && a < 0x1p-126) || a > 0x1p127 || m > 0x1p126);
}

NORMKIT_INLINE RowStats finish(const Runs& runs, const Recipe& r, const Moments& m) {
  RowStats s;
  const double q = q_of(r, m.m2, static_cast<double>(runs.count()));
  if (__builtin_expect(needs_rescue(m, q, r), 0)) return rescue(runs, r);
  set_rstd(s, q, r.eps, r.eps_kind);
  s.rstd_out = s.rstd;
  set_mean(s, m.origin, m.shift);
  if (__builtin_expect(r.eps > kHugeEps, 0)) s.slow = !fits_compute_type(s);
  return s;
}

template <bool kCentre, Src kSrc = Src::any>
NORMKIT_INLINE RowStats row_stats(const SourceRow& src, const Recipe& r, int64_t cols) {
  Summer<kCentre, kSrc> sum;
  sum.start(src, 0, cols);
  sum.feed(cols);
  return finish({src, cols}, r, sum.total());
}

// Statistics of up to kGroupRows rows of one block each: what a single row would do in a chain of shuffles, divisions and
// a square root, the group does in vectors of rows. The same arithmetic, so the same bits.
inline constexpr int kGroupRows = 8;
struct GroupSums {
  alignas(64) C shift[kGroupRows] = {}, s1[kGroupRows] = {}, s2[kGroupRows] = {};
};
template <bool kCentre>
NORMKIT_INLINE Moments moments_of(const GroupSums& g, int i, double m) {
  return moments_of<kCentre>(m, static_cast<double>(g.shift[i]), static_cast<double>(g.s1[i]),
                             static_cast<double>(g.s2[i]));
}
// `row(i)` gives row i: probes(m, p) is load_probes() of its first block, op(shift) adds to its sums. First the probes of all
// rows, then their sweeps: a sweep waits for its probes, not for others.
template <bool kCentre, class RowOf>
NORMKIT_INLINE void group_sums(const RowOf& row, int count, int64_t cols, GroupSums& out) {
  RowSums<kGroupRows> s1, s2;
  if (kCentre) {
    V probes[2 * kPairs];
    C first[kGroupRows] = {};
    for (int i = 0; i < count; ++i) {
      first[i] = row(i).probes(cols, probes);
      s1.put(i, probes);
    }
    s1.finish(count, out.shift);
    const C share = probe_share(cols);
    for (C& shift : out.shift) shift *= share;
    for (int i = 0; few_probes(cols) && i < kGroupRows; ++i) out.shift[i] += first[i];
  }
  for (int i = 0; i < count; ++i) put_sums(row(i).op(out.shift[i]), 0, cols, i, s1, s2);
  if (kCentre) s1.finish(count, out.s1);
  s2.finish(count, out.s2);
}
// A row whose source is of any kind.
template <bool kCentre, Src kSrc>
struct GroupRow {
  SourceRow src;
  NORMKIT_INLINE C probes(int64_t m, V (&p)[2 * kPairs]) const { return load_probes<kSrc>(src, 0, m, p); }
  NORMKIT_INLINE auto op(C shift) const { return MomentsOp<kCentre, kSrc>{src, shift}; }
};

// Moments of a vector of rows.
struct RowMoments {
  VD n, origin, shift, m2, slack;
};
// finish() for a group; by finish() itself if the recipe or a row asks for more, then it returns true.
template <bool kCentre, class SrcOf>
NORMKIT_INLINE bool finish_group(const GroupSums& g, int count, const Recipe& r, int64_t cols, const SrcOf& src,
                                 RowStats* stats) {
  const double n = static_cast<double>(cols);
  alignas(64) double rstd[kGroupRows], origin[kGroupRows], shift[kGroupRows];
  decltype(VD{} < VD{}) bad{};
  for (int i = 0; i < kGroupRows; i += kLanes<double>) {
    const RowMoments m = moments_of<kCentre, RowMoments>(splat(n), widen_lanes(g.shift + i), widen_lanes(g.s1 + i),
                                                         widen_lanes(g.s2 + i));
    const VD q = q_of(r, m.m2, m.n);
    bad |= needs_rescue(m, q, r);
    store_vec(q + r.eps, rstd + i);
    store_vec(m.origin, origin + i);
    store_vec(m.shift, shift + i);
  }
  for (double& e : rstd) e = 1 / __builtin_sqrt(e);
  int64_t any = 0;
  for (int i = 0; i < kLanes<double>; ++i) any |= bad[i];
  if (__builtin_expect((any != 0) | (r.eps_kind != EpsKind::inside) | (r.eps > kHugeEps), 0)) {
    for (int i = 0; i < count; ++i) stats[i] = finish({src(i), cols}, r, moments_of<kCentre>(g, i, n));
    return true;
  }
  for (int i = 0; i < count; ++i) {
    stats[i].rstd = stats[i].rstd_out = rstd[i];
    if (kCentre) set_mean(stats[i], origin[i], shift[i]);
  }
  return false;
}

// ---- rescue: two passes in f64, in the same order of sums --------------------------------------------------------------
// A sum over a row in f64 lanes: f(element of h, its lane's sum so far) is the lane's new sum.
template <class F>
inline void add_wide_sum(const SourceRow& src, int64_t cols, const F& f, double& total) {
  for (int64_t block = 0; block < cols; block += kBlock) {
    double lane[kSumLanes] = {};
    C h[kSumLanes];
    const int64_t end = min64(block + kBlock, cols);
    for (int64_t c = block; c < end; c += kSumLanes) {
      const int64_t count = min64(kSumLanes, end - c);
      load_natural(src, c, count, h);
      for (int64_t j = 0; j < count; ++j) lane[j] = f(static_cast<double>(h[j]), lane[j]);
    }
    for (int half = kSumLanes / 2; half > 0; half /= 2)
      for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
    total += lane[0];
  }
}
template <class F>
inline double wide_sum(const Runs& runs, const F& f) {
  double total = 0;
  for (int64_t o = 0; o < runs.outer; ++o)
    for (int64_t i = 0; i < runs.inner; ++i) {
      SourceRow run = runs.first;
      run.x.p += o * runs.outer_step + i * runs.inner_step;
      add_wide_sum(run, runs.cols, f, total);
    }
  return total;
}

// A power of two that brings f64 data near 1 when its squares would leave the range; 1 for all f32 data, whose squares
// f64 holds. Small data are only lifted as far as eps, lifted by the square, stays finite: beyond that eps dominates.
inline double rescue_scale(const Runs& runs, double eps) {
  if (sizeof(C) == 4) return 1;
  double largest = 0;
  wide_sum(runs, [&](double h, double) {
    const double a = __builtin_fabs(h);
    largest = a > largest ? a : largest;
    return 0.0;
  });
  if (!(largest < __builtin_inf()) || largest == 0) return 1;
  const int e = __builtin_ilogb(largest);
  if (e > 480) return __builtin_ldexp(1, -e);
  if (e >= -480) return 1;
  const int lift = -e < 1000 ? -e : 1000;
  const int room = eps > 0 ? (1000 - __builtin_ilogb(eps)) / 2 : 1000;
  return __builtin_ldexp(1, lift < room ? lift : room);
}

__attribute__((noinline)) RowStats rescue(const Runs& runs, const Recipe& r, double* q) {
  RowStats s;
  const double n = static_cast<double>(runs.count());
  s.scale = rescue_scale(runs, r.eps);
  if (r.centre) {
    s.m0 = wide_sum(runs, [&](double h, double acc) { return acc + h * s.scale; }) / n;
    const double rest = wide_sum(runs, [&](double h, double acc) { return acc + (h * s.scale - s.m0); }) / n;
    const double mean = s.m0 + rest;
    s.delta = (s.m0 - mean) + rest;  // 0 in a constant row, whose mean is its element
    s.m0 = mean;
  }
  const double m2 = wide_sum(runs, [&](double h, double acc) {
    const double d = (h * s.scale - s.m0) - s.delta;
    return acc + d * d;
  });
  const double eps = r.eps * s.scale;
  set_rstd(s, q_of(r, m2, n), r.eps_kind == EpsKind::inside ? eps * s.scale : eps, r.eps_kind);
  if (m2 == 0) {  // only eps is left: as it is, since the scaled one may have left the range
    set_rstd(s, 0, r.eps, r.eps_kind);
    s.m0 /= s.scale;
    s.delta /= s.scale;
    s.scale = 1;
  }
  if (q) *q = held(q_of(r, m2, n) / s.scale / s.scale);
  s.rstd_out = held(s.rstd * s.scale);
  s.mean_out = (s.m0 + s.delta) / s.scale;
  s.slow = s.scale != 1 || !fits_compute_type(s);
  if (!s.slow) set_mean(s, s.m0, s.delta);
  return s;
}

// ---- xhat ------------------------------------------------------------------------------------------------------------
// xhat = (h - m0) * rstd - delta * rstd. h - m0 is exact where h is near the mean, so that one rounding is left; a
// constant row has h = m0 and delta = 0, and gives 0.
struct XhatMaker {
  V m0, rstd, shift;     // shift = -delta * rstd
  const RowStats* slow;  // null: the fast form
};
NORMKIT_INLINE XhatMaker xhat_maker(const RowStats& s) {
  return {splat(static_cast<C>(s.m0)), splat(static_cast<C>(s.rstd)), splat(static_cast<C>(-(s.delta * s.rstd))),
          s.slow ? &s : nullptr};
}
__attribute__((noinline)) Pair slow_xhat(Pair h, const RowStats& s) {
  C buf[kPairElems];
  store_c(h, buf);
  for (C& e : buf) e = static_cast<C>(((static_cast<double>(e) * s.scale - s.m0) - s.delta) * s.rstd);
  return load_c(buf);
}
template <bool kCentre, bool kMaybeSlow = true>
NORMKIT_INLINE Pair xhat_of(const XhatMaker& k, Pair h) {
  if (kMaybeSlow && __builtin_expect(k.slow != nullptr, 0)) return slow_xhat(h, *k.slow);
  if constexpr (!kCentre) return h * k.rstd;
  return {fma(h.a - k.m0, k.rstd, k.shift), fma(h.b - k.m0, k.rstd, k.shift)};
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
