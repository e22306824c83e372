#include "channels/driver.h"

#include <algorithm>
#include <cmath>

#include "geometry.h"

namespace normkit::channels {
namespace {

// What is read twice should stay in the L2 cache of a core.
constexpr int64_t kDomainBytes = 256 << 10;
// What a team's sums of blocks may take until they are added up.
constexpr int64_t kWaveBytes = 256 << 10;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

MomentArrays moment_arrays(Arena& arena, int64_t count) {
  const int64_t n = padded(count);
  return {arena.take<double>(n), arena.take<double>(n), arena.take<double>(n), arena.take<double>(n)};
}
StatArrays stat_arrays(Arena& arena, int64_t count) {
  const int64_t n = padded(count);
  return {arena.take<double>(n), arena.take<double>(n), arena.take<double>(n), arena.take<double>(n),
          arena.take<double>(n)};
}
void copy_moments(const MomentArrays& to, const MomentArrays& from, int64_t i0, int64_t i1) {
  for (auto [a, b] :
       {std::pair{to.origin, from.origin}, {to.shift, from.shift}, {to.m2, from.m2}, {to.slack, from.slack}})
    std::copy(b + i0, b + i1, a + i0);
}
MomentArrays from(const MomentArrays& m, int64_t i) { return {m.origin + i, m.shift + i, m.m2 + i, m.slack + i}; }

// The first `count` sets; `each` channels of equal statistics.
void spread(const StatArrays& sets, int64_t count, int64_t each, const StatArrays& channels) {
  if (each == 1) return;
  const std::pair<const double*, double*> arrays[] = {
      {sets.m0, channels.m0}, {sets.delta, channels.delta}, {sets.rstd, channels.rstd}, {sets.scale, channels.scale}};
  for (const auto& [one, many] : arrays)
    for (int64_t i = 0; i < count; ++i) std::fill(many + i * each, many + (i + 1) * each, one[i]);
}

}  // namespace

// ---- checks ----------------------------------------------------------------------------------------------------------
int check_x(const char* op, const ConstView& x, int channel_axis) {
  check_present(op, "x", x);
  if (x.rank < 2)
    fail(op, "x has rank " + std::to_string(x.rank) + ", expected 2 or more (samples, channels, positions)");
  if (channel_axis != 1 && channel_axis != -1)
    fail(op, "channel_axis is " + std::to_string(channel_axis) + ", expected 1 (channels first) or -1 (channels last)");
  return channel_axis == 1 ? 1 : x.rank - 1;
}

int64_t check_groups(const char* op, const Method& m, int64_t groups, int64_t channels) {
  if (m.pool != Pool::group) {
    if (groups != 0) fail(op, "groups is not used, expected the default 0");
    return channels;
  }
  if (groups < 1) fail(op, "groups is " + std::to_string(groups) + ", expected 1 or more");
  if (channels == 0) fail(op, "x has 0 channels, expected at least one");
  if (channels % groups != 0)
    fail(op, "groups is " + std::to_string(groups) + ", expected a divisor of the " + std::to_string(channels) +
                 " channels of x");
  return groups;
}

void check_channels(const char* op, const char* name, const ConstView& v, int64_t channels,
                    std::initializer_list<DType> allowed, const char* expected) {
  if (!check_optional(op, name, v)) return;
  check_dtype(op, name, v, allowed, expected);
  if (v.rank == 1 && v.shape[0] == channels) return;
  fail(op, std::string(name) + " has the shape " + shape_text(v) + ", expected (" + std::to_string(channels) +
               ") (the channels of x)");
}

void check_sets(const char* op, const char* name, const ConstView& v, const Method& m, int64_t n, int64_t sets) {
  if (!check_optional(op, name, v)) return;
  check_dtype(op, name, v, DType::f32, DType::f64);
  if (m.pool == Pool::batch ? v.rank == 1 && v.shape[0] == sets : v.rank == 2 && v.shape[0] == n && v.shape[1] == sets)
    return;
  const std::string expected = m.pool == Pool::batch ? "(" + std::to_string(sets) + ") (the channels of x)"
                               : m.pool == Pool::instance
                                   ? "(" + std::to_string(n) + ", " + std::to_string(sets) + ") (samples, channels)"
                                   : "(" + std::to_string(n) + ", " + std::to_string(sets) + ") (samples, groups)";
  fail(op, std::string(name) + " has the shape " + shape_text(v) + ", expected " + expected);
}

void check_running(const char* op, const Method& m, const ConstView& mean, const ConstView& var, int64_t channels,
                   bool training) {
  if (m.pool == Pool::group) {
    if (mean || var) fail(op, "running statistics are not used, expected absent views");
    if (!training) fail(op, "training is false, expected true: there are no running statistics");
    return;
  }
  if (static_cast<bool>(mean) != static_cast<bool>(var))
    fail(op, std::string(mean ? "running_var" : "running_mean") +
                 " is absent, expected running_mean and running_var, or "
                 "neither");
  if (!training && !mean) fail(op, "running_mean is absent, expected running statistics when training is false");
  check_channels(op, "running_mean", mean, channels, {DType::f32, DType::f64}, "f32 or f64");
  check_channels(op, "running_var", var, channels, {DType::f32, DType::f64}, "f32 or f64");
}

void check_positions(const char* op, const Method& m, const Sizes& sizes, const ConstView& x) {
  if (m.pool == Pool::batch || sizes.s > 0 || sizes.n == 0) return;
  fail(op, "x has the shape " + shape_text(x) + ", expected at least one position per channel");
}

// ---- split -----------------------------------------------------------------------------------------------------------
Split Problem::split(int64_t read, int threads) const {
  const Sizes& all = sizes();
  Split s{1, 1, all.c, 1, threads};
  if (columns()) {
    s.count = across_samples ? 1 : all.n;
    if (s.count % threads == 0 || s.count >= 4 * threads)
      s.workers = static_cast<int>(std::min<int64_t>(threads, s.count));
    if (s.workers > 1) s.team = 1;
    return s;
  }
  // Sets of one domain: as many as stay in the cache, and no fewer domains than threads where sets allow it.
  const int64_t sets = sets_per_sample(), set_bytes = std::max<int64_t>(1, set_elems() * read);
  int64_t parts = ceil_div(sets, std::max<int64_t>(1, kDomainBytes / set_bytes));
  const int64_t samples = across_samples ? 1 : all.n;
  if (samples < 4 * threads) parts = std::min(sets, ceil_div(parts, threads) * threads);
  const int64_t each = ceil_div(sets, parts);
  s.per_sample = ceil_div(sets, each);
  s.count = samples * s.per_sample;
  s.channels = each * set_channels;
  s.workers = static_cast<int>(std::min<int64_t>(threads, s.count));
  s.team = 1;
  return s;
}

Domain Problem::domain(const Split& s, int64_t i) const {
  const int64_t n = i / s.per_sample, c0 = i % s.per_sample * s.channels;
  const int64_t c1 = std::min(c0 + s.channels, sizes().c);
  return across_samples ? Domain{0, sizes().n, c0, c1} : Domain{n, n + 1, c0, c1};
}

void Problem::place(Work& w, const Split& s, Arena& arena, bool backward) const {
  const int64_t n = padded(s.channels);
  w.total = moment_arrays(arena, n);
  w.part = moment_arrays(arena, n);
  w.sets = stat_arrays(arena, n);
  w.grouped = set_channels == 1 ? w.total : moment_arrays(arena, n);
  w.channels = set_channels == 1 ? w.sets : stat_arrays(arena, n);
  w.affine = {arena.take<double>(n), arena.take<double>(n), arena.take<double>(n)};
  const auto narrow = [&]() -> void* { return arena.take<char>((n + kPad) * elem); };  // see place_of_last()
  w.coefs = {narrow(), narrow(), narrow(), narrow(), arena.take<uint8_t>(n), false, w.channels, w.affine};
  w.g = arena.take<double>(backward ? n : 0);
  w.gx = arena.take<double>(backward ? n : 0);
  w.g_part = arena.take<double>(backward ? n : 0);
  w.gx_part = arena.take<double>(backward ? n : 0);
  if (!columns()) return;
  const int64_t blocks = ceil_div((across_samples ? sizes().n : 1) * sizes().s, kRowBlock);
  const int64_t slot_bytes = 4 * n * static_cast<int64_t>(sizeof(double));
  w.wave = s.team == 1 ? 1 : std::min(blocks, std::max<int64_t>(4 * s.team, kWaveBytes / slot_bytes));
  w.slots = arena.take<MomentArrays>(w.wave);
  for (int64_t i = 0; i < w.wave; ++i) {
    const MomentArrays m = moment_arrays(arena, n);
    if (w.slots) w.slots[i] = m;
  }
}

Work* Problem::place(const Split& s, Arena& arena, bool backward) const {
  Work* works = arena.take<Work>(s.workers);
  for (int i = 0; i < s.workers; ++i) {
    Work unplaced;
    place(works ? works[i] : unplaced, s, arena, backward);
  }
  return works;
}

// ---- statistics ------------------------------------------------------------------------------------------------------
void Problem::moments_of_planes(const Domain& d, Work& w) const {
  const Tensor& x = at[0];
  const int64_t sets = d.channels() / set_channels, len = set_channels * sizes().s, step = x.c * set_channels;
  for (int64_t n = d.n0; n < d.n1; ++n) {
    k.run_moments(x.at(n, d.c0).data, step, sets, len, n == d.n0 ? w.total : w.part);
    if (n > d.n0) k.merge(w.total, static_cast<double>((n - d.n0) * len), w.part, static_cast<double>(len), sets);
  }
}

void Problem::moments_of_columns(const Domain& d, Work& w, int team) const {
  const Tensor x = at[0].at(d.n0, d.c0);
  const Sizes part = sizes_of(d);
  const int64_t rows = part.n * part.s;
  each_wave(
      rows, part.c, w, team,
      [&](int64_t row, int64_t count, const MomentArrays& slot) { k.block_moments(x, part, row, count, slot); },
      [&](int64_t row, int64_t count, const MomentArrays& slot, const Range& c) {
        if (row == 0) return copy_moments(w.total, slot, c.begin, c.end);
        k.merge(from(w.total, c.begin), static_cast<double>(row), from(slot, c.begin), static_cast<double>(count),
                c.end - c.begin);
      });
  if (set_channels == 1) return;
  for (int64_t i = 0; i < part.c / set_channels; ++i) {  // the channels of a group, in rising order
    rows::Moments sum;
    for (int64_t c = i * set_channels; c < (i + 1) * set_channels; ++c)
      merge(sum, {static_cast<double>(rows), w.total.origin[c], w.total.shift[c], w.total.m2[c], w.total.slack[c]});
    w.grouped.origin[i] = sum.origin, w.grouped.shift[i] = sum.shift;
    w.grouped.m2[i] = sum.m2, w.grouped.slack[i] = sum.slack;
  }
}

void Problem::set_stats(const Domain& d, Work& w, int team) const {
  const int64_t sets = d.channels() / set_channels;
  if (given_rstd) {
    const int64_t first = running ? d.c0 : first_set(d);
    k.take_stats(given_mean + first, given_rstd + first, sets, w.sets);
  } else {
    columns() ? moments_of_columns(d, w, team) : moments_of_planes(d, w);
    const Tensor x = at[0].at(d.n0, d.c0);
    const Sizes part = sizes_of(d);
    Sets geometry{x.data, x.c * set_channels, set_channels * part.s, part.n, x.n};
    if (columns()) geometry.cols = set_channels, geometry.inner = part.s, geometry.inner_step = x.s;
    k.finish(geometry, recipe, sets, columns() ? w.grouped : w.total, w.sets);
  }
  spread(w.sets, sets, set_channels, w.channels);
}

void Problem::map(const Map& m, const Domain& d, const Work& w, int team) const {
  if (!columns()) return k.map_planes(m, w.coefs);
  const int64_t rows = (d.n1 - d.n0) * sizes().s;
  parallel(team, [&](int t) {
    const Range r = range_of(rows, 1, team, t);
    if (r.begin < r.end) k.map_columns(m, w.coefs, r.begin, r.end - r.begin);
  });
}

// ---- small operands --------------------------------------------------------------------------------------------------
namespace {

// Calls f(typed data) for v's type.
template <class View, class F>
void with_type(const View& v, const F& f) {
  const auto as = [&]<class T>(T) {
    using Typed = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(v.data)>>, const T, T>;
    f(static_cast<Typed*>(v.data));
  };
  switch (v.dtype) {
    case DType::f32: return as(float{});
    case DType::f64: return as(double{});
    case DType::bf16: return as(bf16{});
    default: return as(f16{});
  }
}
// Calls f(i, offset of element i) for the elements of a vector or of a matrix, row by row.
template <class View, class F>
void each_offset(const View& v, int64_t count, const F& f) {
  if (v.rank == 1) {
    for (int64_t i = 0; i < count; ++i) f(i, i * v.strides[0]);
  } else {
    for (int64_t i = 0; i < count; ++i) f(i, element_offset(v, i));
  }
}
template <class T>
T narrowed(double v) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) return static_cast<T>(v);
  return T(static_cast<float>(v));
}

}  // namespace

void read_doubles(const ConstView& v, int64_t count, double fill, double* out) {
  if (!v) return std::fill(out, out + count, fill), void();
  with_type(v, [&](const auto* data) { each_offset(v, count, [&](int64_t i, int64_t at) { out[i] = data[at]; }); });
}

void read_running(const ConstView& mean, const ConstView& var, double eps, int64_t channels, double* mean_out,
                  double* rstd_out) {
  read_doubles(mean, channels, 0, mean_out);
  read_doubles(var, channels, 0, rstd_out);
  for (int64_t c = 0; c < channels; ++c) {
    const double d = std::sqrt(rstd_out[c] + eps);
    rstd_out[c] = d == 0 ? 0 : 1 / d;
  }
}

void write_doubles(const View& v, int64_t count, const double* from) {
  with_type(v, [&]<class T>(T* data) {
    each_offset(v, count, [&](int64_t i, int64_t at) { data[at] = narrowed<T>(from[i]); });
  });
}

}  // namespace normkit::channels
