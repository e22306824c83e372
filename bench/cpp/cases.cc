#include "cases.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <stdexcept>

namespace bench {
namespace {

using normkit::DType;

constexpr int64_t kKiB = 1024, kGiB = kKiB * kKiB * kKiB;

// As many rows as give a working set of `bytes`, at least one.
int64_t rows_for(const Case& c, int64_t bytes) { return std::max<int64_t>(1, bytes / row_bytes(c)); }

std::vector<Case> limit_cases(bool quick, const std::vector<int>& threads, const Machine& machine) {
  const std::vector<int64_t> widths = quick ? std::vector<int64_t>{128, 1024, 4096, 8192}
                                            : std::vector<int64_t>{64, 128, 256, 768, 1024, 2048, 4096, 8192};
  const std::vector<DType> dtypes =
      quick ? std::vector{DType::f32, DType::bf16} : std::vector{DType::f32, DType::bf16, DType::f16};
  struct Form {
    Direction direction;
    bool residual;
  };
  const std::vector<Form> forms =
      quick ? std::vector<Form>{{Direction::forward, false}, {Direction::forward, true}, {Direction::backward, false}}
            : std::vector<Form>{{Direction::forward, false},
                                {Direction::forward, true},
                                {Direction::backward, false},
                                {Direction::backward, true}};
  std::vector<Case> cases;
  for (const Op op : {Op::rms_norm, Op::layer_norm})
    for (const Form form : forms)
      for (const DType dtype : dtypes)
        for (const std::string place : {"L2", "memory"})
          for (const int64_t cols : widths)
            for (const int t : threads) {
              Case c{op, form.direction, dtype, 1, cols, form.residual, t, place};
              // Half of each core's L2, so that the parameters and the stack fit beside it; or four times the LLC.
              c.rows = rows_for(c, place == "L2" ? t * machine.l2_bytes / 2 : 4 * machine.cache_bytes);
              cases.push_back(c);
            }
  return cases;
}

std::vector<Case> call_cases(const std::vector<int>& threads) {
  std::vector<Case> cases;
  const auto add = [&](Op op, Direction direction, DType dtype, int64_t rows, int64_t cols, bool residual) {
    for (const int t : threads) cases.push_back({op, direction, dtype, rows, cols, residual, t, "call"});
  };
  for (const Op op : {Op::rms_norm, Op::layer_norm}) {
    add(op, Direction::forward, DType::f32, 1, 64, false);
    add(op, Direction::forward, DType::bf16, 1, 64, false);
    add(op, Direction::forward, DType::f32, 1, 4096, false);
    add(op, Direction::forward, DType::bf16, 1, 4096, false);
    add(op, Direction::forward, DType::f16, 1, 4096, false);
    add(op, Direction::forward, DType::bf16, 1, 4096, true);
    add(op, Direction::forward, DType::bf16, 16, 4096, false);
    add(op, Direction::forward, DType::bf16, 32, 128, false);
    add(op, Direction::backward, DType::f32, 1, 64, false);
    add(op, Direction::backward, DType::bf16, 1, 4096, false);
  }
  return cases;
}

std::string size_label(int64_t bytes) {
  const char* units[] = {"B", "KB", "MB", "GB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 3) bytes /= 1024, ++unit;
  return std::to_string(bytes) + units[unit];
}

std::vector<Case> linear_cases(bool quick, const std::vector<int>& threads, const Machine& machine) {
  // The copy is measured on buffers of its own, so a working set of n bytes takes 2n: a quarter is a safe limit.
  const int64_t top = std::min(4 * kGiB, machine.memory_bytes / 4);
  std::vector<Case> cases;
  for (const Op op : {Op::rms_norm, Op::layer_norm})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const int t : threads)
        for (int64_t bytes = kKiB; bytes <= top; bytes *= quick ? 16 : 4) {
          Case c{op, Direction::forward, dtype, 1, 1024, false, t, size_label(bytes)};
          while (c.cols > 1 && row_bytes(c) > bytes) c.cols /= 2;
          c.rows = rows_for(c, bytes);
          cases.push_back(c);
        }
  return cases;
}

DType parse_dtype(const std::string& name) {
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16})
    if (name == normkit::dtype_name(t)) return t;
  throw std::invalid_argument("dtype '" + name + "', expected f32, f64, bf16 or f16");
}

}  // namespace

std::string Case::name() const {
  std::string s = op == Op::rms_norm ? "rms_norm" : "layer_norm";
  if (residual) s += "+residual";
  s += direction == Direction::forward ? "/forward/" : "/backward/";
  s += std::string(normkit::dtype_name(dtype)) + "/" + std::to_string(rows) + "x" + std::to_string(cols);
  return s + "/t" + std::to_string(threads) + "/" + place;
}

int64_t row_bytes(const Case& c) {
  // forward: x (+ residual) -> y (+ h);  backward: dy, x (+ dh) -> dx
  const int arrays = c.direction == Direction::forward ? (c.residual ? 4 : 2) : (c.residual ? 4 : 3);
  return arrays * c.cols * normkit::dtype_size(c.dtype);
}

std::vector<Case> cases_of(const std::string& set, bool quick, const std::vector<int>& threads,
                           const Machine& machine) {
  if (set == "limits") return limit_cases(quick, threads, machine);
  if (set == "calls") return call_cases(threads);
  if (set == "linear") return linear_cases(quick, threads, machine);
  throw std::invalid_argument("set '" + set + "', expected limits, calls or linear");
}

Case parse_case(const std::string& text) {
  const auto bad = [&](const std::string& what) {
    return std::invalid_argument("case '" + text + "': " + what + "; expected OP,DIRECTION,DTYPE,ROWSxCOLS[,residual]");
  };
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  if (parts.size() < 4 || parts.size() > 5) throw bad("has " + std::to_string(parts.size()) + " parts");
  Case c;
  c.place = "given";
  if (parts[0] != "rms_norm" && parts[0] != "layer_norm") throw bad("operation '" + parts[0] + "'");
  c.op = parts[0] == "rms_norm" ? Op::rms_norm : Op::layer_norm;
  if (parts[1] != "forward" && parts[1] != "backward") throw bad("direction '" + parts[1] + "'");
  c.direction = parts[1] == "forward" ? Direction::forward : Direction::backward;
  c.dtype = parse_dtype(parts[2]);
  long long rows = 0, cols = 0;
  if (std::sscanf(parts[3].c_str(), "%lldx%lld", &rows, &cols) != 2 || rows < 1 || cols < 1)
    throw bad("shape '" + parts[3] + "'");
  c.rows = rows;
  c.cols = cols;
  if (parts.size() == 5 && parts[4] != "residual") throw bad("option '" + parts[4] + "'");
  c.residual = parts.size() == 5;
  return c;
}

}  // namespace bench
