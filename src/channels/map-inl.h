// What is done with every element once its channel's numbers are known: out = fma(dy, d, fma(x - m0, k, b)), forward and
// backward, and the sums over dy that the backward needs.
#pragma once

#include "channels/statistics-inl.h"

namespace normkit::NORMKIT_SIMD {
namespace {

// ---- coefficients ----------------------------------------------------------------------------------------------------
// True if the compute type does not hold v, and not because it is infinite or NaN already.
NORMKIT_INLINE bool unfit(double v) {
  const double a = __builtin_fabs(v);
  return ((a != 0) & (a < 0x1p-126)) | (a > 0x1p127);
}

// Columns: arrays of C hold pairs of columns in register order. A last pair that overlaps the one before it has a place of
// its own behind the others.
NORMKIT_INLINE int64_t place_of_last(int64_t count) { return kEvenOdd ? padded(count) : count - kPairElems; }
void to_register_order(void* array, int64_t count) {
  C* p = static_cast<C*>(array);
  if (count >= kPairElems) store_sums(load_c(p + count - kPairElems), p + place_of_last(count));
  for (int64_t c = 0; c < count; c += kPairElems) store_sums(load_c(p + c), p + c);
}

NORMKIT_INLINE bool is_wide(double scaled, double shifted, double grad, double origin, double scale) {
  if (sizeof(C) == 8) return scale != 1;
  return unfit(scaled) | unfit(grad) | (__builtin_fabs(shifted) > 0x1p127) | (__builtin_fabs(origin) > 0x1p126);
}
// Loops over arrays that do not overlap, each simple enough to become vectors.
void narrow(Coefs& co, int64_t count, Layout layout) {
  C *m0 = static_cast<C*>(co.m0), *k = static_cast<C*>(co.k), *b = static_cast<C*>(co.b), *d = static_cast<C*>(co.d);
  const StatArrays& st = co.stats;
  const Affine& af = co.affine;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const double scaled = st.rstd[i] * af.k[i];
    m0[i] = static_cast<C>(st.m0[i]);
    k[i] = static_cast<C>(scaled);
    b[i] = static_cast<C>(af.b[i] - st.delta[i] * scaled);
    d[i] = static_cast<C>(af.d[i]);
  }
  const auto wide = [&](int64_t i) __attribute__((always_inline)) {
    const double scaled = st.rstd[i] * af.k[i];
    return is_wide(scaled, af.b[i] - st.delta[i] * scaled, af.d[i], st.m0[i], st.scale[i]);
  };
  int64_t any = 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) any += wide(i) ? 1 : 0;
  co.any_wide = any != 0;
  for (int64_t i = 0; any != 0 && i < padded(count); ++i) co.wide[i] = i < count && wide(i);
  for (int64_t i = count; i < padded(count); ++i) m0[i] = k[i] = b[i] = d[i] = 0;
  if (layout != Layout::columns || !kEvenOdd) return;
  void* const arrays[] = {co.m0, co.k, co.b, co.d};
  for (void* array : arrays) to_register_order(array, count);
}

// The map of the backward, dx = rstd * (g - c1 - xhat * c2) with g = dy * weight; c1 and c2 are the means of g and of
// g * xhat over each set of n elements, from the sums over its channels.
void grad_affine(const double* weight, const double* g, const double* gx, int64_t count, int64_t set_channels, double n,
                 const StatArrays& st, const Affine& out) {
#pragma GCC ivdep
  for (int64_t c = 0; c < count; ++c) out.b[c] = weight[c] * g[c], out.k[c] = weight[c] * gx[c];
  if (set_channels > 1)
    for (int64_t first = 0; first < count; first += set_channels) {
      double c1 = 0, c2 = 0;
      for (int64_t c = first; c < first + set_channels; ++c) c1 += out.b[c], c2 += out.k[c];
      for (int64_t c = first; c < first + set_channels; ++c) out.b[c] = c1, out.k[c] = c2;
    }
#pragma GCC ivdep
  for (int64_t c = 0; c < count; ++c) {
    const double rstd = st.rstd[c] * st.scale[c];
    out.d[c] = rstd * weight[c];
    out.k[c] = -(rstd * (out.k[c] / n));
    out.b[c] = -(rstd * (out.b[c] / n));
  }
}

// The coefficients of a pair of elements: of one channel, or of neighbouring ones.
struct PairCoefs {
  Pair m0, k, b, d;
};
NORMKIT_INLINE Pair splat_pair(const void* array, int64_t i) {
  const V v = splat(static_cast<const C*>(array)[i]);
  return {v, v};
}
NORMKIT_INLINE Pair pair_of(const void* array, int64_t c) { return load_sums(static_cast<const C*>(array) + c); }

template <bool kDy>
NORMKIT_INLINE Pair affine(const PairCoefs& co, Pair x, Pair dy) {
  const Pair v = fma(Pair{x.a - co.m0.a, x.b - co.m0.b}, co.k, co.b);
  if constexpr (!kDy) return v;
  return fma(dy, co.d, v);
}
// The elements of wide channels again, in f64. Element j belongs to channel `channel + j * step`.
template <bool kDy>
__attribute__((noinline)) Pair affine_wide(Pair fast, Pair x, Pair dy, const Coefs& co, int64_t channel, int step) {
  C out[kPairElems], xs[kPairElems], dys[kPairElems];
  store_c(fast, out);
  store_c(x, xs);
  store_c(dy, dys);
  for (int j = 0; j < kPairElems; ++j) {
    const int64_t i = channel + j * step;
    if (!co.wide[i]) continue;
    const double xhat =
        ((static_cast<double>(xs[j]) * co.stats.scale[i] - co.stats.m0[i]) - co.stats.delta[i]) * co.stats.rstd[i];
    double v = xhat * co.affine.k[i] + co.affine.b[i];
    if (kDy) v = static_cast<double>(dys[j]) * co.affine.d[i] + v;
    out[j] = static_cast<C>(v);
  }
  return load_c(out);
}

// ---- one run or position at a time -----------------------------------------------------------------------------------
// What a loop knows of its operands; `mixed` looks at each operand's type for every pair.
struct MapForm {
  bool dy = false, mixed = false, wide = false, stream = false;
};
struct MapRow {
  RowPtr x, dy, out;
};
template <bool kMixed>
NORMKIT_INLINE Pair load_as_x(RowPtr o, int64_t c) {
  return load(kMixed ? o : RowPtr{o.p, false}, c);
}
// The kinds of coefficients: of a channel in all its positions, or of a position's channels. Made from a number, so that
// what is not inlined makes them again: a reference would force them out of their registers.
struct OfChannel {
  PairCoefs pair;
  int64_t channel;
  static constexpr int kStep = 0;
  OfChannel(const Coefs& co, int64_t i)
      : pair{splat_pair(co.m0, i), splat_pair(co.k, i), splat_pair(co.b, i), splat_pair(co.d, i)}, channel(i) {}
  NORMKIT_INLINE PairCoefs at(int64_t) const { return pair; }
  NORMKIT_INLINE PairCoefs last() const { return pair; }
  NORMKIT_INLINE int64_t first(int64_t) const { return channel; }
};
struct OfColumns {
  const Coefs& co;
  int64_t count;
  static constexpr int kStep = 1;
  OfColumns(const Coefs& coefs, int64_t channels) : co(coefs), count(channels) {}
  NORMKIT_INLINE PairCoefs at(int64_t c) const {
    return {pair_of(co.m0, c), pair_of(co.k, c), pair_of(co.b, c), pair_of(co.d, c)};
  }
  NORMKIT_INLINE PairCoefs last() const { return at(place_of_last(count)); }
  NORMKIT_INLINE int64_t first(int64_t c) const { return c; }
};

template <MapForm f, class Of>
NORMKIT_INLINE Pair map_pair(const MapRow& r, int64_t c, const PairCoefs& pair, const Of& of, const Coefs& co) {
  const Pair x = load_as_x<f.mixed>(r.x, c), dy = f.dy ? load_as_x<f.mixed>(r.dy, c) : Pair{V{}, V{}};
  const Pair v = affine<f.dy>(pair, x, dy);
  if constexpr (f.wide) return affine_wide<f.dy>(v, x, dy, co, of.first(c), Of::kStep);
  return v;
}
template <MapForm f>
NORMKIT_INLINE void put_pair(const MapRow& r, int64_t c, Pair v) {
  store<f.stream, false>(f.mixed ? r.out : RowPtr{r.out.p, false}, c, v);
}
template <MapForm f, class Of>
__attribute__((noinline)) void map_partial(MapRow r, int64_t count, const Coefs& co, int64_t of_what) {
  const Of of(co, of_what);
  Staged x, dy, out;
  const MapRow t{x.in_repeated(r.x, 0, count), dy.in(r.dy, 0, count), out.out(r.out, 0)};
  constexpr MapForm any{.dy = f.dy, .mixed = true, .wide = f.wide};
  put_pair<any>(t, 0, map_pair<any>(t, 0, of.at(0), of, co));
  out.flush(r.out, 0, count);
}

// Elements up to the next address that a streamed store may write.
NORMKIT_INLINE int64_t to_alignment(RowPtr o) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(o.p) % kVecBytes) / elem_bytes(o);
}
// A run of at least a pair. A partial last pair overlaps the one before it; it is computed first: out may be x.
template <MapForm f, class Of>
NORMKIT_INLINE void map_run(const MapRow& r, int64_t len, const Of& of, const Coefs& co) {
  constexpr MapForm plain{.dy = f.dy, .mixed = f.mixed, .wide = f.wide};
  const int64_t last = len - kPairElems;
  const bool partial = len % kPairElems != 0 || (f.stream && !aligned(r.out));
  Pair end{};
  if (partial) end = map_pair<f>(r, last, of.last(), of, co);
  int64_t c = 0;
  if (f.stream && partial) {
    put_pair<plain>(r, 0, map_pair<f>(r, 0, of.at(0), of, co));
    c = to_alignment(r.out);
  }
#pragma GCC unroll 2
  for (; c <= last; c += kPairElems) put_pair<f>(r, c, map_pair<f>(r, c, of.at(c), of, co));
  if (partial) put_pair<plain>(r, last, end);
}
// Lines that are written past the cache and then once more cost more than they save: short runs that begin or end inside
// a register are not streamed.
inline constexpr int64_t kStreamBytes = 4 << 10;
template <MapForm f, class Of>
NORMKIT_INLINE void map_any_run(const MapRow& row, int64_t len, const Coefs& co, int64_t of_what) {
  const MapRow r = row;  // a copy that no store can change
  if (len < kPairElems) return map_partial<f, Of>(r, len, co, of_what);
  const Of of(co, of_what);
  constexpr MapForm plain{.dy = f.dy, .mixed = f.mixed, .wide = f.wide};
  const bool worth = (len % kPairElems == 0 && aligned(r.out)) || len * elem_bytes(r.out) >= kStreamBytes;
  if (f.stream && worth) return map_run<f>(r, len, of, co);
  map_run<plain>(r, len, of, co);
}

template <MapForm f>
void planes_of_form(const Map& m, const Coefs& co) {
  for (int64_t n = 0; n < m.sizes.n; ++n) {
    const Tensor x = m.x.at(n, 0), dy = m.dy.at(n, 0), out = m.out.at(n, 0);
    MapRow row{{x.data, x.f32}, {dy.data, dy.f32}, {out.data, out.f32}};
    for (int64_t c = 0; c < m.sizes.c; ++c) {
      map_any_run<f, OfChannel>(row, m.sizes.s, co, c);
      row.x.p += x.c;
      if (f.dy) row.dy.p += dy.c;
      row.out.p += out.c;
    }
  }
}
template <MapForm f>
void columns_of_form(const Map& m, const Coefs& co, int64_t row0, int64_t count) {
  for (int64_t row = row0; row < row0 + count; ++row) {
    Positions<1> x, dy, out;
    x.place(m.x, m.sizes, row);
    dy.place(m.dy, m.sizes, row);
    out.place(m.out, m.sizes, row);
    map_any_run<f, OfColumns>({x.p[0], dy.p[0], out.p[0]}, m.sizes.c, co, m.sizes.c);
  }
}

// Calls f with the form of a map as its template argument.
template <bool kDy, class F>
void with_form_of(const Map& m, const Coefs& co, const F& f) {
  const bool mixed = m.x.f32 || m.dy.f32 || m.out.f32;
  if (co.any_wide) return f.template operator()<MapForm{.dy = kDy, .mixed = true, .wide = true}>();
  if (mixed) return f.template operator()<MapForm{.dy = kDy, .mixed = true}>();
  if (m.stream) return f.template operator()<MapForm{.dy = kDy, .stream = true}>();
  f.template operator()<MapForm{.dy = kDy}>();
}
template <class F>
void with_form(const Map& m, const Coefs& co, const F& f) {
  m.dy.data ? with_form_of<true>(m, co, f) : with_form_of<false>(m, co, f);
  if (m.stream) stream_fence();
}
void map_planes(const Map& m, const Coefs& co) {
  with_form(m, co, [&]<MapForm f>() { planes_of_form<f>(m, co); });
}
void map_columns(const Map& m, const Coefs& co, int64_t row, int64_t count) {
  with_form(m, co, [&]<MapForm f>() { columns_of_form<f>(m, co, row, count); });
}

// ---- sums for the backward -------------------------------------------------------------------------------------------
// The sums of a run: dy, and dy times the affine of x.
template <bool kMixed, bool kWide>
struct GradRunOp {
  static constexpr int kSums = 2;
  Run<kMixed> x, dy;
  OfChannel of;
  const Coefs& co;

  NORMKIT_INLINE void add(int64_t c, PairRef s1, PairRef s2) const { add_sums(dy.get(c), value(x.get(c)), s1, s2); }
  NORMKIT_INLINE void add_partial(int64_t c, int64_t count, PairRef s1, PairRef s2) const {
    const PairMask first = first_elements(count);
    add_sums(keep(first, dy.get_partial(c, count)), keep(first, value(x.get_partial(c, count))), s1, s2);
  }

 private:
  NORMKIT_INLINE Pair value(Pair h) const {
    const Pair v = affine<false>(of.pair, h, h);
    return kWide ? affine_wide<false>(v, h, h, co, of.channel, OfChannel::kStep) : v;
  }
  static NORMKIT_INLINE void add_sums(Pair g, Pair v, PairRef s1, PairRef s2) {
    s1 = Pair(s1) + g;
    s2 = fma(g, v, Pair(s2));
  }
};
template <bool kMixed, bool kWide>
void run_grad_sums_of(const Map& m, const Coefs& co, double* g, double* gx) {
  for (int64_t c0 = 0; c0 < m.sizes.c; c0 += kGroupRows) {
    const int count = static_cast<int>(min64(kGroupRows, m.sizes.c - c0));
    for (int k = 0; k < count; ++k) g[c0 + k] = gx[c0 + k] = 0;
    for (int64_t s = 0; s < m.sizes.s; s += kBlock) {
      RowSums<kGroupRows> s1, s2;
      C sum1[kGroupRows], sum2[kGroupRows];
      for (int k = 0; k < count; ++k) {
        const int64_t c = c0 + k, room = room_of(m.x.c == m.dy.c ? m.x.c : 0, m.sizes.s, m.sizes.c - c);
        const Run<kMixed> x{{m.x.data + c * m.x.c, false}, room}, dy{{m.dy.data + c * m.dy.c, m.dy.f32}, room};
        const GradRunOp<kMixed, kWide> op{x, dy, OfChannel(co, c), co};
        put_sums(op, s, min64(s + kBlock, m.sizes.s), k, s1, s2);
      }
      s1.finish(count, sum1);
      s2.finish(count, sum2);
      for (int k = 0; k < count; ++k)
        g[c0 + k] += static_cast<double>(sum1[k]), gx[c0 + k] += static_cast<double>(sum2[k]);
    }
  }
}

template <int kRows, bool kMixed, bool kWide, bool kPartial>
NORMKIT_INLINE void add_grad_positions(const Positions<kRows>& x, const Positions<kRows>& dy, const Coefs& co,
                                       int64_t c, int64_t at, int64_t count, ColumnSums& sums) {
  const PairCoefs of = OfColumns(co, 0).at(c);
  Pair s1 = load_sums(sums.s1 + at), s2 = load_sums(sums.s2 + at);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const Pair h = kPartial ? x.template get_partial<kMixed>(i, c, count) : x.template get<kMixed>(i, c);
    const Pair g = kPartial ? dy.template get_partial<kMixed>(i, c, count) : dy.template get<kMixed>(i, c);
    Pair v = affine<false>(of, h, g);
    if (kWide) v = affine_wide<false>(v, h, g, co, c, OfColumns::kStep);
    s1 = s1 + g;
    s2 = fma(g, v, s2);
  }
  store_sums(s1, sums.s1 + at);
  store_sums(s2, sums.s2 + at);
}
template <int kRows, bool kMixed, bool kWide>
NORMKIT_INLINE void add_grad_positions(const Map& m, const Coefs& co, int64_t row, int64_t c0, int64_t c1,
                                       ColumnSums& sums) {
  Positions<kRows> x, dy;
  x.place(m.x, m.sizes, row);
  dy.place(m.dy, m.sizes, row);
  int64_t c = c0;
  for (; c + kPairElems <= c1; c += kPairElems)
    add_grad_positions<kRows, kMixed, kWide, false>(x, dy, co, c, c - c0, kPairElems, sums);
  if (c < c1) add_grad_positions<kRows, kMixed, kWide, true>(x, dy, co, c, c - c0, c1 - c, sums);
}
template <bool kMixed, bool kWide>
void block_grad_sums_of(const Map& m, const Coefs& co, int64_t row0, int64_t count, double* g, double* gx) {
  ColumnSums sums{};
  for (int64_t c0 = 0; c0 < m.sizes.c; c0 += kColumnChunk) {
    const int64_t c1 = min64(c0 + kColumnChunk, m.sizes.c);
    for (int64_t c = c0; c < c0 + padded(c1 - c0); ++c) g[c] = gx[c] = 0;
    for (int64_t first = 0; first < count; first += kSumRows) {
      const int64_t end = min64(first + kSumRows, count);
      int64_t i = first;
      for (; i + kRowsAtOnce <= end; i += kRowsAtOnce)
        add_grad_positions<kRowsAtOnce, kMixed, kWide>(m, co, row0 + i, c0, c1, sums);
      for (; i < end; ++i) add_grad_positions<1, kMixed, kWide>(m, co, row0 + i, c0, c1, sums);
      add_sums(sums.s1, c1 - c0, g + c0);
      add_sums(sums.s2, c1 - c0, gx + c0);
    }
  }
}

// Calls f<mixed, wide>.
template <class F>
void with_sum_form(const Map& m, const Coefs& co, const F& f) {
  if (co.any_wide) return f.template operator()<true, true>();
  if (m.dy.f32) return f.template operator()<true, false>();
  f.template operator()<false, false>();
}
void run_grad_sums(const Map& m, const Coefs& co, double* g, double* gx) {
  with_sum_form(m, co, [&]<bool kMixed, bool kWide>() { run_grad_sums_of<kMixed, kWide>(m, co, g, gx); });
}
void block_grad_sums(const Map& m, const Coefs& co, int64_t row, int64_t count, double* g, double* gx) {
  with_sum_form(m, co, [&]<bool kMixed, bool kWide>() { block_grad_sums_of<kMixed, kWide>(m, co, row, count, g, gx); });
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
