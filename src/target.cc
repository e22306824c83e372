#include "target.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

namespace normkit {
#define NORMKIT_DECLARE_IN(family, simd)                                                                        \
  namespace family {                                                                                            \
  extern const Kernels kernels_##simd##_f32, kernels_##simd##_f64, kernels_##simd##_bf16, kernels_##simd##_f16; \
  }
#define NORMKIT_DECLARE(simd)    \
  NORMKIT_DECLARE_IN(rows, simd) \
  NORMKIT_DECLARE_IN(channels, simd)
#define NORMKIT_KERNELS(family, simd)                                                            \
  {&family::kernels_##simd##_f32, &family::kernels_##simd##_f64, &family::kernels_##simd##_bf16, \
   &family::kernels_##simd##_f16}
#define NORMKIT_TABLE(simd) {#simd, NORMKIT_KERNELS(rows, simd), NORMKIT_KERNELS(channels, simd)}
#if defined(__x86_64__)
NORMKIT_DECLARE(avx512)
NORMKIT_DECLARE(avx2)
NORMKIT_DECLARE(baseline)
#elif defined(__aarch64__)
NORMKIT_DECLARE(neon)
#else
NORMKIT_DECLARE(baseline)
#endif

namespace {

struct Target {
  const char* name;
  const rows::Kernels* rows[4];  // f32, f64, bf16, f16: the order of DType without `none`
  const channels::Kernels* channels[4];
};

// Best first; the last one runs on every machine that the library is built for.
constexpr Target kTargets[] = {
#if defined(__x86_64__)
    NORMKIT_TABLE(avx512),
    NORMKIT_TABLE(avx2),
    NORMKIT_TABLE(baseline),
#elif defined(__aarch64__)
    NORMKIT_TABLE(neon),
#else
    NORMKIT_TABLE(baseline),
#endif
};

bool runnable(const Target& t) {
#if defined(__x86_64__)
  const auto avx2 = [] {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
           __builtin_cpu_supports("bmi2");
  };
  if (!std::strcmp(t.name, "avx2")) return avx2();
  if (!std::strcmp(t.name, "avx512"))
    return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return t.name != nullptr;
}

const Target& find(const char* name, const char* who) {
  std::string known;
  for (const Target& t : kTargets) {
    if (!runnable(t)) continue;
    if (!std::strcmp(t.name, name)) return t;
    known += (known.empty() ? "" : ", ") + std::string(t.name);
  }
  throw std::invalid_argument(std::string(who) + ": '" + name + "', expected one that this machine can run: " + known);
}

const Target& first_choice() {
  if (const char* name = std::getenv("NORMKIT_TARGET"); name && *name) return find(name, "NORMKIT_TARGET");
  for (const Target& t : kTargets)
    if (runnable(t)) return t;
  return kTargets[std::size(kTargets) - 1];
}

std::atomic<const Target*> chosen{nullptr};

const Target& current() {
  const Target* t = chosen.load(std::memory_order_acquire);
  if (!t) {
    t = &first_choice();
    chosen.store(t, std::memory_order_release);
  }
  return *t;
}

}  // namespace

const rows::Kernels& kernels(DType x) { return *current().rows[static_cast<int>(x) - 1]; }
const channels::Kernels& channel_kernels(DType x) { return *current().channels[static_cast<int>(x) - 1]; }

void set_target(const char* name) { chosen.store(&find(name, "set_target"), std::memory_order_release); }

std::string target() { return current().name; }

std::vector<std::string> targets() {
  std::vector<std::string> names;
  for (const Target& t : kTargets)
    if (runnable(t)) names.emplace_back(t.name);
  return names;
}

// What one core can use: the kernel tells the true share of a virtual machine, where sysconf may tell the whole
// socket's cache.
int64_t cache_bytes() {
  static const int64_t bytes = [] {
    int64_t size = 0;
    for (int index = 0; index < 8; ++index) {
      const std::string path = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size";
      std::ifstream file(path);
      int64_t value = 0;
      char unit = 0;
      if (!(file >> value)) break;
      file >> unit;
      size = std::max(size, value << (unit == 'M' ? 20 : unit == 'K' ? 10 : 0));
    }
    return size > 0 ? size : int64_t{32} << 20;
  }();
  return bytes;
}

const char* version() { return NORMKIT_VERSION; }

}  // namespace normkit
