#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <utility>

namespace bench {

Buffer::Buffer(int64_t bytes) : data_(nullptr), bytes_(bytes), mapped_(std::max<int64_t>(bytes, 1)) {
  void* p = mmap(nullptr, static_cast<size_t>(mapped_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(p, static_cast<size_t>(mapped_), MADV_HUGEPAGE);  // advice only: without it the pages are small
#endif
  std::memset(p, 0, static_cast<size_t>(mapped_));  // page faults happen here, not while the clock runs
  data_ = p;
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(mapped_));
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), mapped_(other.mapped_) {}

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

}  // namespace bench
