// Forward kernels: sweep 1 (statistics.h) of one row runs beside sweep 2 (here) of the row before.
#pragma once

#include "rows/statistics-inl.h"

namespace normkit::NORMKIT_SIMD {
namespace {

// Columns of one turn of the overlapped loop: sweep 1 of the next row, then sweep 2 of this one.
inline constexpr int64_t kChunk = 1024;

struct ForwardRow {
  SourceRow src;
  RowPtr weight, bias, y, h;
  XhatMaker xhat;
  V offset;
  bool round_xhat, add_offset;
};
NORMKIT_INLINE ForwardRow row_of(const Forward& call, int64_t row, const RowStats& stats) {
  const Recipe& r = call.recipe;
  return {row_of(call.src, row), row_of(call.weight, 0),  row_of(call.bias, 0),
          row_of(call.y, row),   row_of(call.h, row),     xhat_maker(stats),
          splat(static_cast<C>(r.weight_offset)), r.round_xhat, r.offset};
}

template <bool kCentre, bool kStream>
NORMKIT_INLINE void apply_pair(const ForwardRow& r, int64_t c) {
  const Pair h = load(r.src, c);
  if (r.h.p) store<kStream>(r.h, c, h);
  Pair v = xhat_of<kCentre>(r.xhat, h);
  if (r.round_xhat) v = round_x(v);
  if (r.weight.p) {
    Pair w = load(r.weight, c);
    if (r.add_offset) w = w + r.offset;
    v = r.bias.p ? fma(v, w, load(r.bias, c)) : v * w;
  } else if (r.bias.p) {
    v = v + load(r.bias, c);
  }
  store<kStream>(r.y, c, v);
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
  apply_pair<kCentre, false>(t, c);
  y.flush(r.y, c, count);
  h.flush(r.h, c, count);
}

NORMKIT_INLINE bool aligned(RowPtr o) { return reinterpret_cast<uintptr_t>(o.p) % kVecBytes == 0; }

template <bool kCentre>
NORMKIT_INLINE void apply_columns(const ForwardRow& r, int64_t c, int64_t end, bool stream) {
  const int64_t whole = c + (end - c) / kPairElems * kPairElems;
  if (stream && aligned(r.y) && aligned(r.h)) {
    for (; c < whole; c += kPairElems) apply_pair<kCentre, true>(r, c);
  } else {
    for (; c < whole; c += kPairElems) apply_pair<kCentre, false>(r, c);
  }
  if (c < end) apply_partial<kCentre>(r, c, end - c);
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

template <bool kCentre>
void forward_rows(const Forward& call, int64_t row0, int64_t row1) {
  if (row0 >= row1) return;
  Summer<kCentre> next;
  RowStats stats = row_stats<kCentre>(row_of(call.src, row0), call.recipe, call.cols);
  for (int64_t row = row0; row < row1; ++row) {
    const bool more = row + 1 < row1;
    const ForwardRow r = row_of(call, row, stats);
    put_stats(call, row, stats);
    if (more) next.start(row_of(call.src, row + 1), 0, call.cols);
    for (int64_t c = 0; c < call.cols; c += kChunk) {
      if (more) next.feed(c + kChunk);
      apply_columns<kCentre>(r, c, min64(c + kChunk, call.cols), call.stream);
    }
    if (more) {
      const RowStats s = finish(row_of(call.src, row + 1), call.recipe, call.cols, next.total());
      stats = s;
    }
  }
  if (call.stream) stream_fence();
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
