// Which instruction set runs: chosen once per process, by what the machine has and NORMKIT_TARGET.
#pragma once

#include "channels/channels.h"
#include "normkit/normkit.h"
#include "rows/rows.h"

namespace normkit {

// The kernels of the chosen target for x's type. Throws std::invalid_argument when NORMKIT_TARGET cannot be honoured.
const rows::Kernels& kernels(DType x);
const channels::Kernels& channel_kernels(DType x);

// For tests: switches to the named target; throws std::invalid_argument for one that this machine cannot run. Not to
// be called while other threads compute.
void set_target(const char* name);

}  // namespace normkit
