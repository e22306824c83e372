// The split of a call over threads. It never changes bits: what a thread does is fixed by the data's blocks.
#pragma once

#include <cstdint>
#include <memory>

namespace normkit {

// How many threads to use for `bytes` of memory traffic when the caller allows `allowed`: small calls stay on one. One
// as well inside a parallel region of the caller, and in a child process after fork, where the pool is gone.
int useful_threads(int allowed, int64_t bytes);

void parallel_run(int threads, void (*body)(void*, int), void* context);

// Runs f(part) for part = 0 .. parts-1, each on its own thread; the caller's thread takes part 0. Every thread computes
// with the IEEE default floating-point state, whatever the caller has set (flush to zero, rounding mode), and gets its
// own back afterwards. f must not throw.
template <class F>
void parallel(int parts, F&& f) {
  parallel_run(
      parts, [](void* context, int part) { (*static_cast<std::remove_reference_t<F>*>(context))(part); },
      std::addressof(f));
}

// The part-th of `parts` nearly equal ranges of [0, n), with borders at multiples of `unit`.
struct Range {
  int64_t begin, end;
};
inline Range range_of(int64_t n, int64_t unit, int parts, int part) {
  const int64_t units = (n + unit - 1) / unit;
  const int64_t a = units * part / parts * unit, b = units * (part + 1) / parts * unit;
  return {a, b < n ? b : n};
}

}  // namespace normkit
