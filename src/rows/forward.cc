// layer_norm, rms_norm, l2_norm: check, then rows split over threads. The kernels are in forward-inl.h.
#include "rows/driver.h"

namespace normkit {
namespace rows {
namespace {

// The outputs as views that checks and geometry take.
struct Outputs {
  ConstView y, h, mean, rstd;
  explicit Outputs(const NormArgs& a) : y(a.y), h(a.residual_out), mean(a.mean), rstd(a.rstd) {}
};

int check(const char* op, const Method& m, const NormArgs& a, const Outputs& out) {
  check_x(op, a.x);
  const int axis = check_axis(op, a.x, a.axis);
  check_present(op, "y", out.y);
  check_like_x(op, "y", out.y, a.x);
  check_like_x(op, "residual", a.residual, a.x);
  check_like_x(op, "residual_out", out.h, a.x);
  if (out.h && !a.residual) fail(op, "residual_out needs a residual, expected neither or both");
  check_parameter(op, "weight", a.weight, a.x, axis);
  check_parameter(op, "bias", a.bias, a.x, axis);
  if (out.mean && !m.centre) fail(op, "mean is not used (no mean is subtracted), expected an absent view");
  check_stat(op, "mean", out.mean, a.x, axis);
  check_stat(op, "rstd", out.rstd, a.x, axis);
  check_overlap(op, {{"y", out.y}, {"residual_out", out.h}}, {{"x", a.x}, {"residual", a.residual}},
                {{"weight", a.weight}, {"bias", a.bias}});
  if (out.mean || out.rstd)
    check_overlap(op, {{"mean", out.mean}, {"rstd", out.rstd}}, {},
                  {{"x", a.x},
                   {"residual", a.residual},
                   {"weight", a.weight},
                   {"bias", a.bias},
                   {"y", out.y},
                   {"residual_out", out.h}});
  return axis;
}

// One row at a time, its blocks shared by all threads: moments per block, merged in order, then y.
void run_shared(const Kernels& k, const Forward& call, const Geometry& g, int threads, Moments* moments) {
  const int64_t blocks = blocks_of(g.cols());
  const auto end_of = [&](int64_t block) { return std::min((block + 1) * kBlock, g.cols()); };
  for (int64_t row = 0; row < g.rows(); ++row) {
    parallel(threads, [&](int part) {
      const Range r = range_of(blocks, 1, threads, part);
      for (int64_t b = r.begin; b < r.end; ++b)
        moments[b] = k.part_moments(call.src, call.recipe, row, b * kBlock, end_of(b));
    });
    RowStats stats;
    parallel(1, [&](int) {  // for its floating-point state
      Moments total;
      for (int64_t b = 0; b < blocks; ++b) merge(total, moments[b]);
      stats = k.merged_stats(call.src, call.recipe, g.cols(), row, total);
    });
    parallel(threads, [&](int part) {
      const Range r = range_of(blocks, 1, threads, part);
      if (r.begin < r.end) k.apply(call, row, r.begin * kBlock, end_of(r.end - 1), stats);
    });
  }
}

void run(const Method& m, const NormArgs& a, const Exec& exec) {
  const char* op = m.name;
  const Outputs out(a);
  const int axis = check(op, m, a, out);
  check_threads(op, exec);
  Forward call;
  call.recipe = make_recipe(op, m, a);
  const Kernels& k = kernels(a.x.dtype);
  using Role = Geometry::Role;
  // In the order of Forward::each_operand().
  const Geometry g(a.x, axis,
                   {{a.x, Role::input},
                    {a.residual, Role::input},
                    {out.y, Role::output},
                    {out.h, Role::output},
                    {out.mean, Role::stat},
                    {out.rstd, Role::stat}});
  if (g.rows() == 0) return;
  const int threads = useful_threads(exec.threads, g.bytes());
  const bool shared = share_rows(g, threads);
  const size_t params = parameter_scratch(a.weight, g.cols()) + parameter_scratch(a.bias, g.cols());
  const size_t per_thread = static_cast<size_t>(g.scratch_bytes());
  const size_t moments = shared ? static_cast<size_t>(blocks_of(g.cols())) * sizeof(Moments) : 0;
  char* scratch = params + per_thread + moments == 0
                      ? nullptr
                      : workspace(params + per_thread * static_cast<size_t>(threads) + moments);

  const DType h_type = out.h ? out.h.dtype : wider(a.x.dtype, a.residual.dtype);
  call.src = make_source(a.x, a.residual, h_type, a.residual_stats);
  call.weight = parameter(a.weight, a.x, g.cols(), scratch);
  call.bias = parameter(a.bias, a.x, g.cols(), scratch);
  call.y = like_x(out.y, a.x);
  call.h = like_x(out.h, a.x);
  call.mean = stat(out.mean);
  call.rstd = stat(out.rstd);
  call.cols = g.cols();
  const auto streamed = [&](const ConstView& v) { return !v || past_the_cache(g.bytes(), v, {&a.x, &a.residual}); };
  call.stream = streamed(out.y) && streamed(out.h);

  if (shared) {
    g.visit(call, 0, g.rows(), nullptr, [&](const Forward& c, int64_t, int64_t) {
      run_shared(k, c, g, threads, reinterpret_cast<Moments*>(scratch));
    });
    return;
  }
  parallel(threads, [&](int part) {
    const Range r = range_of(g.rows(), 1, threads, part);
    g.visit(call, r.begin, r.end, scratch + static_cast<size_t>(part) * per_thread,
            [&](const Forward& c, int64_t count, int64_t) { k.forward(c, 0, count); });
  });
}

}  // namespace
}  // namespace rows

void layer_norm(const NormArgs& args, const Exec& exec) { rows::run(rows::kLayerNorm, args, exec); }
void rms_norm(const NormArgs& args, const Exec& exec) { rows::run(rows::kRmsNorm, args, exec); }
void l2_norm(const NormArgs& args, const Exec& exec) { rows::run(rows::kL2Norm, args, exec); }

}  // namespace normkit
