// How a call runs: on how many threads, and with or without Python's lock.
#pragma once

#include <cxxabi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "options.h"

namespace normkit::python {

// Work of fewer bytes (of x) than this keeps Python's lock and one thread: it takes a few microseconds, and taking the
// lock back costs up to a switch interval (5 ms) where other threads run Python code.
inline constexpr int64_t kLargeBytes = 32 << 10;

// Gives Python's lock away for its lifetime.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  // Not for UBSan: the reference of a forced unwind is bound to nothing.
  __attribute__((no_sanitize_undefined)) ~WithoutGil() {
    // At interpreter exit Python (before 3.14) ends a daemon thread right here by pthread_exit, which unwinds the
    // stack; a destructor, or any catch (...) above, would turn that into std::terminate. So the thread waits for the
    // process to end, as Python 3.14 does.
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

// The processors that this process may use.
inline int available_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));  // more than 1024 processors
}

// threads=N: at most so many.
// threads=None: torch.get_num_threads() when x is a torch tensor, otherwise the processors this process may use.
inline int threads_of(const char* op, nb::handle threads, const Operand& x) {
  if (threads.is_none()) {
    if (x.view.numel() * dtype_size(x.view.dtype) < kLargeBytes) return 1;
    return x.kind == Kind::torch ? torch_threads() : available_cpus();
  }
  const int count = integer(op, "threads", threads);
  if (count < 1) fail_value(op, "threads is ", count, ", expected 1 or more");
  return count;
}

template <class Args>
void run(void (*engine)(const Args&, const Exec&), const Args& args, int threads) {
  if (args.x.numel() * dtype_size(args.x.dtype) < kLargeBytes) return engine(args, {.threads = threads});
  const WithoutGil free;
  engine(args, {.threads = threads});
}

}  // namespace normkit::python
