// The operands of one case: filled, run, and checked against f64.
#pragma once

#include <cstdint>
#include <vector>

#include "cases.h"
#include "memory.h"

namespace bench {

class Problem {
 public:
  explicit Problem(const Case& c);

  // One call of normkit.
  void run() const;
  // The bytes that one call must move: every operand once.
  int64_t bytes() const { return bytes_; }
  // Runs once more on poisoned outputs and returns the largest error as a share of the tolerance in docs/numerics.md:
  // right when at most 1. Rows are sampled; gradients of the parameters are checked in up to 64 columns over all rows.
  double check() const;

 private:
  template <class T>
  void fill();
  template <class T>
  double check_as() const;
  template <class T>
  double check_forward() const;
  template <class T>
  double check_backward() const;

  normkit::ConstView matrix(const Buffer& b) const;
  normkit::View matrix_out(const Buffer& b) const;

  Case case_;
  bool centred_;
  double eps_ = 1e-5;
  // h: residual_out; dh: the gradient that arrives there. What a case does not have is empty.
  Buffer x_, residual_, dy_, dh_, weight_, bias_, y_, h_, dx_, dweight_, dbias_;
  std::vector<double> mean_, rstd_;  // of every row, in f64; backward takes them as what the forward saved
  int64_t bytes_ = 0;
};

}  // namespace bench
