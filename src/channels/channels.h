// The interface between the drivers (forward.cc, backward.cc: checks, split over threads) and the kernels (kernels.cc,
// compiled once per instruction set and x dtype) of the channel norms. Plain data only, as in rows/rows.h.
//
// Every tensor is seen as x[n][c][s]: samples, channels, positions. In `planes` the positions of a channel are one run of
// elements, in `columns` the channels of a position are. A set is what shares statistics: one channel of all samples
// (batch_norm), or some channels of one sample (group_norm, instance_norm).
#pragma once

#include "rows/rows.h"

namespace normkit::channels {

inline constexpr int64_t kRowBlock = 256;  // positions of a block of column sums (normative)
inline constexpr int64_t kSumRows =
    64;  // of them, those summed in x's compute type; such sums are added in f64 (normative)
inline constexpr int64_t kProbes = 8;  // first positions of a block whose mean is its shift (normative)
inline constexpr int64_t kPad = 64;    // per-channel arrays are readable and writable up to a multiple of it
static inline int64_t padded(int64_t channels) { return (channels + kPad - 1) / kPad * kPad; }

enum class Layout : uint8_t { planes, columns };

struct Sizes {
  int64_t n = 0, c = 0, s = 0;
  int64_t elems() const { return n * c * s; }
};

// Element [n][c][s] lies at data + n * this->n + c * this->c + s * this->s; steps in bytes.
struct Tensor {
  char* data = nullptr;  // null: absent
  int64_t n = 0, c = 0, s = 0;
  bool f32 = false;  // stored as f32 where x is not
  Tensor at(int64_t sample, int64_t channel) const {
    Tensor t = *this;
    if (t.data) t.data += sample * n + channel * c;
    return t;
  }
};

// Sets that lie a constant step apart: `outer` times `inner` runs of `cols` elements each.
struct Sets {
  const char* x = nullptr;
  int64_t step = 0;
  int64_t cols = 0, outer = 1, outer_step = 0, inner = 1, inner_step = 0;
  int64_t elems() const { return cols * outer * inner; }
};

// Per set or channel, one array per quantity, so that a loop over sets is a loop over vectors.
struct MomentArrays {  // of parts that all have the same number of elements; see rows::Moments
  double *origin, *shift, *m2, *slack;
};
struct StatArrays {  // xhat = ((x * scale - m0) - delta) * rstd; scale is 1 except in f64 whose squares leave the range
  double *m0, *delta, *rstd, *scale, *var;
};

// What is done with every element of a channel: out = dy * d + (xhat * k + b). Forward: d = 0, k = weight, b = bias.
// Backward: dx.
struct Affine {
  double *k, *b, *d;
};
// The same in the compute type: out = fma(dy, d, fma(x - m0, k, b)) with rstd and delta inside k and b. Channels whose
// numbers the type does not hold are `wide`: element by element in f64.
struct Coefs {
  void *m0, *k, *b, *d;  // C*; of a pair of columns in register order if the layout is columns
  uint8_t* wide;
  bool any_wide;
  StatArrays stats;
  Affine affine;
};

// One map over elements; dy absent: its term is left out.
struct Map {
  Tensor x{}, dy{}, out{};
  Sizes sizes{};  // of the part that the tensors' data point to
  bool stream = false;
};

// Kernels of one (target, x dtype). They trust their arguments and never throw.
struct Kernels {
  // Planes: moments of `count` runs of `len` elements, `step` bytes apart.
  void (*run_moments)(const char* x, int64_t step, int64_t count, int64_t len, const MomentArrays& out);
  // Columns: moments of every channel over positions [row, row + count), count <= kRowBlock. A position is a pair (n, s),
  // numbered with s fastest.
  void (*block_moments)(const Tensor& x, const Sizes& sizes, int64_t row, int64_t count, const MomentArrays& out);
  // a += b for `count` sets of na and nb elements.
  void (*merge)(const MomentArrays& a, double na, const MomentArrays& b, double nb, int64_t count);
  void (*finish)(const Sets& sets, const rows::Recipe& recipe, int64_t count, const MomentArrays& m,
                 const StatArrays& out);
  // Sets var to the given variances (running statistics, or unknown: null) and the rest from mean and rstd.
  void (*take_stats)(const double* mean, const double* rstd, int64_t count, const StatArrays& out);
  void (*narrow)(Coefs& coefs, int64_t count, Layout layout);
  void (*grad_affine)(const double* weight, const double* g, const double* gx, int64_t count, int64_t set_channels,
                      double n, const StatArrays& stats, const Affine& out);
  // Sums over positions of dy and dy * (xhat * k + b), per channel. Planes: of `count` channels of one sample. Columns: of
  // positions [row, row + count), count <= kRowBlock.
  void (*run_grad_sums)(const Map& map, const Coefs& coefs, double* g, double* gx);
  void (*block_grad_sums)(const Map& map, const Coefs& coefs, int64_t row, int64_t count, double* g, double* gx);
  // out of the whole map (planes), or of positions [row, row + count) of it.
  void (*map_planes)(const Map& map, const Coefs& coefs);
  void (*map_columns)(const Map& map, const Coefs& coefs, int64_t row, int64_t count);
};

}  // namespace normkit::channels
