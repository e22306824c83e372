// Every case of the table against the f64 reference, by the one tolerance formula; and the error table of
// docs/numerics.md against what is measured here.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "reference.h"

namespace normkit::test {
namespace {

struct Errors {
  Measure y, dx, dweight, dbias;
};

void expect_passes(const Case& c, const char* what, const Measure& m, const Buffer& got, const Expected& expected) {
  if (m.passes()) return;
  const size_t k = static_cast<size_t>(m.worst);
  ADD_FAILURE() << c << ": " << what << "[" << m.worst << "] is " << got.get(m.worst) << ", expected "
                << static_cast<double>(expected.value[k]) << ": " << m.share << " times the bound";
}

// Measured once for all tests of this program.
const std::map<std::pair<Op, DType>, Errors>& errors() {
  static const auto measured = [] {
    std::map<std::pair<Op, DType>, Errors> worst;
    for (const Case& c : all_cases()) {
      const Inputs in = make_inputs(c);
      const Outputs out = run(c, in);
      const Reference ref = reference(c, in);
      Errors& e = worst[{c.op, c.x}];
      const DType compute = compute_type(c.x);
      auto check = [&](const char* what, Measure& total, const Buffer& got, const Expected& expected) {
        const Measure m = measure(got, expected, compute);
        expect_passes(c, what, m, got, expected);
        total.merge(m);
      };
      check("y", e.y, out.y, ref.y);
      check("dx", e.dx, out.dx, ref.dx);
      check("dweight", e.dweight, out.dweight, ref.dweight);
      check("dbias", e.dbias, out.dbias, ref.dbias);
    }
    return worst;
  }();
  return measured;
}

TEST(Tolerance, EveryCaseOfTheTable) {
  EXPECT_EQ(errors().size(), 12u);  // three operations, four types
}

// residual_out is defined exactly: one addition, one rounding.
TEST(Tolerance, ResidualOutIsExact) {
  for (const Case& c : all_cases()) {
    if (c.residual_out == DType::none) continue;
    const Inputs in = make_inputs(c);
    const Outputs out = forward(c, in);
    const Reference ref = reference(c, in);
    for (int64_t i = 0; i < out.residual_out.size(); ++i)
      ASSERT_EQ(out.residual_out.get(i), round_to(c.residual_out, ref.h[static_cast<size_t>(i)]))
          << c << " element " << i;
  }
}

// The saved statistics. The mean is as exact as the deviation of the row allows.
TEST(Tolerance, SavedStatistics) {
  for (const Case& c : all_cases()) {
    const Inputs in = make_inputs(c);
    const Outputs out = forward(c, in);
    const Reference ref = reference(c, in);
    const double u = unit_roundoff(compute_type(c.x));
    for (int64_t r = 0; r < c.rows; ++r) {
      const size_t k = static_cast<size_t>(r);
      const double rstd = static_cast<double>(ref.rstd[k]), mean = static_cast<double>(ref.mean[k]);
      EXPECT_LE(std::abs(out.rstd.get(r) - rstd), 16 * u * rstd) << c << " row " << r;
      if (c.op != Op::layer) continue;
      const double slack = std::abs(mean) * 0x1p-50 + 16 * u * ref.deviation[k];
      EXPECT_LE(std::abs(out.mean.get(r) - mean), slack) << c << " row " << r;
    }
  }
}

// Rows of the table in docs/numerics.md: | layer_norm | f32 | 0.45 (3.21) | ... |
std::string table_row(Op op, DType x, const Errors& e) {
  std::string row = std::string("| ") + function_name(op, false) + " | " + dtype_name(x) + " |";
  for (const Measure* m : {&e.y, &e.dx, &e.dweight, &e.dbias}) {
    char cell[40];
    std::snprintf(cell, sizeof cell, " %.2f (%.2f) |", m->share, m->constant);
    row += cell;
  }
  return row;
}

// The two numbers of each cell; empty if the line is no such row.
std::vector<double> numbers_in(const std::string& line) {
  std::vector<double> numbers;
  size_t at = line.find("| ", 2);
  at = at == std::string::npos ? at : line.find("| ", at + 2);
  while (at != std::string::npos && at + 2 < line.size()) {
    double share = 0, constant = 0;
    if (std::sscanf(line.c_str() + at, "| %lf (%lf)", &share, &constant) == 2) {
      numbers.push_back(share);
      numbers.push_back(constant);
    }
    at = line.find("| ", at + 2);
  }
  return numbers;
}

TEST(Tolerance, PublishedErrorTable) {
  std::ifstream page(NORMKIT_SOURCE_DIR "/docs/numerics.md");
  ASSERT_TRUE(page) << "docs/numerics.md is missing";
  std::map<std::string, std::vector<double>> published;
  for (std::string line; std::getline(page, line);)
    for (const auto& [key, e] : errors()) {
      const std::string start =
          std::string("| ") + function_name(key.first, false) + " | " + dtype_name(key.second) + " |";
      if (line.starts_with(start)) published[start] = numbers_in(line);
    }
  for (const auto& [key, e] : errors()) {
    const std::string row = table_row(key.first, key.second, e);
    const std::string start =
        std::string("| ") + function_name(key.first, false) + " | " + dtype_name(key.second) + " |";
    const std::vector<double> expected = numbers_in(row), got = published[start];
    ASSERT_EQ(got.size(), expected.size()) << "docs/numerics.md lacks the row\n" << row;
    // The reference of f64 is a long double, whose width differs between machines.
    const double share = key.second == DType::f64 ? 0.05 : 0;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], 0.0101 + share * expected[i])
          << "docs/numerics.md is out of date; the measured row is\n"
          << row;
  }
}

}  // namespace
}  // namespace normkit::test
