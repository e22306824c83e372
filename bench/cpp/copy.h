// The limit that we measure against: plain copies.
#pragma once

#include <cstdint>

namespace bench {

// memcpy, cut into one contiguous part per thread.
void copy_plain(void* to, const void* from, int64_t bytes, int threads);
// The same with non-temporal stores; equal to copy_plain where the compiler offers none.
void copy_streaming(void* to, const void* from, int64_t bytes, int threads);

}  // namespace bench
