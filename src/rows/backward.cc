// layer_norm_backward, rms_norm_backward, l2_norm_backward: check, then the split over threads. The kernels are in
// backward-inl.h.
//
// dweight and dbias are sums over all rows. Rows are cut into blocks of kGradBlock; a block's sums are formed row by
// row in x's compute type, and the blocks are added in f64, in order. Neither split below changes that:
//   by rows     a wave of blocks is shared by the threads, then the threads share the columns to add the wave's sums
//   by columns  few rows: first the sums over each row, then each thread takes all rows of its columns
#include <cstring>
#include <utility>

#include "rows/driver.h"

namespace normkit {
namespace rows {
namespace {

constexpr int64_t kWaveBytes = 4 << 20;  // sums of the blocks of one wave

int check(const char* op, const Method& m, const NormGradArgs& a) {
  const ConstView dx = a.dx, dweight = a.dweight, dbias = a.dbias;
  check_x(op, a.x);
  const int axis = check_axis(op, a.x, a.axis);
  check_present(op, "dy", a.dy);
  check_like_x(op, "dy", a.dy, a.x);
  check_like_x(op, "residual", a.residual, a.x);
  check_like_x(op, "dresidual_out", a.dresidual_out, a.x);
  check_like_x(op, "dx", dx, a.x);
  check_parameter(op, "weight", a.weight, a.x, axis);
  if (a.mean && !m.centre) fail(op, "mean is not used (no mean is subtracted), expected an absent view");
  check_stat(op, "mean", a.mean, a.x, axis);
  check_stat(op, "rstd", a.rstd, a.x, axis);
  if (m.centre && static_cast<bool>(a.mean) != static_cast<bool>(a.rstd))
    fail(op, std::string(a.mean ? "rstd" : "mean") + " is absent, expected mean and rstd, or neither");
  if (!a.dx && !a.dweight && !a.dbias) fail(op, "dx, dweight and dbias are absent, expected at least one");
  if (!a.dx && a.dresidual_out) fail(op, "dresidual_out is not used without dx, expected an absent view");
  if (a.accumulate && !a.dweight && !a.dbias)
    fail(op, "accumulate needs dweight or dbias, expected false without them");
  for (const auto& [name, v] : {std::pair{"dweight", &dweight}, std::pair{"dbias", &dbias}}) {
    if (!check_optional(op, name, *v)) continue;
    check_dtype(op, name, *v, {a.x.dtype, DType::f32, DType::f64}, "x's, f32 or f64");
    check_parameter_shape(op, name, *v, a.x, axis);
  }
  check_overlap(op, {{"dx", dx}},
                {{"dy", a.dy}, {"x", a.x}, {"residual", a.residual}, {"dresidual_out", a.dresidual_out}},
                {{"weight", a.weight}, {"mean", a.mean}, {"rstd", a.rstd}});
  check_overlap(op, {{"dweight", dweight}, {"dbias", dbias}}, {},
                {{"dx", dx},
                 {"dy", a.dy},
                 {"x", a.x},
                 {"residual", a.residual},
                 {"dresidual_out", a.dresidual_out},
                 {"weight", a.weight},
                 {"mean", a.mean},
                 {"rstd", a.rstd}});
  return axis;
}

// One call's driver state. Buffers lie in the caller's workspace.
struct Run {
  const Kernels& k;
  const Geometry& g;
  Backward call;
  int threads;
  int64_t elem;             // bytes of the compute type
  char* scratch = nullptr;  // visit(): per thread
  size_t per_thread = 0;
  double *dweight = nullptr, *dbias = nullptr;  // totals, natural order; null if not wanted
  // Block sums: per block dweight, then dbias. Where a mean is subtracted dbias comes with dweight, wanted or not: one
  // kernel less.
  char* sums = nullptr;

  int64_t sum_bytes() const { return sum_elems(g.cols()) * elem; }
  char* block_sums(int64_t slot, bool bias) const {
    const bool formed = bias ? dbias || (dweight && call.recipe.centre) : dweight != nullptr;
    if (!formed) return nullptr;
    return sums + (2 * slot + (bias ? 1 : 0)) * sum_bytes();
  }
  void add_block(int64_t slot, int64_t c0, int64_t c1) const {
    if (dweight) k.add_block(block_sums(slot, false), dweight, c0, c1);
    if (dbias) k.add_block(block_sums(slot, true), dbias, c0, c1);
  }
};

void rows_of_block(const Run& r, int64_t block, int64_t slot, char* scratch) {
  char *dw = r.block_sums(slot, false), *db = r.block_sums(slot, true);
  if (dw) std::memset(dw, 0, static_cast<size_t>(r.sum_bytes()));
  if (db) std::memset(db, 0, static_cast<size_t>(r.sum_bytes()));
  r.g.visit(r.call, block * kGradBlock, std::min((block + 1) * kGradBlock, r.g.rows()), scratch,
            [&](const Backward& c, int64_t count, int64_t) { r.k.backward(c, 0, count, dw, db); });
}

void run_by_rows(const Run& r, int64_t wave) {
  const int64_t blocks = (r.g.rows() + kGradBlock - 1) / kGradBlock;
  for (int64_t first = 0; first < blocks; first += wave) {
    const int64_t count = std::min(wave, blocks - first);
    parallel(r.threads, [&](int part) {
      const Range range = range_of(count, 1, r.threads, part);
      char* scratch = r.scratch + static_cast<size_t>(part) * r.per_thread;
      for (int64_t slot = range.begin; slot < range.end; ++slot) rows_of_block(r, first + slot, slot, scratch);
    });
    if (!r.dweight && !r.dbias) continue;
    const int parts = useful_threads(r.threads, count * r.sum_bytes());
    parallel(parts, [&](int part) {
      const Range cols = range_of(r.g.cols(), 64, parts, part);
      for (int64_t slot = 0; slot < count; ++slot) r.add_block(slot, cols.begin, cols.end);
    });
  }
}

// Statistics and sums of every row; the (row, block) pairs are shared by the threads.
void row_sums(const Run& r, const Backward& c, RowStats* stats, GradSums* sums, Moments* moments, GradSums* parts) {
  const int64_t cols = r.g.cols(), blocks = blocks_of(cols), pairs = r.g.rows() * blocks;
  const auto each_part = [&](auto&& f) {
    parallel(r.threads, [&](int part) {
      const Range range = range_of(pairs, 1, r.threads, part);
      for (int64_t i = range.begin; i < range.end; ++i)
        f(i, i / blocks, i % blocks * kBlock, std::min((i % blocks + 1) * kBlock, cols));
    });
  };
  if (!c.rstd.data)
    each_part([&](int64_t i, int64_t row, int64_t c0, int64_t c1) {
      moments[i] = r.k.part_moments(c.src, c.recipe, row, c0, c1);
    });
  parallel(1, [&](int) {  // for its floating-point state
    for (int64_t row = 0; row < r.g.rows(); ++row) {
      if (c.rstd.data) {
        stats[row] = r.k.saved_stats(c, row);
        continue;
      }
      Moments total;
      for (int64_t b = 0; b < blocks; ++b) merge(total, moments[row * blocks + b]);
      stats[row] = r.k.merged_stats(c.src, c.recipe, cols, row, total);
    }
  });
  if (!c.dx.data) return;
  each_part([&](int64_t i, int64_t row, int64_t c0, int64_t c1) {
    parts[i] = r.k.part_grad_sums(c, row, c0, c1, stats[row]);
  });
  parallel(1, [&](int) {
    for (int64_t i = 0; i < pairs; ++i) {
      sums[i / blocks].g += parts[i].g;
      sums[i / blocks].gx += parts[i].gx;
    }
  });
}

size_t column_bytes(const Geometry& g) {
  const size_t rows = static_cast<size_t>(g.rows()), pairs = rows * static_cast<size_t>(blocks_of(g.cols()));
  return rows * (sizeof(RowStats) + sizeof(GradSums)) + pairs * (sizeof(Moments) + sizeof(GradSums));
}

void run_by_columns(const Run& r, const Backward& c, char* memory) {
  const int64_t rows = r.g.rows(), pairs = rows * blocks_of(r.g.cols());
  const auto take = [&]<class T>(T, int64_t count) {
    T* p = reinterpret_cast<T*>(memory);
    memory += static_cast<size_t>(count) * sizeof(T);
    for (int64_t i = 0; i < count; ++i) p[i] = T{};
    return p;
  };
  RowStats* stats = take(RowStats{}, rows);
  GradSums* sums = take(GradSums{}, rows);
  Moments* moments = take(Moments{}, pairs);
  GradSums* parts = take(GradSums{}, pairs);
  row_sums(r, c, stats, sums, moments, parts);
  parallel(r.threads, [&](int part) {
    const Range cols = range_of(r.g.cols(), 64, r.threads, part);
    if (cols.begin >= cols.end) return;
    char *dw = r.block_sums(0, false), *db = r.block_sums(0, true);
    const size_t from = static_cast<size_t>(cols.begin * r.elem);
    const size_t bytes = static_cast<size_t>((cols.end - cols.begin + 63) / 64 * 64 * r.elem);
    for (int64_t row = 0; row < rows; row += kGradBlock) {
      if (dw) std::memset(dw + from, 0, bytes);
      if (db) std::memset(db + from, 0, bytes);
      r.k.grad_apply(c, row, std::min(row + kGradBlock, rows), cols.begin, cols.end, stats, sums, dw, db);
      r.add_block(0, cols.begin, cols.end);
    }
  });
}

// Rounds totals into a parameter gradient, adding to what is there if asked.
template <class T>
void put_totals(const View& v, const double* total, int64_t count, bool accumulate) {
  const auto put = [=](T& out, double sum) {
    if (accumulate) sum += static_cast<double>(out);
    if constexpr (sizeof(T) == 2) {
      out = T(static_cast<float>(sum));
    } else {
      out = static_cast<T>(sum);
    }
  };
  T* data = static_cast<T*>(v.data);
  if (is_run(v, count)) {
    for (int64_t c = 0; c < count; ++c) put(data[c], total[c]);
    return;
  }
  const ConstView where = v;
  for (int64_t c = 0; c < count; ++c) put(data[element_offset(where, c)], total[c]);
}

void put_gradients(const View& v, const double* total, int64_t cols, bool accumulate) {
  if (!v) return;
  double all = 0;
  if (v.numel() != cols) {  // one element for all columns
    for (int64_t c = 0; c < cols; ++c) all += total[c];
    total = &all;
  }
  switch (v.dtype) {
    case DType::f32: return put_totals<float>(v, total, v.numel(), accumulate);
    case DType::bf16: return put_totals<bf16>(v, total, v.numel(), accumulate);
    case DType::f16: return put_totals<f16>(v, total, v.numel(), accumulate);
    default: return put_totals<double>(v, total, v.numel(), accumulate);
  }
}

void run(const Method& m, const NormGradArgs& a, const Exec& exec) {
  const char* op = m.backward_name;
  const int axis = check(op, m, a);
  check_threads(op, exec);
  Backward call;
  call.recipe = make_recipe(op, m, a);
  using Role = Geometry::Role;
  // Outside and clamp need more than rstd of a row: their statistics are computed again.
  const bool saved = call.recipe.eps_kind == EpsKind::inside;
  const ConstView dx = a.dx, mean = saved ? a.mean : ConstView{}, rstd = saved ? a.rstd : ConstView{};
  // In the order of Backward::each_operand().
  const Geometry g(a.x, axis,
                   {{a.x, Role::input},
                    {a.residual, Role::input},
                    {a.dy, Role::input},
                    {a.dresidual_out, Role::input},
                    {dx, Role::output},
                    {mean, Role::stat},
                    {rstd, Role::stat}});
  const int threads = useful_threads(exec.threads, g.bytes());
  Run r{kernels(a.x.dtype), g, call, threads, a.x.dtype == DType::f64 ? 8 : 4};

  // Which split, and how much memory it needs.
  const int64_t blocks = (g.rows() + kGradBlock - 1) / kGradBlock;
  const bool by_columns = threads > 1 && g.simple() && blocks < 4 * threads && blocks % threads != 0;
  const bool params = a.dweight || a.dbias;
  const int64_t block_bytes = 2 * r.sum_bytes();
  const int64_t wave =
      by_columns || threads == 1 ? 1 : std::max<int64_t>(threads, kWaveBytes / block_bytes / threads * threads);
  r.per_thread = static_cast<size_t>(g.scratch_bytes());
  const size_t weight_bytes = parameter_scratch(a.weight, g.cols());
  const size_t total_bytes = params ? static_cast<size_t>(sum_elems(g.cols())) * 16 : 0;
  const size_t sums_bytes =
      params ? static_cast<size_t>(std::min(wave, std::max<int64_t>(blocks, 1)) * block_bytes) : 0;
  const size_t columns_bytes = by_columns ? column_bytes(g) : 0;
  char* memory =
      workspace(weight_bytes + total_bytes + sums_bytes + columns_bytes + r.per_thread * static_cast<size_t>(threads));

  r.call.src = make_source(a.x, a.residual, wider(a.x.dtype, a.residual.dtype), a.residual_stats);
  r.call.dy = like_x(a.dy, a.x);
  r.call.weight = parameter(a.weight, a.x, g.cols(), memory);
  r.call.dres = like_x(a.dresidual_out, a.x);
  r.call.dx = like_x(dx, a.x);
  r.call.mean = stat(mean);
  r.call.rstd = stat(rstd);
  r.call.cols = g.cols();
  r.call.stream = dx && past_the_cache(g.bytes(), dx, {&a.dy, &a.x, &a.residual, &a.dresidual_out});
  double* totals = reinterpret_cast<double*>(memory);
  if (params) std::memset(memory, 0, total_bytes);
  if (a.dweight) r.dweight = totals;
  if (a.dbias) r.dbias = totals + sum_elems(g.cols());
  r.sums = memory + total_bytes;
  char* columns = r.sums + sums_bytes;
  r.scratch = columns + columns_bytes;

  if (by_columns) {
    g.visit(r.call, 0, g.rows(), nullptr, [&](const Backward& c, int64_t, int64_t) { run_by_columns(r, c, columns); });
  } else {
    run_by_rows(r, wave);
  }
  parallel(1, [&](int) {
    put_gradients(a.dweight, r.dweight, g.cols(), a.accumulate);
    put_gradients(a.dbias, r.dbias, g.cols(), a.accumulate);
  });
}

}  // namespace
}  // namespace rows

void layer_norm_backward(const NormGradArgs& args, const Exec& exec) { rows::run(rows::kLayerNorm, args, exec); }
void rms_norm_backward(const NormGradArgs& args, const Exec& exec) { rows::run(rows::kRmsNorm, args, exec); }
void l2_norm_backward(const NormGradArgs& args, const Exec& exec) { rows::run(rows::kL2Norm, args, exec); }

}  // namespace normkit
