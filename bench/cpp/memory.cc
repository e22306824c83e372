#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
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

}  // namespace bench
