// batch_norm_backward, instance_norm_backward, group_norm_backward: statistics of a domain (saved, running or computed
// again), the sums over its dy, then its dx.
#include <algorithm>
#include <utility>

#include "channels/driver.h"
#include "geometry.h"

namespace normkit {
namespace channels {
namespace {

int64_t check(const Method& m, const ChannelNormGradArgs& a, int axis) {
  const char* op = m.backward_name;
  const ConstView dx = a.dx, dweight = a.dweight, dbias = a.dbias;
  const int64_t channels = a.x.shape[axis], groups = check_groups(op, m, a.groups, channels);
  check_present(op, "dy", a.dy);
  for (const auto& [name, v] : {std::pair{"dy", &a.dy}, std::pair{"dx", &dx}}) {
    if (!check_optional(op, name, *v)) continue;
    check_dtype(op, name, *v, a.x.dtype, DType::f32);
    check_same_shape(op, name, *v, a.x);
  }
  check_channels(op, "weight", a.weight, channels, {a.x.dtype, DType::f32}, "x's or f32");
  check_sets(op, "mean", a.mean, m, a.x.shape[0], groups);
  check_sets(op, "rstd", a.rstd, m, a.x.shape[0], groups);
  if (static_cast<bool>(a.mean) != static_cast<bool>(a.rstd))
    fail(op, std::string(a.mean ? "rstd" : "mean") + " is absent, expected mean and rstd, or neither");
  check_running(op, m, a.running_mean, a.running_var, channels, a.training);
  if (a.training && a.running_mean) fail(op, "running_mean is not used when training is true, expected an absent view");
  if (!a.training && a.mean) fail(op, "mean is not used when training is false, expected an absent view");
  check_finite(op, "eps", a.eps, true);
  if (!a.dx && !a.dweight && !a.dbias) fail(op, "dx, dweight and dbias are absent, expected at least one");
  if (a.accumulate && !a.dweight && !a.dbias)
    fail(op, "accumulate needs dweight or dbias, expected false without them");
  check_channels(op, "dweight", dweight, channels, {a.x.dtype, DType::f32, DType::f64}, "x's, f32 or f64");
  check_channels(op, "dbias", dbias, channels, {a.x.dtype, DType::f32, DType::f64}, "x's, f32 or f64");
  check_overlap(op, {{"dx", dx}}, {{"dy", a.dy}, {"x", a.x}},
                {{"weight", a.weight},
                 {"mean", a.mean},
                 {"rstd", a.rstd},
                 {"running_mean", a.running_mean},
                 {"running_var", a.running_var}});
  check_overlap(op, {{"dweight", dweight}, {"dbias", dbias}}, {},
                {{"dx", dx},
                 {"dy", a.dy},
                 {"x", a.x},
                 {"weight", a.weight},
                 {"mean", a.mean},
                 {"rstd", a.rstd},
                 {"running_mean", a.running_mean},
                 {"running_var", a.running_var}});
  return groups;
}

// Sums of dy and dy * xhat over the positions of a domain's channels: those of each sample, or of each block of
// positions, one after the other.
void sums_of_planes(const Problem& p, const Map& m, Work& w) {
  const int64_t channels = m.sizes.c;
  for (int64_t n = 0; n < m.sizes.n; ++n) {
    Map sample = m;
    sample.x = m.x.at(n, 0), sample.dy = m.dy.at(n, 0);
    p.k.run_grad_sums(sample, w.coefs, n == 0 ? w.g : w.g_part, n == 0 ? w.gx : w.gx_part);
    for (int64_t c = 0; n > 0 && c < channels; ++c) w.g[c] += w.g_part[c], w.gx[c] += w.gx_part[c];
  }
}
void sums_of_columns(const Problem& p, const Map& m, Work& w, int team) {
  std::fill(w.g, w.g + m.sizes.c, 0.0);
  std::fill(w.gx, w.gx + m.sizes.c, 0.0);
  each_wave(
      m.sizes.n * m.sizes.s, m.sizes.c, w, team,
      [&](int64_t row, int64_t count, const MomentArrays& slot) {
        p.k.block_grad_sums(m, w.coefs, row, count, slot.origin, slot.shift);
      },
      [&](int64_t, int64_t, const MomentArrays& slot, const Range& range) {
        for (int64_t c = range.begin; c < range.end; ++c) w.g[c] += slot.origin[c], w.gx[c] += slot.shift[c];
      });
}

// dx as an affine map; running statistics do not depend on x, so that only rstd * dy * weight is left.
void set_affine(const Problem& p, const Domain& d, const double* weight, Work& w) {
  if (p.running) {
    std::fill(w.g, w.g + d.channels(), 0.0);
    std::fill(w.gx, w.gx + d.channels(), 0.0);
  }
  p.k.grad_affine(weight + d.c0, w.g, w.gx, d.channels(), p.set_channels, static_cast<double>(p.set_elems()),
                  w.channels, w.affine);
}

// A total over samples, added to what is there or in place of it.
void write_total(const View& v, const double* parts, int64_t samples, int64_t channels, bool accumulate,
                 double* total) {
  if (!v) return;
  std::fill(total, total + 2 * channels, 0.0);
  for (int64_t n = 0; n < samples; ++n)
    for (int64_t c = 0; c < channels; ++c) total[c] += parts[n * channels + c];
  double* old = total + channels;
  if (accumulate) read_doubles(v, channels, 0, old);
  for (int64_t c = 0; c < channels; ++c) total[c] = old[c] + total[c];
  write_doubles(v, channels, total);
}

// What a call keeps besides the domains' own arrays.
struct Buffers {
  double *weight, *total;
  double *mean, *rstd;  // given statistics
  double *g, *gx;       // sums of every channel, of each sample where no set spans them; if dweight or dbias is wanted
  char* copies;
  Work* works;

  size_t place(char* base, const Problem& p, const Split& split, int64_t given, int64_t sums) {
    Arena arena(base);
    weight = arena.take<double>(padded(p.sizes().c));
    total = arena.take<double>(2 * p.sizes().c);
    mean = arena.take<double>(given);
    rstd = arena.take<double>(given);
    g = arena.take<double>(sums);
    gx = arena.take<double>(sums);
    copies = arena.take<char>(static_cast<int64_t>(p.at.scratch_bytes()));
    works = p.place(split, arena, true);
    return arena.used();
  }
};

// Sums over dy, then dx, of one domain.
void gradients_of(const Problem& p, const Domain& d, Work& w, int team, const Buffers& buffers, bool wants_sums,
                  bool wants_dx, bool stream) {
  p.set_stats(d, w, team);
  const Map map{.x = p.at[0].at(d.n0, d.c0),
                .dy = p.at[1].at(d.n0, d.c0),
                .out = p.at[2].at(d.n0, d.c0),
                .sizes = p.sizes_of(d),
                .stream = stream};
  if (!p.running || wants_sums) {
    std::fill(w.affine.k, w.affine.k + d.channels(), 1.0);
    std::fill(w.affine.b, w.affine.b + d.channels(), 0.0);
    std::fill(w.affine.d, w.affine.d + d.channels(), 0.0);
    p.k.narrow(w.coefs, d.channels(), p.at.layout());
    p.columns() ? sums_of_columns(p, map, w, team) : sums_of_planes(p, map, w);
  }
  if (wants_sums) {
    const int64_t first = (p.across_samples ? 0 : d.n0 * p.sizes().c) + d.c0;
    std::copy(w.g, w.g + d.channels(), buffers.g + first);
    std::copy(w.gx, w.gx + d.channels(), buffers.gx + first);
  }
  if (!wants_dx) return;
  set_affine(p, d, buffers.weight, w);
  p.k.narrow(w.coefs, d.channels(), p.at.layout());
  p.map(map, d, w, team);
}

void run(const Method& m, const ChannelNormGradArgs& a, const Exec& exec) {
  const int axis = check_x(m.backward_name, a.x, a.channel_axis);
  const int64_t groups = check(m, a, axis);
  check_threads(m.backward_name, exec);
  const ConstView dx = a.dx;
  using Role = Placement::Role;
  Placement at(axis, m.pool == Pool::group, {{a.x, Role::input}, {a.dy, Role::input}, {dx, Role::output}});
  const Sizes sizes = at.sizes();
  check_positions(m.backward_name, m, sizes, a.x);

  Problem p = make_problem(m, a, at, groups);
  const int threads = useful_threads(exec.threads, at.bytes());
  const bool given = p.running || a.rstd, wants_sums = a.dweight || a.dbias;
  const int64_t given_count = !given ? 0 : p.running ? sizes.c : p.sets();
  const int64_t samples = p.across_samples ? 1 : sizes.n;
  if (given) p.given_rstd = p.given_mean = &p.recipe.eps;  // not null: nothing is computed, so no memory for it
  const Split split = p.split(dtype_size(a.x.dtype) + dtype_size(a.dy.dtype), threads);
  Buffers buffers;
  const auto place = [&](char* base) {
    return buffers.place(base, p, split, given_count, wants_sums ? samples * sizes.c : 0);
  };
  place(workspace(place(nullptr)));
  parallel(1, [&](int) {  // for its floating-point state
    read_doubles(a.weight, sizes.c, 1, buffers.weight);
    if (!given) return;
    if (p.running) {
      read_running(a.running_mean, a.running_var, a.eps, sizes.c, buffers.mean, buffers.rstd);
    } else {
      read_doubles(a.mean, given_count, 0, buffers.mean);
      read_doubles(a.rstd, given_count, 0, buffers.rstd);
    }
    p.given_mean = buffers.mean;
    p.given_rstd = buffers.rstd;
  });
  at.load(buffers.copies, threads);
  const bool stream = at.bytes() > cache_bytes() && a.dx && a.dx.data != a.x.data && a.dx.data != a.dy.data;
  const bool some = sizes.elems() > 0;
  if (some)
    each_domain(p, split, buffers.works, [&](const Domain& d, Work& w, int team) {
      gradients_of(p, d, w, team, buffers, wants_sums, static_cast<bool>(a.dx), stream);
    });
  at.store(threads);
  parallel(1, [&](int) {
    write_total(a.dweight, buffers.gx, some ? samples : 0, sizes.c, a.accumulate, buffers.total);
    write_total(a.dbias, buffers.g, some ? samples : 0, sizes.c, a.accumulate, buffers.total);
  });
}

}  // namespace
}  // namespace channels

void batch_norm_backward(const ChannelNormGradArgs& args, const Exec& exec) {
  channels::run(channels::kBatchNorm, args, exec);
}
void instance_norm_backward(const ChannelNormGradArgs& args, const Exec& exec) {
  channels::run(channels::kInstanceNorm, args, exec);
}
void group_norm_backward(const ChannelNormGradArgs& args, const Exec& exec) {
  channels::run(channels::kGroupNorm, args, exec);
}

}  // namespace normkit
