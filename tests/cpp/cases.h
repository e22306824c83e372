// The table of cases that drives the tests, and the data of each case.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "buffer.h"

namespace normkit::test {

enum class Op { layer, rms, l2 };

// How the values of x are distributed. Every one has shown a fault of some library.
enum class Dist {
  normal,    // mean 0, deviation 1
  shifted,   // mean 3, deviation 2
  far,       // mean 1e4 deviations away from 0 (f64: 1e12)
  constant,  // every element the same
  ramp,      // rises evenly over the row
  heavy,     // heavy tails
  outlier,   // one element 1000 times as large
  head,      // the first 64 elements stand apart: the probes miss the mean
  huge,      // squares overflow in f32 (f64: in f64); f16: near its largest value
  tiny,      // squares underflow in f32 (f64: in f64); f16: subnormal
  zeros,
  kinds_end
};

// One row of the table. Absent operands have DType::none; y, dx: none means x's type.
struct Case {
  Op op = Op::layer;
  DType x = DType::f32;
  DType weight = DType::none, bias = DType::none, residual = DType::none, residual_out = DType::none, y = DType::none;
  int64_t rows = 3, cols = 64;
  Dist dist = Dist::normal;
  double eps = 1e-5, weight_offset = 0;
  Rounding rounding = Rounding::once;
  EpsMode eps_mode = EpsMode::inside;
  ResidualStats residual_stats = ResidualStats::rounded;
  bool single_weight = false;  // weight (and bias) of one element
  bool wide = false;           // too much data for the slow parts of the suite

  DType y_type() const { return y == DType::none ? x : y; }
  // The type that h is rounded to.
  DType h_type() const {
    if (residual == DType::none) return x;
    if (residual_out != DType::none) return residual_out;
    return dtype_size(x) >= dtype_size(residual) ? x : residual;
  }
  int64_t weight_size() const { return single_weight ? 1 : cols; }
  // What the backward sees: it has no residual_out and rounds h to the wider of x's and residual's types.
  Case for_backward() const {
    Case c = *this;
    c.residual_out = DType::none;
    return c;
  }
};

std::string name_of(const Case& c);
std::ostream& operator<<(std::ostream& out, const Case& c);

// All cases; their names are unique.
const std::vector<Case>& all_cases();

// Everything a case reads, forward and backward.
struct Inputs {
  Buffer x, weight, bias, residual;
  Buffer dy, dresidual_out;  // dresidual_out only with a residual
};
// Deterministic: the same bits on every machine.
Inputs make_inputs(const Case& c);

// Uniform in [0, 1) and roughly normal numbers from integer arithmetic and exact operations only.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits();
  double uniform();
  double normal();

 private:
  uint64_t state_;
};

uint64_t fnv1a(const void* data, size_t bytes, uint64_t hash = 0xcbf29ce484222325u);

}  // namespace normkit::test
