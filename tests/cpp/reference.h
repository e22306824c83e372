// An independent reference in f64 (f64 x: long double), two passes and nothing clever, and the one tolerance formula of
// docs/numerics.md that results are held against.
#pragma once

#include "run.h"

namespace normkit::test {

// Exact results for a case, before the last rounding, and the scale that the tolerance of each element is made of.
struct Expected {
  std::vector<long double> value;
  std::vector<double> scale;

  explicit Expected(int64_t size = 0) : value(static_cast<size_t>(size)), scale(static_cast<size_t>(size)) {}
};
struct Reference {
  Expected y, dx, dweight, dbias;
  std::vector<double> h;                // x + residual as the contract defines it, exact
  std::vector<long double> mean, rstd;  // per row
  std::vector<double> deviation;        // of each row around its mean
};
Reference reference(const Case& c, const Inputs& in);

// One measurement of a result against the formula
//   |got - ref| <= u_out*|ref| + 16*u*scale + tiny_out
// with u the rounding unit of the compute type.
struct Measure {
  double share = 0;     // largest |got - ref| / bound
  double constant = 0;  // largest (|got - ref| - u_out*|ref| - tiny_out) / (u*scale): what the formula allows 16 for
  int64_t worst = -1;   // index of the largest share
  bool passes() const { return share <= 1; }
  void merge(const Measure& m);
};
Measure measure(const Buffer& got, const Expected& expected, DType compute);

}  // namespace normkit::test
