// batch_norm, instance_norm, group_norm: check, then domains split over threads: statistics of a domain, then its y. The
// loops are in statistics-inl.h and map-inl.h.
#include <algorithm>
#include <vector>

#include "channels/driver.h"
#include "geometry.h"

namespace normkit {
namespace channels {
namespace {

// The outputs as views that checks take.
struct Outputs {
  ConstView y, mean, rstd, running_mean, running_var;
  explicit Outputs(const ChannelNormArgs& a)
      : y(a.y), mean(a.mean), rstd(a.rstd), running_mean(a.running_mean), running_var(a.running_var) {}
};

// Returns the groups of a sample.
int64_t check(const Method& m, const ChannelNormArgs& a, const Outputs& out, int axis) {
  const char* op = m.name;
  const int64_t channels = a.x.shape[axis], groups = check_groups(op, m, a.groups, channels);
  check_present(op, "y", out.y);
  check_dtype(op, "y", out.y, a.x.dtype, DType::f32);
  check_same_shape(op, "y", out.y, a.x);
  check_channels(op, "weight", a.weight, channels, {a.x.dtype, DType::f32}, "x's or f32");
  check_channels(op, "bias", a.bias, channels, {a.x.dtype, DType::f32}, "x's or f32");
  check_sets(op, "mean", out.mean, m, a.x.shape[0], groups);
  check_sets(op, "rstd", out.rstd, m, a.x.shape[0], groups);
  check_running(op, m, out.running_mean, out.running_var, channels, a.training);
  check_finite(op, "eps", a.eps, true);
  check_enum(op, "running_update", a.running_update, RunningUpdate::keras, "torch or keras");
  if (!(a.momentum >= 0 && a.momentum <= 1))
    fail(op, "momentum is " + std::to_string(a.momentum) + ", expected a number from 0 to 1");
  if (!a.training && (a.mean || a.rstd))
    fail(op, std::string(a.mean ? "mean" : "rstd") + " is not used when training is false, expected an absent view");
  check_overlap(op, {{"y", out.y}}, {{"x", a.x}}, {{"weight", a.weight}, {"bias", a.bias}});
  if (out.mean || out.rstd || out.running_mean)
    check_overlap(
        op,
        {{"mean", out.mean}, {"rstd", out.rstd}, {"running_mean", out.running_mean}, {"running_var", out.running_var}},
        {}, {{"x", a.x}, {"weight", a.weight}, {"bias", a.bias}, {"y", out.y}});
  return groups;
}

// What is kept of the statistics of every set, in f64.
struct Kept {
  double *mean, *rstd, *var;
};
void keep(const Kept& to, int64_t first, int64_t count, const StatArrays& s) {
  for (int64_t i = 0; i < count; ++i) {
    to.mean[first + i] = (s.m0[i] + s.delta[i]) / s.scale[i];
    to.rstd[first + i] = std::min(s.rstd[i] * s.scale[i], __DBL_MAX__);
    to.var[first + i] = s.var[i];
  }
}

// Moves the running statistics. instance_norm: by the mean over the samples.
void update_running(const ChannelNormArgs& a, const Kept& kept, int64_t samples, int64_t channels, int64_t elems,
                    double* running) {
  const bool torch = a.running_update == RunningUpdate::torch;
  const double fresh = torch ? a.momentum : 1 - a.momentum, old = torch ? 1 - a.momentum : a.momentum;
  const double unbiased = torch && elems > 1 ? static_cast<double>(elems) / static_cast<double>(elems - 1) : 1;
  const auto move = [&](const View& v, const double* batch, double factor) {
    read_doubles(v, channels, 0, running);
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (int64_t n = 0; n < samples; ++n) sum += batch[n * channels + c];
      const double mean = sum / static_cast<double>(samples) * factor;
      // A weight of 0 keeps what is there, or forgets it, even if it is not finite.
      running[c] = (old == 0 ? 0 : old * running[c]) + (fresh == 0 ? 0 : fresh * mean);
    }
    write_doubles(v, channels, running);
  };
  move(a.running_mean, kept.mean, 1);
  move(a.running_var, kept.var, unbiased);
}

// Nothing to normalize: the running statistics stay.
void empty(const ChannelNormArgs& a) {
  for (const View* v : {&a.mean, &a.rstd}) {
    if (!*v) continue;
    const std::vector<double> zeros(static_cast<size_t>(v->numel()));
    write_doubles(*v, v->numel(), zeros.data());
  }
}

void run(const Method& m, const ChannelNormArgs& a, const Exec& exec) {
  const int axis = check_x(m.name, a.x, a.channel_axis);
  const Outputs out(a);
  const int64_t groups = check(m, a, out, axis);
  check_threads(m.name, exec);
  Placement at(axis, m.pool == Pool::group, {{a.x, Placement::Role::input}, {out.y, Placement::Role::output}});
  const Sizes sizes = at.sizes();
  check_positions(m.name, m, sizes, a.x);
  if (sizes.elems() == 0) return empty(a);

  Problem p = make_problem(m, a, at, groups);
  const int threads = useful_threads(exec.threads, at.bytes());
  double *weight, *bias, *given_mean, *given_rstd, *running;
  Kept kept;
  char* copies;
  const bool keeps = a.mean || a.rstd || (a.training && a.running_mean);
  if (p.running) p.given_rstd = p.given_mean = &p.recipe.eps;  // not null: nothing is computed, so no memory for it
  const Split split = p.split(dtype_size(a.x.dtype), threads);
  Work* works;
  const auto place = [&](char* base) {
    Arena arena(base);
    weight = arena.take<double>(padded(sizes.c));
    bias = arena.take<double>(padded(sizes.c));
    given_mean = arena.take<double>(padded(sizes.c));
    given_rstd = arena.take<double>(padded(sizes.c));
    running = arena.take<double>(padded(sizes.c));
    const int64_t sets = keeps ? p.sets() : 0;
    kept = {arena.take<double>(sets), arena.take<double>(sets), arena.take<double>(sets)};
    copies = arena.take<char>(static_cast<int64_t>(at.scratch_bytes()));
    works = p.place(split, arena, false);
    return arena.used();
  };
  place(workspace(place(nullptr)));

  parallel(1, [&](int) {  // for its floating-point state
    read_doubles(a.weight, sizes.c, 1, weight);
    read_doubles(a.bias, sizes.c, 0, bias);
    if (!p.running) return;
    read_running(out.running_mean, out.running_var, a.eps, sizes.c, given_mean, given_rstd);
    p.given_mean = given_mean;
    p.given_rstd = given_rstd;
  });
  at.load(copies, threads);
  const bool stream = at.bytes() > cache_bytes() && a.x.data != a.y.data;
  each_domain(p, split, works, [&](const Domain& d, Work& w, int team) {
    p.set_stats(d, w, team);
    if (keeps) keep(kept, p.first_set(d), d.channels() / p.set_channels, w.sets);
    std::copy(weight + d.c0, weight + d.c1, w.affine.k);
    std::copy(bias + d.c0, bias + d.c1, w.affine.b);
    std::fill(w.affine.d, w.affine.d + d.channels(), 0.0);
    p.k.narrow(w.coefs, d.channels(), at.layout());
    p.map({.x = at[0].at(d.n0, d.c0), .out = at[1].at(d.n0, d.c0), .sizes = p.sizes_of(d), .stream = stream}, d, w,
          team);
  });
  at.store(threads);
  if (!keeps) return;
  parallel(1, [&](int) {
    if (a.mean) write_doubles(a.mean, p.sets(), kept.mean);
    if (a.rstd) write_doubles(a.rstd, p.sets(), kept.rstd);
    if (a.running_mean) update_running(a, kept, p.sets() / sizes.c, sizes.c, p.set_elems(), running);
  });
}

}  // namespace
}  // namespace channels

void batch_norm(const ChannelNormArgs& args, const Exec& exec) { channels::run(channels::kBatchNorm, args, exec); }
void instance_norm(const ChannelNormArgs& args, const Exec& exec) {
  channels::run(channels::kInstanceNorm, args, exec);
}
void group_norm(const ChannelNormArgs& args, const Exec& exec) { channels::run(channels::kGroupNorm, args, exec); }

}  // namespace normkit
