// All of normkit, and facts about this build.
#pragma once

#include <string>
#include <vector>

#include "normkit/channel_norm.h"
#include "normkit/norm.h"
#include "normkit/tensor.h"

#pragma GCC visibility push(default)
namespace normkit {

// "1.2.3"
const char* version();
// The instruction set that calls in this process use: "avx512", "avx2", "neon" or "baseline". NORMKIT_TARGET forces one;
// a name that this machine cannot run throws std::invalid_argument here and in every call.
std::string target();
// All instruction sets that this machine can run, best first; the last is always "baseline" (on arm: "neon").
std::vector<std::string> targets();
// Bytes of the last-level cache as used for the choice of streaming stores.
int64_t cache_bytes();

}  // namespace normkit
#pragma GCC visibility pop
