// Several callers at once, inside a parallel region, after fork. Also run under ThreadSanitizer (NORMKIT_THREADS=std).
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <thread>

#include "run.h"

namespace normkit::test {
namespace {

struct Prepared {
  Case c;
  Inputs in;
  Outputs expected;
};
// Cases large enough to be split over threads.
std::vector<Prepared> prepare() {
  std::vector<Prepared> list;
  for (DType x : {DType::f32, DType::bf16}) {
    list.push_back({{.op = Op::layer, .x = x, .weight = x, .bias = x, .rows = 300, .cols = 500}, {}, {}});
    list.push_back(
        {{.op = Op::rms, .x = x, .weight = x, .residual = x, .residual_out = x, .rows = 65, .cols = 2048}, {}, {}});
    list.push_back({{.op = Op::l2, .x = x, .rows = 1, .cols = 200'000, .eps = 1e-12}, {}, {}});
    list.push_back({{.op = Op::layer, .x = x, .weight = x, .rows = 2, .cols = 100'000}, {}, {}});
  }
  for (Prepared& p : list) {
    p.in = make_inputs(p.c);
    p.expected = run(p.c, p.in);
  }
  return list;
}

TEST(Threads, SeveralCallersAtOnce) {
  const std::vector<Prepared> list = prepare();
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&, caller] {
      for (int turn = 0; turn < 3; ++turn)
        for (const Prepared& p : list)
          if (!(run(p.c, p.in, {1 + (caller + turn) % 4}) == p.expected)) ++wrong;
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, MoreThanTheMachineHas) {
  for (int threads : {64, std::numeric_limits<int>::max()})
    for (const Prepared& p : prepare()) EXPECT_EQ(difference(run(p.c, p.in, {threads}), p.expected), "") << p.c;
}

// A child computes the same bits, although the threads of its parent's pool are not there.
TEST(Threads, ChildAfterFork) {
  const std::vector<Prepared> list = prepare();
  for (const Prepared& p : list) run(p.c, p.in, {4});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang must not outlive the test
    for (const Prepared& p : list)
      if (!(run(p.c, p.in, {4}) == p.expected)) _exit(1);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  for (const Prepared& p : list) EXPECT_EQ(difference(run(p.c, p.in, {4}), p.expected), "") << "parent, " << p.c;
}

#if defined(NORMKIT_THREADS_openmp)
TEST(Threads, InsideAParallelRegionOfTheCaller) {
  const std::vector<Prepared> list = prepare();
  std::atomic<int> wrong{0};
#pragma omp parallel for num_threads(3)
  for (size_t i = 0; i < list.size(); ++i)
    if (!(run(list[i].c, list[i].in, {4}) == list[i].expected)) ++wrong;
  EXPECT_EQ(wrong, 0);
}
#endif

}  // namespace
}  // namespace normkit::test
