// Statistics of sets: moments of runs (planes) or of columns of positions (columns), merged, and from them mean and rstd.
#pragma once

#include "channels/channels.h"
#include "rows/statistics-inl.h"

namespace normkit::NORMKIT_SIMD {
namespace {

using namespace normkit::channels;  // plain data only

NORMKIT_INLINE SourceRow source_of(const char* x) { return {{x, false}, {}, false, false, nullptr}; }

NORMKIT_INLINE void put_moments(const RowMoments& m, const MomentArrays& out, int64_t i) {
  store_vec(m.origin, out.origin + i);
  store_vec(m.shift, out.shift + i);
  store_vec(m.m2, out.m2 + i);
  store_vec(m.slack, out.slack + i);
}
// From the sums of as many sets as a vector of doubles holds.
NORMKIT_INLINE void put_moments(double n, const C* shift, const C* s1, const C* s2, const MomentArrays& out,
                                int64_t i) {
  put_moments(moments_of<true, RowMoments>(splat(n), widen_lanes(shift), widen_lanes(s1), widen_lanes(s2)), out, i);
}

// ---- planes ----------------------------------------------------------------------------------------------------------
// A run of an operand. Its last elements are fewer than a pair: where `room` says that memory goes on behind them, a whole
// pair is read, and what is too much masked by the caller.
template <bool kMixed>
struct Run {
  RowPtr p;
  int64_t room;  // elements that may be read from p on

  NORMKIT_INLINE Pair get(int64_t c) const { return load(kMixed ? p : RowPtr{p.p, false}, c); }
  NORMKIT_INLINE Pair get_partial(int64_t c, int64_t count) const {
    return __builtin_expect(c + kPairElems <= room, 1) ? get(c) : get_staged(p, c, count);
  }

 private:
  static __attribute__((noinline)) Pair get_staged(RowPtr p, int64_t c, int64_t count) {
    Staged s;
    return load(s.in_repeated(p, c, count), c);
  }
};
// Runs one behind the other make room for each other.
NORMKIT_INLINE int64_t room_of(int64_t step, int64_t len, int64_t runs_left) {
  return step == len * static_cast<int64_t>(sizeof(X)) ? runs_left * len : len;
}

struct RunMomentsOp {
  static constexpr int kSums = 2;
  Run<false> run;
  V shift;

  NORMKIT_INLINE void add(int64_t c, PairRef s1, PairRef s2) const { add_moments<true>(run.get(c) - shift, s1, s2); }
  NORMKIT_INLINE void add_partial(int64_t c, int64_t count, PairRef s1, PairRef s2) const {
    add_moments<true>(keep(first_elements(count), run.get_partial(c, count) - shift), s1, s2);
  }
};
struct RunOfGroup {
  Run<false> run;
  NORMKIT_INLINE auto op(C shift) const { return RunMomentsOp{run, splat(shift)}; }
  NORMKIT_INLINE C probes(int64_t m, V (&p)[2 * kPairs]) const {
    if (!few_probes(m)) {
      for (int k = 0; k < kPairs; ++k) pair_at(p, k) = run.get(k * kPairElems);
      return 0;
    }
    const C first = load_one(reinterpret_cast<const X*>(run.p.p));
    const V base = splat(first);
#pragma GCC unroll 16
    for (int k = 0; k < kPairs; ++k) {
      const int64_t c = k * kPairElems;
      if (c + kPairElems <= m) {
        pair_at(p, k) = run.get(c) - base;
      } else if (c < m) {
        pair_at(p, k) = keep(first_elements(m - c), run.get_partial(c, m - c) - base);
      } else {
        pair_at(p, k) = Pair{V{}, V{}};
      }
    }
    return first;
  }
};

// Runs of one block are taken in groups, as short rows are; what a group leaves behind its end is written over later.
void run_moments(const char* x, int64_t step, int64_t count, int64_t len, const MomentArrays& out) {
  if (len > kBlock) {
    for (int64_t i = 0; i < count; ++i) {
      Summer<true, Src::x> sum;
      sum.start(source_of(x + i * step), 0, len);
      sum.feed(len);
      const Moments m = sum.total();
      out.origin[i] = m.origin, out.shift[i] = m.shift, out.m2[i] = m.m2, out.slack[i] = m.slack;
    }
    return;
  }
  GroupSums sums{};
  for (int64_t i = 0; i < count; i += kGroupRows) {
    const auto run = [&](int k) __attribute__((always_inline)) {
      return RunOfGroup{{{x + (i + k) * step, false}, room_of(step, len, count - i - k)}};
    };
    group_sums<true>(run, static_cast<int>(min64(kGroupRows, count - i)), len, sums);
    for (int k = 0; k < kGroupRows; k += kLanes<double>)
      put_moments(static_cast<double>(len), sums.shift + k, sums.s1 + k, sums.s2 + k, out, i + k);
  }
}

// ---- columns ---------------------------------------------------------------------------------------------------------
// The byte offset of a position.
NORMKIT_INLINE int64_t offset_of(const Tensor& t, const Sizes& sizes, int64_t row) {
  return row / sizes.s * t.n + row % sizes.s * t.s;
}
// Columns whose sums stay in the L1 cache together; rows that are taken at once, so that a sum is loaded and stored once.
inline constexpr int64_t kColumnChunk = 1024;
inline constexpr int kRowsAtOnce = 4;

// One operand at a few positions, each a run of its channels. The next position follows behind the last channel, so that
// only columns which do not exist get something of it.
template <int kRows>
struct Positions {
  RowPtr p[kRows];
  int64_t room = 0;  // from the last position on

  void place(const Tensor& t, const Sizes& sizes, int64_t row) {
    for (int i = 0; i < kRows; ++i) p[i] = {t.data ? t.data + offset_of(t, sizes, row + i) : nullptr, t.f32};
    const int64_t step = sizes.c * elem_bytes(p[0]);
    const bool dense = t.s == step && (sizes.n == 1 || t.n == sizes.s * step);
    room = sizes.c * (dense ? sizes.n * sizes.s - row - kRows + 1 : 1);
  }
  template <bool kMixed>
  NORMKIT_INLINE Pair get(int i, int64_t c) const {
    return Run<kMixed>{p[i], room}.get(c);
  }
  template <bool kMixed>
  NORMKIT_INLINE Pair get_partial(int i, int64_t c, int64_t count) const {
    return Run<kMixed>{p[i], room}.get_partial(c, count);
  }
};

struct ColumnSums {
  alignas(64) C shift[kColumnChunk], s1[kColumnChunk], s2[kColumnChunk];  // pairs in register order
};
NORMKIT_INLINE Pair load_sums(const C* p) { return {load_vec<V>(p), load_vec<V>(p + L)}; }
NORMKIT_INLINE void store_sums(Pair v, C* p) {
  store_vec(v.a, p);
  store_vec(v.b, p + L);
}

// `get(i)` is the pair at position i; at most kProbes, the last one stands for those that are missing. Rounded to x's type:
// the distances of 16-bit data from it then have few digits, and their sums few roundings, which would all go one way.
template <class Get>
NORMKIT_INLINE Pair mean_of_probes(const Get& get, int64_t count) {
  V p[2 * kProbes];
  for (int i = 0; i < kProbes; ++i) pair_at(p, i) = get(static_cast<int>(min64(i, count - 1)));
#pragma GCC unroll 3
  for (int half = kProbes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) pair_at(p, i) = Pair(pair_at(p, i)) + Pair(pair_at(p, i + half));
  return round_x(Pair(pair_at(p, 0)) * splat(static_cast<C>(1.0 / kProbes)));
}

template <int kRows, bool kPartial>
NORMKIT_INLINE void add_positions(const Positions<kRows>& x, int64_t c, int64_t at, int64_t count, ColumnSums& sums) {
  const Pair shift = load_sums(sums.shift + at);
  Pair s1 = load_sums(sums.s1 + at), s2 = load_sums(sums.s2 + at);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const Pair h = kPartial ? x.template get_partial<false>(i, c, count) : x.template get<false>(i, c);
    const Pair d{h.a - shift.a, h.b - shift.b};
    s1 = s1 + d;
    s2 = fma(d, d, s2);
  }
  store_sums(s1, sums.s1 + at);
  store_sums(s2, sums.s2 + at);
}
template <int kRows>
NORMKIT_INLINE void add_positions(const Tensor& t, const Sizes& sizes, int64_t row, int64_t c0, int64_t c1,
                                  ColumnSums& sums) {
  Positions<kRows> x;
  x.place(t, sizes, row);
  int64_t c = c0;
  for (; c + kPairElems <= c1; c += kPairElems) add_positions<kRows, false>(x, c, c - c0, kPairElems, sums);
  if (c < c1) add_positions<kRows, true>(x, c, c - c0, c1 - c, sums);
}

// Adds sums in register order to totals in natural order.
void add_sums(C* sums, int64_t count, double* total) {
  for (int64_t c = 0; c < count; c += kPairElems) {
    C natural[kPairElems];
    store_c(load_sums(sums + c), natural);
    store_sums({V{}, V{}}, sums + c);
    for (int j = 0; j < kPairElems; ++j) total[c + j] += static_cast<double>(natural[j]);
  }
}

void open_columns(const Tensor& t, const Sizes& sizes, int64_t row, int64_t count, int64_t c0, int64_t c1,
                  ColumnSums& sums) {
  Positions<1> probe[kProbes];
  const int64_t probes = min64(kProbes, count);
  for (int64_t i = 0; i < probes; ++i) probe[i].place(t, sizes, row + i);
  int64_t c = c0;
  for (; c + kPairElems <= c1; c += kPairElems)
    store_sums(mean_of_probes([&](int i) { return probe[i].template get<false>(0, c); }, probes),
               sums.shift + (c - c0));
  if (c < c1)
    store_sums(mean_of_probes([&](int i) { return probe[i].template get_partial<false>(0, c, c1 - c); }, probes),
               sums.shift + (c - c0));
  for (c = c0; c < c1; c += kPairElems) {
    store_sums({V{}, V{}}, sums.s1 + (c - c0));
    store_sums({V{}, V{}}, sums.s2 + (c - c0));
  }
}

void block_moments(const Tensor& x, const Sizes& sizes, int64_t row, int64_t count, const MomentArrays& out) {
  ColumnSums sums;
  alignas(64) double s1[kColumnChunk], s2[kColumnChunk];
  for (int64_t c0 = 0; c0 < sizes.c; c0 += kColumnChunk) {
    const int64_t c1 = min64(c0 + kColumnChunk, sizes.c);
    open_columns(x, sizes, row, count, c0, c1, sums);
    for (int64_t c = 0; c < padded(c1 - c0); ++c) s1[c] = s2[c] = 0;
    for (int64_t first = 0; first < count; first += kSumRows) {
      const int64_t end = min64(first + kSumRows, count);
      int64_t i = first;
      for (; i + kRowsAtOnce <= end; i += kRowsAtOnce) add_positions<kRowsAtOnce>(x, sizes, row + i, c0, c1, sums);
      for (; i < end; ++i) add_positions<1>(x, sizes, row + i, c0, c1, sums);
      add_sums(sums.s1, c1 - c0, s1);
      add_sums(sums.s2, c1 - c0, s2);
    }
    const VD n = splat(static_cast<double>(count));
    for (int64_t c = 0; c < c1 - c0; c += kPairElems) {
      C shift[kPairElems];
      store_c(load_sums(sums.shift + c), shift);
      for (int j = 0; j < kPairElems; j += kLanes<double>)
        put_moments(
            moments_of<true, RowMoments>(n, widen_lanes(shift + j), load_vec<VD>(s1 + c + j), load_vec<VD>(s2 + c + j)),
            out, c0 + c + j);
    }
  }
}

// ---- sets ------------------------------------------------------------------------------------------------------------
// rows::merge() for many sets at once.
void merge_arrays(const MomentArrays& a, double na, const MomentArrays& b, double nb, int64_t count) {
  const double n = na + nb, share = nb / n, weight = na * share;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const double d = (b.origin[i] - a.origin[i]) + (b.shift[i] - a.shift[i]);
    a.shift[i] += d * share;
    a.m2[i] += b.m2[i] + d * d * weight;
    a.slack[i] += b.slack[i];
  }
}

void put_stats(const StatArrays& out, int64_t i, const RowStats& s, double var) {
  out.m0[i] = s.m0, out.delta[i] = s.delta, out.rstd[i] = s.rstd, out.scale[i] = s.scale, out.var[i] = var;
}

RowMoments moments_at(const MomentArrays& m, int64_t i, double n) {
  return {splat(n), load_vec<VD>(m.origin + i), load_vec<VD>(m.shift + i), load_vec<VD>(m.m2 + i),
          load_vec<VD>(m.slack + i)};
}
void finish_sets(const Sets& sets, const Recipe& r, int64_t count, const MomentArrays& m, const StatArrays& out) {
  const double n = static_cast<double>(sets.elems());
  int64_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double q = m.m2[i] / n, mean = m.origin[i] + m.shift[i];
    const double m0 = sizeof(C) == 8 ? m.origin[i] : static_cast<double>(static_cast<float>(mean));
    out.var[i] = q;
    out.rstd[i] = 1 / __builtin_sqrt(q + r.eps);
    out.m0[i] = m0;
    out.delta[i] = sizeof(C) == 8 ? m.shift[i] : mean - m0;
    out.scale[i] = 1;
  }
  for (int64_t i = 0; i < count; i += kLanes<double>) {
    const auto flags = needs_rescue(moments_at(m, i, n), load_vec<VD>(out.var + i), r);
    for (int64_t j = 0; j < min64(kLanes<double>, count - i); ++j) bad |= flags[static_cast<int>(j)];
  }
  if (__builtin_expect(bad == 0, 1)) return;
  for (int64_t i = 0; i < count; ++i) {
    const Moments one{n, m.origin[i], m.shift[i], m.m2[i], m.slack[i]};
    if (!needs_rescue(one, out.var[i], r)) continue;
    const Runs runs{
        source_of(sets.x + i * sets.step), sets.cols, sets.outer, sets.outer_step, sets.inner, sets.inner_step};
    double q;
    const RowStats s = rescue(runs, r, &q);
    put_stats(out, i, s, q);
  }
}

void take_stats(const double* mean, const double* rstd, int64_t count, const StatArrays& out) {
  for (int64_t i = 0; i < count; ++i) {
    RowStats s;
    s.rstd = s.rstd_out = held(rstd[i]);
    set_mean(s, mean[i], 0);
    if (!fits_compute_type(s)) s.m0 = s.mean_out, s.delta = 0;
    put_stats(out, i, s, 0);
  }
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
