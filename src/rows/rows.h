// The interface between the drivers (forward.cc, backward.cc: checks, split over threads) and the kernels (kernels.cc,
// compiled once per instruction set and x dtype). Plain data only: these headers are seen by code of every target.
//
// A row is one run of `cols` elements that share their statistics. Tensors of a call differ only in where row i starts.
#pragma once

#include <stdint.h>

namespace normkit::rows {

inline constexpr int64_t kBlock = 4096;    // elements of a block sum (normative)
inline constexpr int64_t kGradBlock = 64;  // rows of a weight-gradient block (normative)

enum class EpsKind : uint8_t { inside, outside, clamp };

// One tensor of the call. Row i starts at data + i * step bytes.
struct Operand {
  char* data = nullptr;  // null: absent
  int64_t step = 0;
  bool f32 = false;  // stored as f32 where x (mean and rstd: f64) is not; otherwise as x's type (as f64)
};

// What differs between the methods.
struct Recipe {
  bool centre = false;  // subtract the mean
  bool sum = false;     // q is the sum, not the mean, of squares
  EpsKind eps_kind = EpsKind::inside;
  bool round_xhat = false;  // to x's type, before the weight
  bool offset = false;      // weight_offset is not 0
  double eps = 0;
  double weight_offset = 0;
};

// h = x + residual, the input of the norm. `round_h`: h is rounded to f32 (if h_f32) or to x's type.
struct Source {
  Operand x, residual;
  bool round_h = false;
  bool h_f32 = false;
};

struct Forward {
  Source src;
  Operand weight, bias;  // one run of cols elements; step 0
  Operand y, h;          // h: residual_out
  Operand mean, rstd;    // one element per row
  Recipe recipe;
  int64_t cols = 0;
  bool stream = false;  // write y and h past the cache

  // All operands that move from row to row, in the order of the driver's Geometry.
  template <class F>
  void each_operand(F&& f) {
    f(src.x), f(src.residual), f(y), f(h), f(mean), f(rstd);
  }
};

struct Backward {
  Source src;
  Operand dy, weight, dres, dx;
  Operand mean, rstd;  // null: computed again
  Recipe recipe;
  int64_t cols = 0;
  bool stream = false;

  template <class F>
  void each_operand(F&& f) {
    f(src.x), f(src.residual), f(dy), f(dres), f(dx), f(mean), f(rstd);
  }
};

// Statistics of a part of a row, mergeable. The mean is origin + shift: the origin is an element-sized number near the
// data, so that the pair carries more digits than one double. slack = sum over blocks of S1 * delta (rescue rule).
struct Moments {
  double n = 0, origin = 0, shift = 0, m2 = 0, slack = 0;
};

// What the second sweep needs to know of a row. `slow` rows form xhat in f64: ((h * scale - m0) - delta) * rstd.
struct RowStats {
  double m0 = 0, delta = 0, rstd = 0;
  double scale = 1;
  double c = 1;  // backward: the weight of the xhat term (0 where eps clamps)
  bool slow = false;
  double mean_out = 0, rstd_out = 0;  // as saved for backward
};

// Sums over a row for backward: g = dy * weight, and g * xhat.
struct GradSums {
  double g = 0, gx = 0;
};

// Kernels of one (target, x dtype). They trust their arguments and never throw. Rows are numbered from the operands'
// data pointers; a column range starts at a block border and ends at one or at the end of the row.
struct Kernels {
  void (*forward)(const Forward&, int64_t row0, int64_t row1);
  // The same in parts, for few and long rows: moments of one block, then statistics of the merged moments, then y.
  Moments (*part_moments)(const Source&, const Recipe&, int64_t row, int64_t c0, int64_t c1);
  RowStats (*merged_stats)(const Source&, const Recipe&, int64_t cols, int64_t row, const Moments& merged);
  void (*apply)(const Forward&, int64_t row, int64_t c0, int64_t c1, const RowStats&);

  // dweight, dbias: sums of one weight-gradient block in the compute type, `sum_elems(cols)` long, that the rows are
  // added to; null if not wanted.
  void (*backward)(const Backward&, int64_t row0, int64_t row1, void* dweight, void* dbias);
  // The same in parts: statistics of a row, sums of one block of it, then all rows of [row0, row1) over some columns.
  RowStats (*saved_stats)(const Backward&, int64_t row);
  GradSums (*part_grad_sums)(const Backward&, int64_t row, int64_t c0, int64_t c1, const RowStats&);
  void (*grad_apply)(const Backward&, int64_t row0, int64_t row1, int64_t c0, int64_t c1, const RowStats* stats,
                     const GradSums* sums, void* dweight, void* dbias);
  // total[c] += the block's sum of column c, in natural order.
  void (*add_block)(const void* block, double* total, int64_t c0, int64_t c1);
};
// Elements of a weight-gradient buffer: whole pairs of every target.
static inline int64_t sum_elems(int64_t cols) { return (cols + 63) / 64 * 64; }

// Chan's formula; an empty part is the identity. Parts are merged in rising order.
static inline void merge(Moments& a, const Moments& b) {
  if (b.n == 0) return;
  if (a.n == 0) {
    a = b;
    return;
  }
  const double n = a.n + b.n;
  const double d = (b.origin - a.origin) + (b.shift - a.shift);
  a.shift += d * (b.n / n);
  a.m2 += b.m2 + d * d * (a.n * (b.n / n));
  a.n = n;
  a.slack += b.slack;
}

}  // namespace normkit::rows
