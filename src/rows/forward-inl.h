// Forward kernels: sweep 1 (statistics-inl.h) gives a row's statistics, sweep 2 (here) its y. Short rows are taken in
// groups; for long ones sweep 1 of a row runs beside sweep 2 of the row before.
#pragma once

#include "rows/statistics-inl.h"

namespace normkit::NORMKIT_SIMD {
namespace {

// Columns of one turn of the overlapped loop: sweep 1 of the next row, then sweep 2 of this one.
inline constexpr int64_t kChunk = 1024;
// Rows of one block that lie in the cache, and short rows, are taken in groups instead: as many as stay in half the L1
// cache until sweep 2.
inline constexpr int64_t kShortRowBytes = 2 << 10, kGroupBytes = 12 << 10;

struct ForwardRow {
  SourceRow src;
  RowPtr weight, bias, y, h;
  XhatMaker xhat;
  V offset;
  bool round_xhat, add_offset;
};
NORMKIT_INLINE ForwardRow row_of(const Forward& call, int64_t row, const RowStats& stats) {
  const Recipe& r = call.recipe;
  return {row_of(call.src, row),
          row_of(call.weight, 0),
          row_of(call.bias, 0),
          row_of(call.y, row),
          row_of(call.h, row),
          xhat_maker(stats),
          splat(static_cast<C>(r.weight_offset)),
          r.round_xhat,
          r.offset};
}

NORMKIT_INLINE void advance(RowPtr& p, int64_t step) { p.p = p.p ? p.p + step : nullptr; }
NORMKIT_INLINE void advance(ForwardRow& r, const Forward& call) {
  advance(r.src.x, call.src.x.step);
  advance(r.src.residual, call.src.residual.step);
  advance(r.y, call.y.step);
  advance(r.h, call.h.step);
}

template <Form f>
NORMKIT_INLINE Pair load_param(RowPtr o, int64_t c) {
  if constexpr (f.generic) return load(o, c);
  return load(RowPtr{o.p, f.params_f32}, c);
}
template <Form f, bool kStream>
NORMKIT_INLINE void store_as(RowPtr o, int64_t c, Pair v) {
  store<kStream, !f.generic && !f.params_f32>(f.generic ? o : RowPtr{o.p, false}, c, v);
}

// The row that sweep 1 reads soon: asking memory for it between the stores of sweep 2 keeps reads and writes under way
// together. Only an address: it may lie behind the last row.
struct Ahead {
  const char *x, *residual;
};
NORMKIT_INLINE Ahead ahead_of(const Forward& call, int64_t row, int64_t elems) {
  const int64_t bytes = elems * static_cast<int64_t>(sizeof(X));
  return {call.src.x.data + row * call.src.x.step + bytes,
          call.src.residual.data + row * call.src.residual.step + bytes};
}

// Rows whose h was kept by sweep 1: this is h, and it is copied to residual_out as it is.
NORMKIT_INLINE void read_kept(ForwardRow& r, const X* kept) {
  r.src.x.p = reinterpret_cast<const char*>(kept);
  r.src.residual.p = nullptr;
}

template <bool kCentre, Form f, bool kStream>
NORMKIT_INLINE void apply_pair(const ForwardRow& r, int64_t c) {
  const Pair h = load<f.generic ? Src::any : Src::x>(r.src, c);
  if (f.generic && r.h.p) store_as<f, kStream>(r.h, c, h);
  Pair v = xhat_of<kCentre, f.generic>(r.xhat, h);
  if (f.generic ? r.round_xhat : f.round_xhat) v = round_x<!f.generic>(v);
  const bool bias = f.generic ? r.bias.p != nullptr : f.bias;
  if (f.generic ? r.weight.p != nullptr : f.weight) {
    Pair w = load_param<f>(r.weight, c);
    if (f.generic ? r.add_offset : f.offset) w = w + r.offset;
    v = bias ? fma(v, w, load_param<f>(r.bias, c)) : v * w;
  } else if (bias) {
    v = v + load_param<f>(r.bias, c);
  }
  store_as<f, kStream>(r.y, c, v);
}

template <bool kCentre>
__attribute__((noinline)) void apply_partial(const ForwardRow& r, int64_t c, int64_t count) {
  Staged x, residual, weight, bias, y, h;
  ForwardRow t = r;
  t.src.x = x.in(r.src.x, c, count);
  t.src.residual = residual.in(r.src.residual, c, count);
  t.weight = weight.in(r.weight, c, count);
  t.bias = bias.in(r.bias, c, count);
  t.y = y.out(r.y, c);
  t.h = h.out(r.h, c);
  apply_pair<kCentre, kGeneric, false>(t, c);
  y.flush(r.y, c, count);
  h.flush(r.h, c, count);
}

template <bool kCentre, Form f, bool kStream>
NORMKIT_INLINE void apply_pairs(const ForwardRow& row, int64_t c, int64_t end, const Ahead& ahead) {
  const ForwardRow r = row;  // a copy that no store can change: its fields stay in registers
  // h by itself: two streams of half cache lines that take turns drain the write buffers (measured: 6x slower in bf16).
  if (f.residual && r.h.p)
    for (int64_t i = c; i < end; i += kPairElems)
      copy_x<kStream>(reinterpret_cast<const X*>(r.src.x.p) + i,
                      const_cast<char*>(r.h.p) + i * static_cast<int64_t>(sizeof(X)));
#pragma GCC unroll 2
  for (; c < end; c += kPairElems) {
    if (kStream) prefetch(ahead.x + c * static_cast<int64_t>(sizeof(X)));
    if (kStream && src_of(f) != Src::x) prefetch(ahead.residual + c * static_cast<int64_t>(sizeof(X)));
    apply_pair<kCentre, f, kStream>(r, c);
  }
}

// Sweep 2 of columns [c, end) of rows [row, row + count). `kept`: their h, kept_step(cols) elements apart, if the form
// has a residual.
inline int64_t kept_step(int64_t cols) { return (cols + 63) / 64 * 64; }
template <bool kCentre, Form f>
void apply_rows(const Forward& call, int64_t row, int64_t count, int64_t c, int64_t end, const RowStats* stats,
                const X* kept = nullptr) {
  const int64_t whole = c + (end - c) / kPairElems * kPairElems;
  ForwardRow r = row_of(call, row, stats[0]);
  for (int64_t i = 0; i < count; ++i) {
    r.xhat = xhat_maker(stats[i]);
    if (f.residual) read_kept(r, kept + i * kept_step(call.cols));
    const Ahead ahead = ahead_of(call, row + i + 2 * count, 0);
    if (call.stream && aligned(r.y) && aligned(r.h)) {
      apply_pairs<kCentre, f, true>(r, c, whole, ahead);
    } else {
      apply_pairs<kCentre, f, false>(r, c, whole, ahead);
    }
    if (whole < end) apply_partial<kCentre>(r, whole, end - whole);
    advance(r, call);
  }
}

NORMKIT_INLINE void put_stat(const Operand& o, int64_t row, double v) {
  if (!o.data) return;
  char* p = o.data + row * o.step;
  if (o.f32) {
    *reinterpret_cast<float*>(p) = static_cast<float>(v);
  } else {
    *reinterpret_cast<double*>(p) = v;
  }
}
NORMKIT_INLINE void put_stats(const Forward& call, int64_t row, const RowStats& s) {
  put_stat(call.mean, row, s.mean_out);
  put_stat(call.rstd, row, s.rstd_out);
}

// h of a row, or of a group of rows, between its two sweeps. Longer rows are added and rounded twice.
template <Form f>
struct Kept {
  static constexpr int64_t kElems = f.residual ? (32 << 10) / sizeof(X) : 64;
  alignas(64) X h[kElems];
};

// Sweep 1 of row i+1 runs beside sweep 2 of row i, a chunk of columns at a time, so that reading and writing overlap.
template <bool kCentre, Form f>
void overlapped_rows(const Forward& call, int64_t row0, int64_t row1) {
  Summer<kCentre, src_of(f)> next;
  Kept<f> kept[2];  // h of this row and of the next
  RowStats stats = row_stats<kCentre, src_of(f)>(row_of(call.src, row0, kept[row0 % 2].h), call.recipe, call.cols);
  for (int64_t row = row0; row < row1; ++row) {
    const bool more = row + 1 < row1;
    ForwardRow r = row_of(call, row, stats);
    if (f.residual) read_kept(r, kept[row % 2].h);
    const bool stream = call.stream && aligned(r.y) && aligned(r.h);
    const Ahead ahead = ahead_of(call, row + 1, kChunk);
    put_stats(call, row, stats);
    if (more) next.start(row_of(call.src, row + 1, kept[(row + 1) % 2].h), 0, call.cols);
    for (int64_t c = 0; c < call.cols; c += kChunk) {
      const int64_t end = min64(c + kChunk, call.cols);
      if (more) next.feed(end);
      if (stats.slow || end - c < kChunk) {
        apply_rows<kCentre, kGeneric>(call, row, 1, c, end, &stats);
      } else if (stream) {
        apply_pairs<kCentre, f, true>(r, c, end, ahead);
      } else {
        apply_pairs<kCentre, f, false>(r, c, end, ahead);
      }
    }
    if (more) stats = finish({row_of(call.src, row + 1), call.cols}, call.recipe, next.total());
  }
}

// Rows of one block: sweep 1 of a group of rows, then sweep 2 of the group.
template <bool kCentre, Form f>
void grouped_rows(const Forward& call, int64_t row0, int64_t row1) {
  RowStats stats[kGroupRows];
  GroupSums sums{};
  Kept<f> kept;
  const int64_t fit = kGroupBytes / (kept_step(call.cols) * static_cast<int64_t>(sizeof(X)));
  const int64_t group = min64(kGroupRows, fit > 1 ? fit : 1);
  for (int64_t row = row0; row < row1; row += group) {
    const int count = static_cast<int>(min64(group, row1 - row));
    const auto src = [&](int i) __attribute__((always_inline)) {
      return row_of(call.src, row + i, f.residual ? kept.h + i * kept_step(call.cols) : nullptr);
    };
    const auto of = [&](int i) __attribute__((always_inline)) { return GroupRow<kCentre, src_of(f)>{src(i)}; };
    group_sums<kCentre>(of, count, call.cols, sums);
    const bool special = finish_group<kCentre>(sums, count, call.recipe, call.cols, src, stats);
    if (call.mean.data || call.rstd.data)
      for (int i = 0; i < count; ++i) put_stats(call, row + i, stats[i]);
    if (!special) {
      apply_rows<kCentre, f>(call, row, count, 0, call.cols, stats, kept.h);
      continue;
    }
    apply_rows<kCentre, kGeneric>(call, row, count, 0, call.cols, stats);
    for (RowStats& s : stats) s = {};
  }
}

template <bool kCentre, Form f>
void rows_of_form(const Forward& call, int64_t row0, int64_t row1) {
  if constexpr (f.residual) {
    if (call.cols > Kept<f>::kElems) return rows_of_form<kCentre, kGeneric>(call, row0, row1);
  }
  const int64_t row_bytes = call.cols * static_cast<int64_t>(sizeof(X));
  if (call.stream ? row_bytes <= kShortRowBytes : call.cols <= kBlock) {
    grouped_rows<kCentre, f>(call, row0, row1);
  } else {
    overlapped_rows<kCentre, f>(call, row0, row1);
  }
}

// The loops of one form.
struct Loops {
  void (*rows)(const Forward&, int64_t row0, int64_t row1);
  void (*apply)(const Forward&, int64_t row, int64_t count, int64_t c, int64_t end, const RowStats*, const X* kept);
};

// The form of a call; generic when an operand has a type of its own that the other forms do not expect.
inline Form form_of(const Forward& call) {
  Form f;
  f.weight = call.weight.data;
  f.bias = call.bias.data;
  f.residual = call.src.residual.data;
  f.offset = call.recipe.offset;
  f.round_xhat = call.recipe.round_xhat && sizeof(X) == 2;  // wider types are rounded already
  f.params_f32 = call.weight.data && call.weight.f32;
  const bool mixed = call.y.f32 || (call.h.data && call.h.f32) || src_of(call.src) == Src::any ||
                     (f.bias && call.bias.f32 != f.params_f32);
  return mixed ? kGeneric : f;
}

template <bool kCentre, Form f, Form... rest>
Loops pick(const Form& wanted) {
  if (f == wanted) return {rows_of_form<kCentre, f>, apply_rows<kCentre, f>};
  if constexpr (sizeof...(rest) > 0) return pick<kCentre, rest...>(wanted);
  return {rows_of_form<kCentre, kGeneric>, apply_rows<kCentre, kGeneric>};
}
// The forms that models use: a new one is a word here. f64 and targets without a fused multiply-add make do with few.
template <bool kCentre>
Loops pick_loops(const Forward& call) {
  constexpr Form plain{}, w{.weight = true}, wb{.weight = true, .bias = true};
  constexpr Form wr{.weight = true, .residual = true}, wbr{.weight = true, .bias = true, .residual = true};
  constexpr Form w32{.weight = true, .params_f32 = true}, wb32{.weight = true, .bias = true, .params_f32 = true};
  constexpr Form offset{.weight = true, .offset = true}, llama{.weight = true, .round_xhat = true};
  constexpr Form offset_r{.weight = true, .residual = true, .offset = true};
  constexpr Form llama_r{.weight = true, .residual = true, .round_xhat = true};
  const Form form = form_of(call);
  if constexpr (!kFastFma || kX == Elem::f64) {
    return pick<kCentre, kCentre ? wb : w>(form);
  } else if constexpr (kX == Elem::f32) {
    if constexpr (kCentre) return pick<true, plain, w, wb, wr, wbr>(form);
    return pick<false, plain, w, wr, offset, offset_r>(form);
  } else {
    if constexpr (kCentre) return pick<true, plain, w, wb, wr, wbr, wb32>(form);
    return pick<false, plain, w, wr, w32, offset, offset_r, llama, llama_r>(form);
  }
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
