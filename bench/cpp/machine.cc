#include "machine.h"

#include <sys/times.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "normkit/normkit.h"

namespace bench {
namespace {

int64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  for (int64_t kb = 0; in >> key >> kb; std::getline(in, unit))
    if (key == "MemAvailable:") return kb * 1024;
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / 2;
}

int64_t l2_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return 512 * 1024;
}

}  // namespace

Machine this_machine() { return {l2_bytes(), normkit::cache_bytes(), available_memory()}; }

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

CpuSeconds cpu_seconds() {
  const double tick = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  tms own{};
  times(&own);
  double user = 0, nice = 0, system = 0;
  std::string cpu;
  std::ifstream("/proc/stat") >> cpu >> user >> nice >> system;
  const auto wall = std::chrono::steady_clock::now().time_since_epoch();
  return {static_cast<double>(own.tms_utime + own.tms_stime) * tick, (user + nice + system) * tick,
          std::chrono::duration<double>(wall).count() * std::max(1u, std::thread::hardware_concurrency())};
}

double disturbance(const CpuSeconds& before, const CpuSeconds& after) {
  const double others = (after.all - before.all) - (after.own - before.own);
  return std::clamp(others / (after.cores - before.cores), 0.0, 1.0);
}

}  // namespace bench
