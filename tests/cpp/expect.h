// Expectations shared by the test programs.
#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "reference.h"

namespace normkit::test {

// Forward and backward of the case on these inputs lie within the tolerance; returns what was written.
inline Outputs expect_within_tolerance(const Case& c, const Inputs& in) {
  const Outputs out = run(c, in);
  const Reference ref = reference(c, in);
  const DType compute = compute_type(c.x);
  const auto check = [&](const char* what, const Buffer& got, const Expected& expected) {
    const Measure m = measure(got, expected, compute);
    EXPECT_TRUE(m.passes()) << c << ": " << what << "[" << m.worst << "] is " << got.get(m.worst) << ", expected "
                            << static_cast<double>(expected.value[static_cast<size_t>(m.worst)]);
  };
  check("y", out.y, ref.y);
  check("dx", out.dx, ref.dx);
  check("dweight", out.dweight, ref.dweight);
  check("dbias", out.dbias, ref.dbias);
  return out;
}

// Inputs of the case with these values of x, row by row.
inline Inputs with_x(const Case& c, const std::function<double(int64_t row, int64_t column)>& x) {
  Inputs in = make_inputs(c);
  for (int64_t r = 0; r < c.rows; ++r)
    for (int64_t i = 0; i < c.cols; ++i) in.x.set(r * c.cols + i, x(r, i));
  return in;
}
inline Inputs with_x(const Case& c, const std::vector<double>& x) {
  return with_x(c, [&](int64_t r, int64_t i) { return x.at(static_cast<size_t>(r * c.cols + i)); });
}

// got is `expected`, each value within `relative` of itself; 0 must be met exactly.
inline void expect_values(const Buffer& got, const std::vector<double>& expected, double relative = 1e-6) {
  ASSERT_EQ(got.size(), static_cast<int64_t>(expected.size()));
  for (int64_t i = 0; i < got.size(); ++i) {
    const double e = expected[static_cast<size_t>(i)];
    EXPECT_NEAR(got.get(i), e, std::abs(e) * relative) << "element " << i;
  }
}
inline void expect_all(const Buffer& got, double value) {
  for (int64_t i = 0; i < got.size(); ++i) ASSERT_EQ(got.get(i), value) << "element " << i;
}
inline void expect_finite(const Buffer& got) {
  for (int64_t i = 0; i < got.size(); ++i) ASSERT_TRUE(std::isfinite(got.get(i))) << "element " << i;
}

}  // namespace normkit::test
