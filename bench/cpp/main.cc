// normkit_bench: how near to the speed of a plain copy the row norms run.
//
//   limit ratio = time of the best copy of as many bytes as the call must move / our time
//
// The best copy is the faster of memcpy and a copy with streaming stores, on as many threads; ours and the copies are
// timed in turns (A B C A B C ...), so that a slow phase of the machine meets all of them. Answers are checked last.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "cases.h"
#include "copy.h"
#include "machine.h"
#include "memory.h"
#include "problem.h"
#include "report.h"

namespace bench {
namespace {

constexpr const char* kUsage = R"(usage: normkit_bench [options]
  --set NAME       limits (default): L2 and out of cache, forward, fused residual, backward
                   calls: what small calls cost; linear: 1 KB to 4 GB (or a quarter of the free memory)
  --case TEXT      instead of a set: OP,DIRECTION,DTYPE,ROWSxCOLS[,residual], e.g. rms_norm,forward,bf16,2048x4096;
                   may be given more than once
  --filter REGEX   only cases whose name matches, e.g. 'rms_norm/forward/bf16/.*4096/t1'
  --threads LIST   thread counts (default 1,2)
  --quick          fewer widths and types, shorter samples
  --repeats N      rounds (default 9; quick 7)
  --json FILE      write the results
  --list           print the names of the cases, measure nothing
)";

struct Options {
  std::string set = "limits", filter, json;
  std::vector<Case> given;
  std::vector<int> threads{1, 2};
  bool quick = false, list = false, help = false;
  int repeats = 0;
};

std::vector<int> parse_threads(const std::string& list) {
  std::vector<int> threads;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    threads.push_back(std::stoi(list.substr(begin, end - begin)));
    if (threads.back() < 1) throw std::invalid_argument("threads " + list + ", expected 1 or more");
    begin = end + 1;
  }
  return threads;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto text = [&]() -> std::string {
      if (++i == argc) throw std::invalid_argument(name + " needs a value");
      return argv[i];
    };
    if (name == "--set")
      o.set = text();
    else if (name == "--case")
      o.given.push_back(parse_case(text()));
    else if (name == "--filter")
      o.filter = text();
    else if (name == "--threads")
      o.threads = parse_threads(text());
    else if (name == "--quick")
      o.quick = true;
    else if (name == "--repeats")
      o.repeats = std::max(1, std::stoi(text()));
    else if (name == "--json")
      o.json = text();
    else if (name == "--list")
      o.list = true;
    else if (name == "--help" || name == "-h")
      o.help = true;
    else
      throw std::invalid_argument("unknown option " + name + "; see --help");
  }
  if (o.repeats == 0) o.repeats = o.quick ? 7 : 9;
  return o;
}

using Call = std::function<void()>;

double seconds(const Call& call, int64_t times) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// As many calls as fill a sample.
int64_t calls_per_sample(const Call& call, double sample_seconds) {
  for (int64_t times = 1;; times *= 4) {
    const double t = seconds(call, times);
    if (t > sample_seconds / 8)
      return std::max<int64_t>(1, std::llround(static_cast<double>(times) * sample_seconds / t));
  }
}

double quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  const double at = q * static_cast<double>(v.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, v.size() - 1);
  return v[low] + (v[high] - v[low]) * (at - static_cast<double>(low));
}

Timing summarize(const std::vector<double>& t) {
  const double median = quantile(t, 0.5);
  return {median, (quantile(t, 0.75) - quantile(t, 0.25)) / 2 / median};
}

Result measure(const Case& c, const Options& options) {
  const Problem problem(c);
  const int64_t half = (problem.bytes() + 1) / 2;
  const Buffer from(half), to(half);
  struct Candidate {
    std::string name;
    Call call;
  };
  std::vector<Candidate> candidates{
      {"ours", [&] { problem.run(); }},
      {"memcpy", [&] { copy_plain(to.data(), from.data(), half, c.threads); }},
      {"stream", [&] { copy_streaming(to.data(), from.data(), half, c.threads); }},
  };
  // Small copies are fastest on one thread; the limit may not be slower for being given two.
  if (c.threads > 1 && half <= (1 << 20))
    candidates.push_back({"memcpy1", [&] { copy_plain(to.data(), from.data(), half, 1); }});

  std::vector<int64_t> times;
  std::vector<std::vector<double>> rounds(candidates.size());
  for (const Candidate& candidate : candidates) {
    candidate.call();
    times.push_back(calls_per_sample(candidate.call, options.quick ? 2e-3 : 5e-3));
  }
  const CpuSeconds before = cpu_seconds();
  for (int round = 0; round < options.repeats; ++round)
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (times[i] > 1) candidates[i].call();  // back into the caches after the others
      rounds[i].push_back(seconds(candidates[i].call, times[i]) / static_cast<double>(times[i]));
    }

  const double disturbed = disturbance(before, cpu_seconds());
  size_t best = 1;
  for (size_t i = 2; i < candidates.size(); ++i)
    if (quantile(rounds[i], 0.5) < quantile(rounds[best], 0.5)) best = i;
  std::vector<double> ratios;
  for (size_t r = 0; r < rounds[0].size(); ++r) ratios.push_back(rounds[best][r] / rounds[0][r]);
  return {c,
          problem.bytes(),
          summarize(rounds[0]),
          summarize(rounds[best]),
          candidates[best].name,
          quantile(ratios, 0.5),
          problem.check(),
          disturbed};
}

std::vector<Case> selected(const Options& o, const Machine& machine) {
  std::vector<Case> cases;
  if (o.given.empty()) cases = cases_of(o.set, o.quick, o.threads, machine);
  for (Case c : o.given)
    for (const int t : o.threads) {
      c.threads = t;
      cases.push_back(c);
    }
  if (!o.filter.empty()) {
    const std::regex pattern(o.filter);
    std::erase_if(cases, [&](const Case& c) { return !std::regex_search(c.name(), pattern); });
  }
  return cases;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.help) return std::fputs(kUsage, stdout), 0;
  const Machine machine = this_machine();
  const std::vector<Case> cases = selected(options, machine);
  if (cases.empty()) throw std::invalid_argument("no case matches");
  if (options.list) {
    for (const Case& c : cases) std::puts(c.name().c_str());
    return 0;
  }
  print_header();
  std::vector<Result> results;
  bool right = true;
  for (const Case& c : cases) {
    results.push_back(measure(c, options));
    print_line(results.back());
    right = right && results.back().error <= 1;
  }
  if (results.size() > 1) print_means(results);
  if (!options.json.empty())
    write_json(options.json, options.given.empty() ? options.set : "given", options.repeats, machine, results);
  if (!right) std::fputs("normkit_bench: wrong answers, see above\n", stderr);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  try {
    return bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "normkit_bench: %s\n", error.what());
    return 2;
  }
}
