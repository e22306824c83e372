// What is measured: one Case is one cell of the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine.h"
#include "normkit/tensor.h"

namespace bench {

enum class Op { layer_norm, rms_norm };
enum class Direction { forward, backward };

struct Case {
  Op op = Op::rms_norm;
  Direction direction = Direction::forward;
  normkit::DType dtype = normkit::DType::f32;
  int64_t rows = 1, cols = 1;
  bool residual = false;  // forward: fused add, h stored; backward: the gradient of h joins dx
  int threads = 1;
  std::string place;  // L2, memory, call, or the size in the linear sweep

  // "rms_norm/forward/bf16/2048x4096/t1/memory"; with a residual "rms_norm+residual/...".
  std::string name() const;
};

// Bytes that a case must move per row: every input once, every output once. Parameters are not counted here.
int64_t row_bytes(const Case& c);

// set: "limits" (the goals of the project, L2 and out of cache), "calls" (what a small call costs) or "linear" (1 KB to
// 4 GB or a quarter of the free memory). quick: fewer widths and types. Throws std::invalid_argument for another set.
std::vector<Case> cases_of(const std::string& set, bool quick, const std::vector<int>& threads, const Machine& machine);

// "rms_norm,forward,bf16,2048x4096[,residual]" -> a case. Throws std::invalid_argument.
Case parse_case(const std::string& text);

}  // namespace bench
