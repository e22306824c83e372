// What a row is read from: operands of x's type or f32, the ends of rows, h = x + residual.
#pragma once

#include "rows/rows.h"
#include "simd/pack.h"

namespace normkit::NORMKIT_SIMD {
namespace {

using namespace normkit::rows;  // plain data only

NORMKIT_INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- one operand's row -----------------------------------------------------------------------------------------------
struct RowPtr {
  const char* p = nullptr;
  bool f32 = false;
};
NORMKIT_INLINE RowPtr row_of(const Operand& o, int64_t row) {
  return {o.data ? o.data + row * o.step : nullptr, o.f32};
}
// Streamed stores ask for it.
NORMKIT_INLINE bool aligned(RowPtr o) { return reinterpret_cast<uintptr_t>(o.p) % kVecBytes == 0; }
NORMKIT_INLINE Pair load(RowPtr o, int64_t c) {
  if (kX != Elem::f32 && o.f32) return load_f32(reinterpret_cast<const float*>(o.p) + c);
  return load_x(reinterpret_cast<const X*>(o.p) + c);
}
template <bool kStream, bool kShortNan = false>
NORMKIT_INLINE void store(RowPtr o, int64_t c, Pair v) {
  char* p = const_cast<char*>(o.p);
  if (kX != Elem::f32 && o.f32) {
    store_f32<kStream>(v, reinterpret_cast<float*>(p) + c);
  } else {
    store_x<kStream, kShortNan>(v, reinterpret_cast<X*>(p) + c);
  }
}
NORMKIT_INLINE int elem_bytes(RowPtr o) { return o.f32 ? 4 : static_cast<int>(sizeof(X)); }

// Fewer than a pair of elements at the end of a row are moved through a buffer, so that no load or store leaves the
// row. `Staged` stands in for the operand: its element c lies in the buffer.
struct Staged {
  alignas(64) char bytes[kPairElems * sizeof(double)] = {};
  RowPtr in(RowPtr o, int64_t c, int64_t count) {
    if (!o.p) return o;
    __builtin_memcpy(bytes, o.p + c * elem_bytes(o), static_cast<uint64_t>(count * elem_bytes(o)));
    return out(o, c);
  }
  // The same with the last element repeated behind the end: for what is divided or scaled before a zero can cancel it.
  RowPtr in_repeated(RowPtr o, int64_t c, int64_t count) {
    const RowPtr r = in(o, c, count);
    if (!o.p) return r;
    const int size = elem_bytes(o);
    for (int64_t k = count; k < kPairElems; ++k) __builtin_memcpy(bytes + k * size, bytes + (count - 1) * size, size);
    return r;
  }
  RowPtr out(RowPtr o, int64_t c) const { return {o.p ? bytes - c * elem_bytes(o) : nullptr, o.f32}; }
  void flush(RowPtr o, int64_t c, int64_t count) const {
    if (o.p)
      __builtin_memcpy(const_cast<char*>(o.p) + c * elem_bytes(o), bytes, static_cast<uint64_t>(count * elem_bytes(o)));
  }
};

// ---- forms -----------------------------------------------------------------------------------------------------------
// Which optional operands a loop handles. The common combinations are compiled as loops of their own (a test per operand
// costs the loop its registers: measured 3x for bf16); `generic` looks at the call for every pair of elements.
struct Form {
  bool generic = false;
  bool weight = false, bias = false, residual = false;
  bool offset = false, round_xhat = false;
  bool params_f32 = false;  // weight and bias are f32 where x is not
  constexpr bool operator==(const Form&) const = default;
};
inline constexpr Form kGeneric{.generic = true};

// ---- h = x + residual ------------------------------------------------------------------------------------------------
struct SourceRow {
  RowPtr x, residual;
  bool round_h, h_f32;
  X* kept;  // Src::x_plus_x: sweep 1 keeps h here, so that sweep 2 need not add and round again
};
NORMKIT_INLINE SourceRow row_of(const Source& s, int64_t row, X* kept = nullptr) {
  return {row_of(s.x, row), row_of(s.residual, row), s.round_h, s.h_f32, kept};
}
// What a loop knows of its source: no residual; one of x's type, with h rounded to it; or anything.
enum class Src { x, x_plus_x, any };
template <Src kSrc = Src::any>
NORMKIT_INLINE Pair load(const SourceRow& s, int64_t c) {
  const Pair x = load_x(reinterpret_cast<const X*>(s.x.p) + c);
  if constexpr (kSrc == Src::x) return x;
  if constexpr (kSrc == Src::x_plus_x) return round_x<true>(x + load_x(reinterpret_cast<const X*>(s.residual.p) + c));
  if (!s.residual.p) return x;
  const Pair h = x + load(s.residual, c);
  if (!s.round_h) return h;
  return s.h_f32 ? round_f32(h) : round_x(h);
}
constexpr Src src_of(const Form& f) { return f.generic ? Src::any : f.residual ? Src::x_plus_x : Src::x; }
inline Src src_of(const Source& s) {
  if (!s.residual.data) return Src::x;
  return s.residual.f32 || s.h_f32 || (!s.round_h && sizeof(X) == 2) ? Src::any : Src::x_plus_x;
}
// count <= 64 elements of h from c on, in natural order; the rest of `out` is left as it is.
inline void load_natural(const SourceRow& s, int64_t c, int64_t count, C* out) {
  int64_t i = 0;
  for (; i + kPairElems <= count; i += kPairElems) store_c(load(s, c + i), out + i);
  if (i == count) return;
  Staged x, r;
  SourceRow tail = s;
  tail.x = x.in(s.x, c + i, count - i);
  tail.residual = r.in(s.residual, c + i, count - i);
  C last[kPairElems];
  store_c(load(tail, c + i), last);
  for (int64_t k = i; k < count; ++k) out[k] = last[k - i];
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
