// What the forward and the backward driver of the channel norms share: the checks, which elements share statistics, and
// where the statistics come from.
#pragma once

#include "channels/layout.h"
#include "check.h"
#include "normkit/channel_norm.h"
#include "parallel.h"
#include "target.h"

namespace normkit::channels {

enum class Pool : uint8_t {
  batch,
  instance,
  group
};  // a set: a channel of the batch, of a sample, a group of a sample
struct Method {
  const char* name;
  const char* backward_name;
  Pool pool;
};
inline constexpr Method kBatchNorm{"batch_norm", "batch_norm_backward", Pool::batch};
inline constexpr Method kInstanceNorm{"instance_norm", "instance_norm_backward", Pool::instance};
inline constexpr Method kGroupNorm{"group_norm", "group_norm_backward", Pool::group};

// The checks that both directions have. Args: ChannelNormArgs or ChannelNormGradArgs. Return the channel axis.
int check_x(const char* op, const ConstView& x, int channel_axis);
int64_t check_groups(const char* op, const Method& m, int64_t groups, int64_t channels);
void check_channels(const char* op, const char* name, const ConstView& v, int64_t channels,
                    std::initializer_list<DType> allowed, const char* expected);
void check_sets(const char* op, const char* name, const ConstView& v, const Method& m, int64_t n, int64_t sets);
void check_running(const char* op, const Method& m, const ConstView& mean, const ConstView& var, int64_t channels,
                   bool training);
// A set without elements has no statistics; an empty batch is fine.
void check_positions(const char* op, const Method& m, const Sizes& sizes, const ConstView& x);

// Hands out parts of a scratch buffer; with no buffer it only counts.
class Arena {
 public:
  explicit Arena(char* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return p;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// Channels [c0, c1) of samples [n0, n1): whole sets, worked through together, so that their second reading finds them in
// the cache.
struct Domain {
  int64_t n0, n1, c0, c1;
  int64_t channels() const { return c1 - c0; }
};
// How a call is cut into domains: `workers` threads take domains, each with a team of `team` threads.
struct Split {
  int64_t count, per_sample, channels;  // domains; those of one sample (or of all, if sets span them); most channels
  int workers, team;
};

// Per-channel arrays for one domain at a time.
struct Work {
  MomentArrays total, part, grouped;
  StatArrays sets, channels;  // the same arrays where every channel is a set
  Affine affine;
  Coefs coefs;
  double *g, *gx, *g_part, *gx_part;  // backward: sums per channel
  // Columns: what blocks of positions give until it is added up, a wave of blocks at a time. Moments, or (backward) the
  // sums g and gx in place of origin and shift.
  int64_t wave;
  MomentArrays* slots;
};

// A call: its sets, and the source of their statistics.
struct Problem {
  const Kernels& k;
  const Placement& at;
  rows::Recipe recipe{};
  int64_t elem = 4;             // bytes of the compute type
  int64_t set_channels = 1;     // channels of a set
  bool across_samples = false;  // a set (or, with running statistics, a domain) spans all samples
  // Statistics that are given, in f64: of every set, or running ones, of every channel. Null: computed.
  const double *given_mean = nullptr, *given_rstd = nullptr;
  bool running = false;

  const Sizes& sizes() const { return at.sizes(); }
  bool columns() const { return at.layout() == Layout::columns; }
  int64_t sets_per_sample() const { return sizes().c / set_channels; }
  int64_t sets() const { return sets_per_sample() * (across_samples ? 1 : sizes().n); }
  int64_t set_elems() const { return set_channels * sizes().s * (across_samples ? sizes().n : 1); }

  // `read`: bytes that are read of each element.
  Split split(int64_t read, int threads) const;
  Domain domain(const Split& s, int64_t i) const;
  int64_t first_set(const Domain& d) const {
    return (across_samples ? 0 : d.n0 * sets_per_sample()) + d.c0 / set_channels;
  }
  // One Work for each worker of the split.
  Work* place(const Split& s, Arena& arena, bool backward) const;
  // The statistics of a domain's sets and, from them, of its channels.
  void set_stats(const Domain& d, Work& w, int team) const;
  // A part of an operand that a map goes over.
  Sizes sizes_of(const Domain& d) const { return {d.n1 - d.n0, d.channels(), sizes().s}; }
  void map(const Map& m, const Domain& d, const Work& w, int team) const;

 private:
  void place(Work& w, const Split& s, Arena& arena, bool backward) const;
  void moments_of_planes(const Domain& d, Work& w) const;
  void moments_of_columns(const Domain& d, Work& w, int team) const;
};

// Runs f(domain, work, team) for every domain. `works`: one per worker.
template <class F>
void each_domain(const Problem& p, const Split& s, Work* works, const F& f) {
  parallel(s.workers, [&](int part) {
    const Range r = range_of(s.count, 1, s.workers, part);
    for (int64_t i = r.begin; i < r.end; ++i) f(p.domain(s, i), works[part], s.team);
  });
}

// The blocks of `rows` positions, shared by a team: sum(first row, rows, slot) for each, then, in rising order of the blocks,
// add(first row, rows, slot, range of channels).
template <class Sum, class Add>
void each_wave(int64_t rows, int64_t channels, const Work& w, int team, const Sum& sum, const Add& add) {
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const auto size_of = [&](int64_t b) { return rows - b * kRowBlock < kRowBlock ? rows - b * kRowBlock : kRowBlock; };
  for (int64_t first = 0; first < blocks; first += w.wave) {
    const int64_t count = blocks - first < w.wave ? blocks - first : w.wave;
    parallel(team, [&](int part) {
      const Range r = range_of(count, 1, team, part);
      for (int64_t i = r.begin; i < r.end; ++i) sum((first + i) * kRowBlock, size_of(first + i), w.slots[i]);
    });
    parallel(team, [&](int part) {
      const Range c = range_of(channels, kPad, team, part);
      if (c.begin >= c.end) return;
      for (int64_t i = 0; i < count; ++i) add((first + i) * kRowBlock, size_of(first + i), w.slots[i], c);
    });
  }
}

// Args: ChannelNormArgs or ChannelNormGradArgs.
template <class Args>
Problem make_problem(const Method& m, const Args& a, const Placement& at, int64_t groups) {
  Problem p{.k = channel_kernels(a.x.dtype), .at = at};
  p.recipe.centre = true;
  p.recipe.eps = a.eps;
  p.elem = a.x.dtype == DType::f64 ? 8 : 4;
  p.set_channels = m.pool == Pool::group ? at.sizes().c / groups : 1;
  p.running = !a.training;
  p.across_samples = p.running ? p.columns() : m.pool == Pool::batch;
  return p;
}

// The running statistics as mean and rstd.
void read_running(const ConstView& mean, const ConstView& var, double eps, int64_t channels, double* mean_out,
                  double* rstd_out);

// A per-channel or per-set operand in f64; `fill` where it is absent. And back.
void read_doubles(const ConstView& v, int64_t count, double fill, double* out);
void write_doubles(const View& v, int64_t count, const double* from);

}  // namespace normkit::channels
