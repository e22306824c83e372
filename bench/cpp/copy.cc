#include "copy.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {
namespace {

using CopyPart = void (*)(char*, const char*, int64_t);

void plain_part(char* to, const char* from, int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }

#if defined(__x86_64__)
// `to` must be 16-byte aligned; parts begin at multiples of 64, see split(). Baseline SSE2: a line of 64 bytes is filled by four
// stores in order, which the write-combining buffer joins as well as two stores of AVX.
void streaming_part(char* to, const char* from, int64_t bytes) {
  int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    const __m128i* in = reinterpret_cast<const __m128i*>(from + i);
    __m128i* out = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();
  plain_part(to + i, from + i, bytes - i);
}
#else
void streaming_part(char* to, const char* from, int64_t bytes) { plain_part(to, from, bytes); }
#endif

void split(CopyPart part, void* to, const void* from, int64_t bytes, int threads) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  if (threads == 1) return part(out, in, bytes);
#pragma omp parallel num_threads(threads)
  {
    const int64_t each = (bytes / omp_get_num_threads() + 63) / 64 * 64;
    const int64_t begin = std::min(bytes, each * omp_get_thread_num());
    part(out + begin, in + begin, std::min(bytes, begin + each) - begin);
  }
}

}  // namespace

void copy_plain(void* to, const void* from, int64_t bytes, int threads) { split(plain_part, to, from, bytes, threads); }
void copy_streaming(void* to, const void* from, int64_t bytes, int threads) {
  split(streaming_part, to, from, bytes, threads);
}

}  // namespace bench

// The same for bench/harness/native.py.
extern "C" {
void bench_copy_plain(void* to, const void* from, int64_t bytes, int threads) {
  bench::copy_plain(to, from, bytes, threads);
}
void bench_copy_streaming(void* to, const void* from, int64_t bytes, int threads) {
  bench::copy_streaming(to, from, bytes, threads);
}
}
