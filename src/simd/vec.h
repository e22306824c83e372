// Vectors of one instruction set. Kernel files are compiled once per target, with -DNORMKIT_SIMD=<target> and that
// target's flags; everything they use lives in namespace normkit::NORMKIT_SIMD, so that no inline function compiled for
// one target can be linked into another. For the same reason kernel files use nothing from the standard library.
//
// Arithmetic is the compiler's vector extension (+ - * and comparisons on vectors). What it cannot say stands here:
// fused multiply-add, shuffles, and stores past the cache.
#pragma once

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace normkit::NORMKIT_SIMD {
namespace {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
inline constexpr int kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kVecBytes = 32;
inline constexpr int kRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kVecBytes = 16;
inline constexpr int kRegisters = 32;
#else
inline constexpr int kVecBytes = 16;
inline constexpr int kRegisters = 16;
#endif

#define NORMKIT_INLINE inline __attribute__((always_inline))

template <class T>
struct VecOf {
  typedef T type __attribute__((vector_size(kVecBytes)));
};
template <class T>
using Vec = typename VecOf<T>::type;
using VF = Vec<float>;
using VD = Vec<double>;
using VU = Vec<uint32_t>;
template <class T>
inline constexpr int kLanes = kVecBytes / static_cast<int>(sizeof(T));

template <class V, class T>
NORMKIT_INLINE V load_vec(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}
template <class V, class T>
NORMKIT_INLINE void store_vec(V v, T* p) {
  __builtin_memcpy(p, &v, sizeof(V));
}
// Past the cache; p must be aligned to kVecBytes. Targets without such a store write normally.
template <class V>
NORMKIT_INLINE void stream_vec(V v, void* p) {
#if defined(__AVX512F__)
  _mm512_stream_si512(static_cast<__m512i*>(p), (__m512i)v);
#elif defined(__AVX2__)
  _mm256_stream_si256(static_cast<__m256i*>(p), (__m256i)v);
#elif defined(__x86_64__)
  _mm_stream_si128(static_cast<__m128i*>(p), (__m128i)v);
#else
  store_vec(v, static_cast<char*>(p));
#endif
}
// Streamed stores are weakly ordered: call before another thread may read them.
NORMKIT_INLINE void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// A line that will be read soon; any address is fine.
NORMKIT_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
NORMKIT_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // no nearer than the L2 cache

template <class T>
NORMKIT_INLINE Vec<T> splat(T value) {
  return Vec<T>{} + value;
}

// ---- shuffles ------------------------------------------------------------------------------------------------------
template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};
template <class V>
using LaneIndices = typename MakeIndices<sizeof(V) / sizeof(V{}[0])>::type;

template <int kFirst, class V, int... I>
NORMKIT_INLINE V every_second_impl(V lo, V hi, Indices<I...>) {
  return __builtin_shufflevector(lo, hi, (2 * I + kFirst)...);
}
// Elements kFirst, kFirst + 2, ... of the 2L elements lo, hi.
template <int kFirst, class V>
NORMKIT_INLINE V every_second(V lo, V hi) {
  return every_second_impl<kFirst>(lo, hi, LaneIndices<V>{});
}
template <int kStart, class V, int... I>
NORMKIT_INLINE V interleave_impl(V even, V odd, Indices<I...>) {
  constexpr int kN = sizeof...(I);
  return __builtin_shufflevector(even, odd, (kStart + I / 2 + (I % 2) * kN)...);
}
// even[s], odd[s], even[s+1], odd[s+1], ... with s = 0 (lower half) or L/2 (upper half).
template <int kStart, class V>
NORMKIT_INLINE V interleave(V even, V odd) {
  return interleave_impl<kStart>(even, odd, LaneIndices<V>{});
}
template <class V, int... I>
NORMKIT_INLINE V alternate_impl(V even, V odd, Indices<I...>) {
  return __builtin_shufflevector(even, odd, (I % 2 == 0 ? I : I + static_cast<int>(sizeof...(I)))...);
}
// Even lanes of the first, odd lanes of the second.
template <class V>
NORMKIT_INLINE V alternate(V even, V odd) {
  return alternate_impl(even, odd, LaneIndices<V>{});
}
template <class Half, int... I>
NORMKIT_INLINE auto join_impl(Half lower, Half upper, Indices<I...>) {
  return __builtin_shufflevector(lower, upper, I...);
}
// Two halves as one register (not by way of memory, where the load would wait for both stores).
template <class Half>
NORMKIT_INLINE auto join(Half lower, Half upper) {
  return join_impl(lower, upper, typename MakeIndices<2 * sizeof(Half) / sizeof(Half{}[0])>::type{});
}
template <int kStep, class V, int... I>
NORMKIT_INLINE V rotate_impl(V v, Indices<I...>) {
  return __builtin_shufflevector(v, v, ((I + kStep) % static_cast<int>(sizeof...(I)))...);
}
// The sum of the lanes by halves: lane j += lane j + L/2, then L/4, ..., 1. Normative order.
template <int kStep, class V>
NORMKIT_INLINE auto sum_by_halves(V v) {
  v = v + rotate_impl<kStep>(v, LaneIndices<V>{});
  if constexpr (kStep > 1) {
    return sum_by_halves<kStep / 2>(v);
  } else {
    return v[0];
  }
}

template <int kBlock, int kFirst, class V, int... I>
NORMKIT_INLINE V half_blocks_impl(V lo, V hi, Indices<I...>) {
  constexpr int kHalf = kBlock / 2;
  return __builtin_shufflevector(lo, hi, (I / kHalf * kBlock + I % kHalf + kFirst)...);
}
// Several such sums at once: the 2L elements lo, hi are blocks of kBlock lanes, and each block is folded by its half.
template <int kBlock, class V>
NORMKIT_INLINE V fold_blocks(V lo, V hi) {
  return half_blocks_impl<kBlock, 0>(lo, hi, LaneIndices<V>{}) +
         half_blocks_impl<kBlock, kBlock / 2>(lo, hi, LaneIndices<V>{});
}
// sum_by_halves of kRows vectors; out has room for whole vectors of sums.
template <int kRows, int kBlock, class V, class T>
NORMKIT_INLINE void sum_rows_by_halves(V* rows, T* out) {
  constexpr int kLeft = kRows > 1 ? kRows / 2 : 1;
  for (int i = 0; i < kLeft; ++i) rows[i] = fold_blocks<kBlock>(rows[2 * i], rows[kRows > 1 ? 2 * i + 1 : 2 * i]);
  if constexpr (kBlock > 2) {
    sum_rows_by_halves<kLeft, kBlock / 2>(rows, out);
  } else {
    for (int i = 0; i < kLeft; ++i) store_vec(rows[i], out + i * kLanes<T>);
  }
}

// ---- fused multiply-add: a * b + c, rounded once ---------------------------------------------------------------------
#if defined(__AVX2__) || defined(__aarch64__)
inline constexpr bool kFastFma = true;
#else
inline constexpr bool kFastFma = false;
#endif
#if defined(__AVX512F__)
NORMKIT_INLINE VF fma(VF a, VF b, VF c) { return (VF)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
NORMKIT_INLINE VD fma(VD a, VD b, VD c) { return (VD)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
#elif defined(__AVX2__)
NORMKIT_INLINE VF fma(VF a, VF b, VF c) { return (VF)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
NORMKIT_INLINE VD fma(VD a, VD b, VD c) { return (VD)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
#elif defined(__aarch64__)
NORMKIT_INLINE VF fma(VF a, VF b, VF c) { return (VF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
NORMKIT_INLINE VD fma(VD a, VD b, VD c) { return (VD)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b); }
#else
// No instruction: f32 through f64. The product is exact; the sum is rounded to odd (kept inexact in its last bit), so
// that the final rounding to f32 sees on which side of a tie the exact value lies (Boldo & Melquiond 2008).
NORMKIT_INLINE double add_round_to_odd(double p, double c) {
  const double s = p + c, t = s - p;
  const double err = (p - (s - t)) + (c - t);
  int64_t bits;
  __builtin_memcpy(&bits, &s, 8);
  if ((err > 0 || err < 0) && (bits & 1) == 0) bits += (err > 0) == (s > 0) ? 1 : -1;  // an infinite sum has no err
  double r;
  __builtin_memcpy(&r, &bits, 8);
  return r;
}
[[gnu::noinline, maybe_unused]] VF fma(VF a, VF b, VF c) {  // out of line: it would be most of the baseline's code
  VF r{};
  for (int i = 0; i < kLanes<float>; ++i)
    r[i] = static_cast<float>(add_round_to_odd(static_cast<double>(a[i]) * static_cast<double>(b[i]), c[i]));
  return r;
}
[[gnu::noinline, maybe_unused]] VD fma(VD a, VD b, VD c) {
  VD r{};
  for (int i = 0; i < kLanes<double>; ++i) r[i] = __builtin_fma(a[i], b[i], c[i]);
  return r;
}
#endif

}  // namespace
}  // namespace normkit::NORMKIT_SIMD
