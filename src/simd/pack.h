// Pair: 2L consecutive elements of any storage type, widened to two vectors of the compute type, and back.
//
// The lanes of a pair are held in the order that costs least to make. f32, f64 and f16: {lower half, upper half}.
// bf16: {even, odd elements}, since a shift and a mask then widen a whole register. The contract fixes which elements a
// lane sums, not where the lane is held; sum_lanes() meets both orders in the right step of the tree.
#pragma once

#include "simd/vec.h"

namespace normkit::NORMKIT_SIMD {
namespace {

enum class Elem { f32, f64, bf16, f16 };
inline constexpr Elem kX = Elem::NORMKIT_X;  // x's type in this translation unit
inline constexpr bool kEvenOdd = kX == Elem::bf16;

template <Elem e>
struct ElemTraits {
  using Stored = float;
  using Compute = float;
};
template <>
struct ElemTraits<Elem::f64> {
  using Stored = double;
  using Compute = double;
};
template <>
struct ElemTraits<Elem::bf16> {
  using Stored = uint16_t;
  using Compute = float;
};
template <>
struct ElemTraits<Elem::f16> {
  using Stored = uint16_t;
  using Compute = float;
};
// The names that all kernels use: X as stored, C the type that computes, V a vector of C with L lanes.
using X = ElemTraits<kX>::Stored;
using C = ElemTraits<kX>::Compute;
using V = Vec<C>;
inline constexpr int L = kLanes<C>;

inline constexpr int kSumLanes = 64;                   // lanes of a block sum (normative)
inline constexpr int kPairElems = 2 * L;               // elements of a pair
inline constexpr int kPairs = kSumLanes / kPairElems;  // pairs that hold all lanes of a sum

struct Pair {
  V a, b;
};
// Where a pair is kept in an array of vectors. Arrays of the struct itself are copied in 16-byte pieces by the
// compiler, and the next load of a whole register has to wait for them (measured: 3x on rows of 128).
struct PairRef {
  V &a, &b;
  NORMKIT_INLINE operator Pair() const { return {a, b}; }
  NORMKIT_INLINE void operator=(Pair p) const {
    a = p.a;
    b = p.b;
  }
};
NORMKIT_INLINE PairRef pair_at(V* v, int i) { return {v[2 * i], v[2 * i + 1]}; }
NORMKIT_INLINE Pair operator+(Pair p, Pair q) { return {p.a + q.a, p.b + q.b}; }
NORMKIT_INLINE Pair operator-(Pair p, V v) { return {p.a - v, p.b - v}; }
NORMKIT_INLINE Pair operator+(Pair p, V v) { return {p.a + v, p.b + v}; }
NORMKIT_INLINE Pair operator*(Pair p, V v) { return {p.a * v, p.b * v}; }
NORMKIT_INLINE Pair operator*(Pair p, Pair q) { return {p.a * q.a, p.b * q.b}; }
NORMKIT_INLINE Pair fma(Pair p, Pair q, Pair r) { return {fma(p.a, q.a, r.a), fma(p.b, q.b, r.b)}; }
NORMKIT_INLINE Pair fma(Pair p, V v, Pair r) { return {fma(p.a, v, r.a), fma(p.b, v, r.b)}; }

// ---- binary16 --------------------------------------------------------------------------------------------------------
using F16Vec = uint16_t __attribute__((vector_size(kVecBytes / 2)));  // as many binary16 as a VF has lanes

NORMKIT_INLINE VF widen_f16(const uint16_t* p) {
#if defined(__AVX512F__)
  return (VF)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return (VF)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return (VF)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  const VU b = __builtin_convertvector(load_vec<F16Vec>(p), VU);
  const VU sign = (b & 0x8000u) << 16, a = (b & 0x7fffu) << 13;
  const VF finite = (VF)a * 0x1p112f;  // rebias; exact, subnormals included
  const VU special = (VU)(a >= (0x7c00u << 13)) & (0x7f800000u | (VU)((a > (0x7c00u << 13)) & 0x400000u));
  return (VF)((VU)finite | special | sign);
#endif
}
NORMKIT_INLINE F16Vec narrow_f16(VF v) {
#if defined(__AVX512F__)
  return (F16Vec)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
  return (F16Vec)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
  return (F16Vec)vcvt_f16_f32((float32x4_t)v);
#else
  const VU b = (VU)v, sign = (b >> 16) & 0x8000u, a = b & 0x7fffffffu;
  const VU normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  const VU subnormal = (VU)((VF)a + 0.5f) - 0x3f000000u;  // the addition rounds to multiples of 2^-24
  VU r = a >= 0x38800000u ? normal : subnormal;
  r = a >= 0x477ff000u ? splat(0x7c00u) : r;  // 65520 and above round to infinity
  r = a > 0x7f800000u ? splat(0x7e00u) : r;
  return __builtin_convertvector(r | sign, F16Vec);
#endif
}

// ---- bfloat16 --------------------------------------------------------------------------------------------------------
// The rounded value in the upper 16 bits; the lower bits are left over. On the bits, since the instructions that
// convert flush subnormals. The bits of a NaN could overflow into -0, so it becomes the canonical one; kShortNan says
// that no NaN can have bits below the upper 16 (all operands are bf16): rounding then keeps it a NaN, for 2 of 7
// instructions less.
template <bool kShortNan>
NORMKIT_INLINE VU round_bf16_bits(VF v) {
  const VU b = (VU)v;
  const VU r = b + 0x7fffu + ((b >> 16) & 1u);
  if constexpr (kShortNan) return r;
  return v == v ? r : splat(0x7fc00000u);
}
template <bool kShortNan>
NORMKIT_INLINE VF round_bf16(VF v) {
  return (VF)(round_bf16_bits<kShortNan>(v) & 0xffff0000u);
}

// ---- operands stored as x's type -------------------------------------------------------------------------------------
NORMKIT_INLINE Pair load_x(const X* p) {
  if constexpr (kX == Elem::bf16) {
    const VU u = load_vec<VU>(p);
    return {(V)(VF)(u << 16), (V)(VF)(u & 0xffff0000u)};
  } else if constexpr (kX == Elem::f16) {
    const uint16_t* h = reinterpret_cast<const uint16_t*>(p);
    return {(V)widen_f16(h), (V)widen_f16(h + L)};
  } else {
    return {load_vec<V>(p), load_vec<V>(p + L)};
  }
}

template <bool kStream>
NORMKIT_INLINE void put(auto v, void* p) {
  if constexpr (kStream) {
    stream_vec(v, p);
  } else {
    store_vec(v, static_cast<char*>(p));
  }
}
// kStream: p is aligned to kVecBytes.
template <bool kStream = false, bool kShortNan = false>
NORMKIT_INLINE void store_x(Pair v, X* p) {
  if constexpr (kX == Elem::bf16) {
    const VU even = round_bf16_bits<kShortNan>((VF)v.a) >> 16, odd = round_bf16_bits<kShortNan>((VF)v.b);
    put<kStream>(alternate((Vec<uint16_t>)even, (Vec<uint16_t>)odd), p);
  } else if constexpr (kX == Elem::f16) {
    put<kStream>(join(narrow_f16((VF)v.a), narrow_f16((VF)v.b)), p);
  } else {
    put<kStream>(v.a, p);
    put<kStream>(v.b, p + L);
  }
}
// A pair's elements as they are.
template <bool kStream>
NORMKIT_INLINE void copy_x(const X* from, char* to) {
  put<kStream>(load_vec<VU>(from), to);
  if constexpr (sizeof(X) == sizeof(C)) put<kStream>(load_vec<VU>(from + L), to + kVecBytes);
}
// One element.
NORMKIT_INLINE C load_one(const X* p) {
  if constexpr (kX == Elem::bf16) {
    const uint32_t bits = static_cast<uint32_t>(*p) << 16;
    float v;
    __builtin_memcpy(&v, &bits, sizeof v);
    return v;
  } else if constexpr (kX == Elem::f16) {
    const F16Vec one{static_cast<uint16_t>(*p)};
    return static_cast<C>(widen_f16(reinterpret_cast<const uint16_t*>(&one))[0]);
  } else {
    return *p;
  }
}

// ---- the first elements of a pair ------------------------------------------------------------------------------------
using VMask = decltype(V{} < V{});
// All bits set in the first n lanes.
NORMKIT_INLINE VMask first_lanes(int64_t n) {
  alignas(64) static constexpr int32_t kBits32[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  alignas(64) static constexpr int64_t kBits64[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  if constexpr (sizeof(C) == 4) return load_vec<VMask>(kBits32 + 16 - n);
  return load_vec<VMask>(kBits64 + 8 - n);
}
struct PairMask {
  VMask a, b;
};
NORMKIT_INLINE PairMask first_elements(int64_t count) {
  if constexpr (kEvenOdd) return {first_lanes((count + 1) / 2), first_lanes(count / 2)};
  return {first_lanes(count < L ? count : L), first_lanes(count < L ? 0 : count - L)};
}
NORMKIT_INLINE Pair keep(PairMask m, Pair v) { return {(V)((VMask)v.a & m.a), (V)((VMask)v.b & m.b)}; }

// To x's type and back.
template <bool kShortNan = false>
NORMKIT_INLINE Pair round_x(Pair v) {
  if constexpr (kX == Elem::bf16) {
    return {(V)round_bf16<kShortNan>((VF)v.a), (V)round_bf16<kShortNan>((VF)v.b)};
  } else if constexpr (kX == Elem::f16) {
    const F16Vec a = narrow_f16((VF)v.a), b = narrow_f16((VF)v.b);
    return {(V)widen_f16(reinterpret_cast<const uint16_t*>(&a)), (V)widen_f16(reinterpret_cast<const uint16_t*>(&b))};
  } else {
    return v;
  }
}

// ---- operands stored as f32 ------------------------------------------------------------------------------------------
using HalfF = float __attribute__((vector_size(kVecBytes / 2)));  // f32 of as many lanes as a VD

NORMKIT_INLINE Pair load_f32(const float* p) {
  if constexpr (kX == Elem::f64) {
    return {(V) __builtin_convertvector(load_vec<HalfF>(p), VD),
            (V) __builtin_convertvector(load_vec<HalfF>(p + L), VD)};
  } else {
    const VF lo = load_vec<VF>(p), hi = load_vec<VF>(p + L);
    if constexpr (kEvenOdd) return {(V)every_second<0>(lo, hi), (V)every_second<1>(lo, hi)};
    return {(V)lo, (V)hi};
  }
}
template <bool kStream = false>
NORMKIT_INLINE void store_f32(Pair v, float* p) {
  if constexpr (kX == Elem::f64) {
    const HalfF lo = __builtin_convertvector((VD)v.a, HalfF), hi = __builtin_convertvector((VD)v.b, HalfF);
    store_vec(lo, p);
    store_vec(hi, p + L);
  } else if constexpr (kEvenOdd) {
    put<kStream>(interleave<0>((VF)v.a, (VF)v.b), p);
    put<kStream>(interleave<L / 2>((VF)v.a, (VF)v.b), p + L);
  } else {
    put<kStream>((VF)v.a, p);
    put<kStream>((VF)v.b, p + L);
  }
}
NORMKIT_INLINE Pair round_f32(Pair v) {
  if constexpr (kX == Elem::f64) {
    return {(V) __builtin_convertvector(__builtin_convertvector((VD)v.a, HalfF), VD),
            (V) __builtin_convertvector(__builtin_convertvector((VD)v.b, HalfF), VD)};
  } else {
    return v;
  }
}

// ---- compute type in memory, natural order ---------------------------------------------------------------------------
NORMKIT_INLINE Pair load_c(const C* p) {
  if constexpr (kX == Elem::f64) {
    return {load_vec<V>(p), load_vec<V>(p + L)};
  } else {
    return load_f32(reinterpret_cast<const float*>(p));
  }
}
NORMKIT_INLINE void store_c(Pair v, C* p) {
  if constexpr (kX == Elem::f64) {
    store_vec(v.a, p);
    store_vec(v.b, p + L);
  } else {
    store_f32(v, reinterpret_cast<float*>(p));
  }
}

// ---- the last part of the tree: 64 lanes held in pairs ---------------------------------------------------------------
// Down to one pair.
NORMKIT_INLINE Pair fold_lanes(const V (&lanes)[2 * kPairs]) {
  V t[2 * kPairs];
  for (int i = 0; i < 2 * kPairs; ++i) t[i] = lanes[i];
#pragma GCC unroll 8
  for (int half = kPairs; half > 1; half /= 2)
    for (int i = 0; i < half; ++i) t[i] = t[i] + t[i + half];
  return {t[0], t[1]};
}
NORMKIT_INLINE C sum_lanes(const V (&lanes)[2 * kPairs]) {
  const Pair p = fold_lanes(lanes);
  if constexpr (kEvenOdd) return sum_by_halves<L / 2>(p.a) + sum_by_halves<L / 2>(p.b);
  return sum_by_halves<L / 2>(p.a + p.b);
}
// sum_lanes of kRows rows at once: in place of a chain of shuffles per row, one for all.
template <int kRows>
struct RowSums {
  V a[kRows], b[kEvenOdd ? kRows : 1];
  NORMKIT_INLINE RowSums() { a[0] = b[0] = V{}; }  // finish() repeats row 0
  NORMKIT_INLINE void put(int row, const V (&lanes)[2 * kPairs]) {
    const Pair p = fold_lanes(lanes);
    if constexpr (kEvenOdd) {
      a[row] = p.a, b[row] = p.b;
    } else {
      a[row] = p.a + p.b;
    }
  }
  // The sums of the first `count` rows; that of row 0 in the places behind them.
  NORMKIT_INLINE void finish(int count, C (&out)[kRows]) {
    constexpr int kRoom = kRows > L ? kRows : L;
    alignas(64) C even[kRoom], odd[kRoom];
    for (int i = count; i < kRows; ++i) {
      a[i] = a[0];
      if (kEvenOdd) b[i] = b[0];
    }
    sum_rows_by_halves<kRows, L>(a, even);
    if constexpr (kEvenOdd) sum_rows_by_halves<kRows, L>(b, odd);
    for (int i = 0; i < kRows; ++i) out[i] = kEvenOdd ? even[i] + odd[i] : even[i];
  }
};
// L doubles from as many elements of the compute type.
NORMKIT_INLINE VD widen_lanes(const C* p) {
  if constexpr (sizeof(C) == 8) return load_vec<VD>(p);
  return __builtin_convertvector(load_vec<HalfF>(p), VD);
}

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
