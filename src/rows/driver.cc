#include "rows/driver.h"

namespace normkit::rows {

void check_x(const char* op, const ConstView& x) {
  check_present(op, "x", x);
  if (x.rank < 1) fail(op, "x has rank 0, expected 1 or more");
}

void check_like_x(const char* op, const char* name, const ConstView& v, const ConstView& x) {
  if (!check_optional(op, name, v)) return;
  check_dtype(op, name, v, x.dtype, DType::f32);
  check_same_shape(op, name, v, x);
}

void check_parameter(const char* op, const char* name, const ConstView& v, const ConstView& x, int axis) {
  if (!check_optional(op, name, v)) return;
  check_dtype(op, name, v, x.dtype, DType::f32);
  check_parameter_shape(op, name, v, x, axis);
}

void check_stat(const char* op, const char* name, const ConstView& v, const ConstView& x, int axis) {
  if (!check_optional(op, name, v)) return;
  check_dtype(op, name, v, DType::f32, DType::f64);
  check_stat_shape(op, name, v, x, axis);
}

Operand like_x(const ConstView& v, const ConstView& x) {
  Operand o;
  o.data = static_cast<char*>(const_cast<void*>(v.data));
  o.f32 = v.dtype == DType::f32 && x.dtype != DType::f32;
  return o;
}

Operand stat(const ConstView& v) {
  Operand o;
  o.data = static_cast<char*>(const_cast<void*>(v.data));
  o.f32 = v.dtype == DType::f32;
  return o;
}

Source make_source(const ConstView& x, const ConstView& residual, DType h_type, ResidualStats stats) {
  Source s;
  s.x = like_x(x, x);
  s.residual = like_x(residual, x);
  s.h_f32 = h_type == DType::f32;
  s.round_h =
      residual && stats == ResidualStats::rounded && h_type != (x.dtype == DType::f64 ? DType::f64 : DType::f32);
  return s;
}

size_t parameter_scratch(const ConstView& v, int64_t cols) {
  return !v || is_run(v, cols) ? 0 : static_cast<size_t>((cols * dtype_size(v.dtype) + 63) / 64 * 64);
}

Operand parameter(const ConstView& v, const ConstView& x, int64_t cols, char*& scratch) {
  Operand o = like_x(v, x);
  const size_t bytes = parameter_scratch(v, cols);
  if (bytes == 0) return o;
  gather_parameter(v, cols, scratch);
  o.data = scratch;
  scratch += bytes;
  return o;
}

bool past_the_cache(int64_t bytes, const ConstView& out, std::initializer_list<const ConstView*> inputs) {
  if (bytes <= cache_bytes()) return false;
  for (const ConstView* in : inputs)
    if (in->data == out.data) return false;  // in place: the line is in the cache already
  return true;
}

bool share_rows(const Geometry& g, int threads) {
  constexpr int64_t kLong = 16 * kBlock;
  return threads > 1 && g.simple() && g.cols() >= kLong && g.rows() < 8 * threads && g.rows() % threads != 0;
}

}  // namespace normkit::rows
