// The floating-point state of a thread: flush to zero and rounding modes that a caller may have set.
#pragma once

#include <cfenv>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace normkit::test {

// Sets a state on construction and goes back on destruction.
class FloatState {
 public:
  FloatState(bool flush, int rounding) : rounding_(std::fegetround()) {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
#endif
    std::fesetround(rounding);
    if (flush) set(get() | kFlush);
  }
  ~FloatState() {
    set(saved_);
    std::fesetround(rounding_);
  }
#if defined(__x86_64__)
  static constexpr uint64_t kFlush = 0x8040;  // FTZ, DAZ
  static uint64_t get() { return _mm_getcsr() & ~0x3fu; }
  static void set(uint64_t v) { _mm_setcsr(static_cast<unsigned>(v)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1u << 24;
  static uint64_t get() {
    uint64_t v;
    __asm__ volatile("mrs %0, fpcr" : "=r"(v));
    return v;
  }
  static void set(uint64_t v) { __asm__ volatile("msr fpcr, %0" : : "r"(v)); }
#endif

 private:
  uint64_t saved_ = 0;
  int rounding_;
};

// Runs f with flush to zero and the rounding mode set in this thread and in those of the pool; true if the state was then
// as before.
template <class F>
bool under_float_state(int rounding, const F& f) {
  uint64_t before = 0, after = 0;
  {
    const FloatState state(true, rounding);
#if defined(NORMKIT_THREADS_openmp)
#pragma omp parallel num_threads(4)
    {
      FloatState::set(FloatState::get() | FloatState::kFlush);
      std::fesetround(rounding);
    }
#endif
    before = FloatState::get();
    f();
    after = FloatState::get();
  }
#if defined(NORMKIT_THREADS_openmp)
#pragma omp parallel num_threads(4)
  {
    FloatState::set(FloatState::get() & ~FloatState::kFlush);
    std::fesetround(FE_TONEAREST);
  }
#endif
  return before == after;
}

}  // namespace normkit::test
