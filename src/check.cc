#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

namespace normkit {
namespace {

// First and one-past-last byte of a view.
struct Extent {
  intptr_t begin, end;
};
Extent extent(const ConstView& v) {
  intptr_t low = reinterpret_cast<intptr_t>(v.data), high = low;
  const int64_t size = dtype_size(v.dtype);
  for (int d = 0; d < v.rank; ++d) {
    const int64_t reach = (v.shape[d] - 1) * v.strides[d] * size;
    (reach < 0 ? low : high) += reach;
  }
  return {low, high + size};
}

// Dimensions of more than one element, by rising stride; innermost first.
struct Dims {
  int rank = 0;
  int64_t shape[kMaxRank], stride[kMaxRank];
  explicit Dims(const ConstView& v) {
    for (int d = 0; d < v.rank; ++d) {
      if (v.shape[d] == 1) continue;
      const int64_t step = std::abs(v.strides[d]);
      int at = rank++;
      for (; at > 0 && stride[at - 1] > step; --at) shape[at] = shape[at - 1], stride[at] = stride[at - 1];
      shape[at] = v.shape[d], stride[at] = step;
    }
  }
};

// Sufficient, not necessary: every dimension steps over all that the smaller ones span.
bool elements_distinct(const ConstView& v) {
  const Dims dims(v);
  int64_t span = 1;
  for (int d = 0; d < dims.rank; ++d) {
    if (dims.stride[d] < span) return false;
    span += (dims.shape[d] - 1) * dims.stride[d];
  }
  return true;
}

// Views that interleave: both consist of runs that start a common stride apart, in disjoint slots of that stride (two
// column ranges of one matrix). The bytes below the outermost common stride decide.
bool disjoint_slots(const ConstView& a, const ConstView& b) {
  const Dims da(a), db(b);
  const int64_t sa = dtype_size(a.dtype), sb = dtype_size(b.dtype);
  for (int i = 0; i < da.rank; ++i) {
    const int64_t period = da.stride[i] * sa;
    int64_t run_a = sa, run_b = sb;
    for (int d = 0; d < i; ++d) run_a += (da.shape[d] - 1) * da.stride[d] * sa;
    bool outer_fit = period > 0;
    for (int d = i; d < da.rank; ++d) outer_fit = outer_fit && da.stride[d] * sa % period == 0;
    for (int d = 0; d < db.rank; ++d) {
      if (db.stride[d] * sb < period) {
        run_b += (db.shape[d] - 1) * db.stride[d] * sb;
      } else {
        outer_fit = outer_fit && db.stride[d] * sb % period == 0;
      }
    }
    if (!outer_fit) continue;
    const int64_t gap = ((extent(b).begin - extent(a).begin) % period + period) % period;
    if (gap >= run_a && gap + run_b <= period) return true;
  }
  return false;
}

bool same_layout(const ConstView& a, const ConstView& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d)
    if (a.shape[d] != b.shape[d] || (a.shape[d] != 1 && a.strides[d] != b.strides[d])) return false;
  return true;
}

bool overlap(const ConstView& a, const ConstView& b) {
  const Extent ea = extent(a), eb = extent(b);
  if (ea.end <= eb.begin || eb.end <= ea.begin) return false;
  return !disjoint_slots(a, b);
}

}  // namespace

void fail(const char* op, const std::string& what) { throw std::invalid_argument(std::string(op) + ": " + what); }

std::string shape_text(const ConstView& v, int first_dim) {
  std::string s = "(";
  for (int d = first_dim; d < v.rank; ++d) s += (d > first_dim ? ", " : "") + std::to_string(v.shape[d]);
  return s + ")";
}

void check_present(const char* op, const char* name, const ConstView& v) {
  if (!check_optional(op, name, v)) fail(op, std::string(name) + " is absent, expected a view");
}

bool check_optional(const char* op, const char* name, const ConstView& v) {
  if (!v) {
    if (v.data) fail(op, std::string(name) + " has data but no dtype");
    return false;
  }
  if (static_cast<unsigned>(v.dtype) > static_cast<unsigned>(DType::f16))
    fail(op, std::string(name) + " has the unknown dtype " + std::to_string(static_cast<int>(v.dtype)));
  if (v.rank < 0 || v.rank > kMaxRank)
    fail(op, std::string(name) + " has rank " + std::to_string(v.rank) + ", expected 0 to " + std::to_string(kMaxRank));
  int64_t elements = 1;
  bool empty = false;
  for (int d = 0; d < v.rank; ++d) {
    if (v.shape[d] < 0)
      fail(op, std::string(name) + " has the shape " + shape_text(v) + ", expected sizes of 0 or more");
    if (v.shape[d] == 0) empty = true;
    if (__builtin_mul_overflow(elements, std::max<int64_t>(1, v.shape[d]), &elements) || elements > (int64_t{1} << 60))
      fail(op, std::string(name) + " has the shape " + shape_text(v) + ", more elements than memory can hold");
  }
  if (!v.data && !empty)
    fail(op, std::string(name) + " has null data, expected " + std::to_string(elements) + " elements");
  if (v.data && reinterpret_cast<uintptr_t>(v.data) % static_cast<uintptr_t>(dtype_size(v.dtype)) != 0)
    fail(op, std::string(name) + " has data that is not aligned to its " + dtype_name(v.dtype) + " elements");
  return true;
}

void check_dtype(const char* op, const char* name, const ConstView& v, DType a, DType b) {
  if (v.dtype == a || v.dtype == b) return;
  throw dtype_error(std::string(op) + ": " + name + " has dtype " + dtype_name(v.dtype) + ", expected " +
                    dtype_name(a) + (a == b ? "" : std::string(" or ") + dtype_name(b)));
}

void check_dtype(const char* op, const char* name, const ConstView& v, std::initializer_list<DType> allowed,
                 const char* expected) {
  for (const DType t : allowed)
    if (v.dtype == t) return;
  throw dtype_error(std::string(op) + ": " + name + " has dtype " + dtype_name(v.dtype) + ", expected " + expected);
}

void check_same_shape(const char* op, const char* name, const ConstView& v, const ConstView& x) {
  bool same = v.rank == x.rank;
  for (int d = 0; same && d < x.rank; ++d) same = v.shape[d] == x.shape[d];
  if (!same)
    fail(op, std::string(name) + " has the shape " + shape_text(v) + ", expected " + shape_text(x) + " (that of x)");
}

void check_parameter_shape(const char* op, const char* name, const ConstView& v, const ConstView& x, int axis) {
  int64_t cols = 1;
  for (int d = axis; d < x.rank; ++d) cols *= x.shape[d];
  if (v.numel() == 1) return;
  bool same = v.rank == x.rank - axis;
  for (int d = axis; same && d < x.rank; ++d) same = v.shape[d - axis] == x.shape[d];
  if (same || (v.rank == 1 && v.shape[0] == cols)) return;
  const std::string dims = x.rank - axis == 1 ? "last dimension of x" : "normalized dimensions of x";
  if (v.numel() != cols)
    fail(op, std::string(name) + " has " + std::to_string(v.numel()) + " elements, expected " + std::to_string(cols) +
                 " (" + dims + ")");
  fail(op,
       std::string(name) + " has the shape " + shape_text(v) + ", expected " + shape_text(x, axis) + " (" + dims + ")");
}

void check_stat_shape(const char* op, const char* name, const ConstView& v, const ConstView& x, int axis) {
  bool same = v.rank >= axis;
  for (int d = 0; same && d < v.rank; ++d) same = v.shape[d] == (d < axis ? x.shape[d] : 1);
  if (same) return;
  ConstView batch = x;
  batch.rank = axis;
  fail(op, std::string(name) + " has the shape " + shape_text(v) + ", expected " + shape_text(batch) +
               " (x without its normalized dimensions)");
}

int check_axis(const char* op, const ConstView& x, int axis) {
  if (axis < -x.rank || axis >= x.rank)
    fail(op, "axis is " + std::to_string(axis) + ", expected " + std::to_string(-x.rank) + " to " +
                 std::to_string(x.rank - 1) + " (x has rank " + std::to_string(x.rank) + ")");
  axis = axis < 0 ? axis + x.rank : axis;
  for (int d = axis; d < x.rank; ++d)
    if (x.shape[d] == 0)
      fail(op, "x has the shape " + shape_text(x) + ": dimension " + std::to_string(d) +
                   " is normalized, expected at least one element");
  return axis;
}

void check_finite(const char* op, const char* name, double value, bool non_negative) {
  if (std::isfinite(value) && (value >= 0 || !non_negative)) return;
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  fail(op, std::string(name) + " is " + text + ", expected a finite number" + (non_negative ? " of 0 or more" : ""));
}

void check_threads(const char* op, const Exec& exec) {
  if (exec.threads < 1) fail(op, "threads is " + std::to_string(exec.threads) + ", expected 1 or more");
}

void check_overlap(const char* op, std::initializer_list<Named> outputs, std::initializer_list<Named> same_ok,
                   std::initializer_list<Named> others) {
  for (const Named* out = outputs.begin(); out != outputs.end(); ++out) {
    if (!out->view || out->view.numel() == 0) continue;
    if (!elements_distinct(out->view))
      fail(op, std::string(out->name) + " has strides under which its elements overlap, expected distinct elements");
    const auto clash = [&](const Named& in, bool exact_is_fine) {
      if (!in.view || in.view.numel() == 0 || !overlap(out->view, in.view)) return;
      if (exact_is_fine && same_layout(out->view, in.view)) return;
      fail(op, std::string(out->name) + " overlaps " + in.name + " in memory, expected separate memory" +
                   (exact_is_fine ? " or exactly the same view" : ""));
    };
    for (const Named& in : same_ok) clash(in, true);
    for (const Named& in : others) clash(in, false);
    for (const Named* other = outputs.begin(); other != out; ++other) clash(*other, false);
  }
}

}  // namespace normkit
