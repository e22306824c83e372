// From a case and its data to one call of the library, and its results.
#pragma once

#include "cases.h"

namespace normkit::test {

// What a forward or backward call writes. Absent buffers were not asked for.
struct Outputs {
  Buffer y, residual_out, mean, rstd;
  Buffer dx, dweight, dbias;

  // Bit equality; NaN equals NaN.
  friend bool operator==(const Outputs&, const Outputs&) = default;
};
// The name and index of the first difference, for messages; "" if there is none.
std::string difference(const Outputs& a, const Outputs& b);

// The functions of the operation.
void call(Op op, const NormArgs& args, const Exec& exec = {});
void call(Op op, const NormGradArgs& args, const Exec& exec = {});
const char* function_name(Op op, bool backward);

// Arguments over contiguous buffers, x as [rows, cols]. The outputs are given the buffers that the case asks for.
NormArgs forward_args(const Case& c, const Inputs& in, Outputs& out);
// Without the saved mean and rstd; residual_out of the forward is formed again.
NormGradArgs backward_args(const Case& c, const Inputs& in, Outputs& out);

Outputs forward(const Case& c, const Inputs& in, const Exec& exec = {});
Outputs backward(const Case& c, const Inputs& in, const Exec& exec = {});
// Both, in one result.
Outputs run(const Case& c, const Inputs& in, const Exec& exec = {});

// Hash of the bits of everything written; any NaN counts as the same NaN.
uint64_t hash_bits(const Buffer& b, uint64_t hash);
uint64_t hash(const Outputs& out);

// The rows of `in` named by `order`, as the inputs of a case with that many rows.
Inputs take_rows(const Case& c, const Inputs& in, const std::vector<int64_t>& order);
Buffer take_rows(const Buffer& b, int64_t row_size, const std::vector<int64_t>& order);

// Runs a scope on the named instruction set and then returns to the one that was chosen before.
class OnTarget {
 public:
  explicit OnTarget(const std::string& name);
  ~OnTarget();
  OnTarget(const OnTarget&) = delete;

 private:
  std::string before_;
};

}  // namespace normkit::test
