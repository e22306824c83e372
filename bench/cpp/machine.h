// Facts about the machine, and how much of it others take while we measure.
#pragma once

#include <cstdint>
#include <string>

namespace bench {

struct Machine {
  int64_t l2_bytes, cache_bytes, memory_bytes;  // one core's L2, last-level cache, memory that is free to use
};

Machine this_machine();
std::string cpu_model();

// CPU seconds since some fixed moment: of this process, of all processes (0 where the system does not say), and the
// wall clock times the number of cores.
struct CpuSeconds {
  double own, all, cores;
};
CpuSeconds cpu_seconds();
// The share of the machine that other processes took between two moments.
double disturbance(const CpuSeconds& before, const CpuSeconds& after);

}  // namespace bench
