// A scalar model of docs/numerics.md, written from that page and not from the kernels: it spells out the order of every
// sum and the place of every rounding. The library must give its bits, on every target.
#pragma once

#include "run.h"

namespace normkit::test {

// The outputs that `like` holds, with the bits that the contract promises.
Outputs model_forward(const Case& c, const Inputs& in, const Outputs& like);
Outputs model_backward(const Case& c, const Inputs& in, const Outputs& like);

// True if the statistics of any row of the case need the rescue.
bool model_rescues(const Case& c, const Inputs& in);

}  // namespace normkit::test
