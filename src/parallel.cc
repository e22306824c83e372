#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <thread>

#if defined(NORMKIT_THREADS_std)
#include <system_error>
#include <vector>
#else
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace normkit {
namespace {

// Traffic that is worth a thread: a core moves this much in a few microseconds, which is what waking another one takes.
constexpr int64_t kBytesPerThread = 128 << 10;

// More threads than this or the processors only cost; libgomp ends the process when the system has no more to give.
constexpr int kMostThreads = 64;

std::atomic<bool> forked{false};

#if defined(__unix__) || defined(__APPLE__)
// libgomp's pool does not survive fork: a region in the child would wait for threads that are not there.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif

class IeeeMode {
 public:
#if defined(__x86_64__)
  IeeeMode() : saved_(_mm_getcsr()) {
    if (changed()) _mm_setcsr(kDefault);
  }
  ~IeeeMode() {
    if (changed()) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80, kFlags = 0x3f;  // all exceptions masked, nearest even, no FTZ or DAZ
  bool changed() const { return (saved_ & ~kFlags) != kDefault; }
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeMode() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) set(0);
  }
  ~IeeeMode() {
    if (saved_ != 0) set(saved_);
  }

 private:
  static void set(uint64_t v) { __asm__ volatile("msr fpcr, %0" : : "r"(v)); }
  uint64_t saved_ = 0;
#endif
};

}  // namespace

int useful_threads(int allowed, int64_t bytes) {
  const int64_t worth = std::max<int64_t>(1, bytes / kBytesPerThread);
  if (allowed <= 1 || worth == 1 || forked.load(std::memory_order_relaxed)) return 1;
#if !defined(NORMKIT_THREADS_std)
  if (omp_in_parallel()) return 1;
#endif
  static const int most = std::max(kMostThreads, static_cast<int>(std::thread::hardware_concurrency()));
  return static_cast<int>(std::min<int64_t>(std::min(allowed, most), worth));
}

void parallel_run(int threads, void (*body)(void*, int), void* context) {
  if (threads <= 1) {
    const IeeeMode mode;
    body(context, 0);
    return;
  }
#if defined(NORMKIT_THREADS_std)
  std::vector<std::thread> pool;
  const auto part = [=](int i) {
    const IeeeMode mode;
    body(context, i);
  };
  pool.reserve(static_cast<size_t>(threads));
  int started = 1;
  try {
    for (; started < threads; ++started) pool.emplace_back(part, started);
  } catch (const std::system_error&) {  // no more threads: the parts that are left run here
  }
  part(0);
  for (int i = started; i < threads; ++i) part(i);
  for (std::thread& t : pool) t.join();
#else
  // The runtime may give fewer threads than asked for: parts are dealt out to those that came.
#pragma omp parallel num_threads(threads)
  {
    const IeeeMode mode;
    for (int i = omp_get_thread_num(); i < threads; i += omp_get_num_threads()) body(context, i);
  }
#endif
}

}  // namespace normkit
