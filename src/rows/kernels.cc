// The kernels of one (target, x dtype), as a table. Compiled once per NORMKIT_SIMD and NORMKIT_X.
#include "rows/backward-inl.h"
#include "rows/forward-inl.h"

#define NORMKIT_JOIN_(a, b, c) a##_##b##_##c
#define NORMKIT_JOIN(a, b, c) NORMKIT_JOIN_(a, b, c)

namespace normkit {
namespace NORMKIT_SIMD {
namespace {

void forward(const Forward& call, int64_t row0, int64_t row1) {
  if (row0 >= row1) return;
  (call.recipe.centre ? pick_loops<true>(call) : pick_loops<false>(call)).rows(call, row0, row1);
  if (call.stream) stream_fence();
}

template <bool kCentre>
Moments part_moments(const Source& src, int64_t row, int64_t c0, int64_t c1) {
  Summer<kCentre, Src::any> sum;
  sum.start(row_of(src, row), c0, c1);
  sum.feed(c1);
  return sum.total();
}
Moments any_part_moments(const Source& src, const Recipe& r, int64_t row, int64_t c0, int64_t c1) {
  return r.centre ? part_moments<true>(src, row, c0, c1) : part_moments<false>(src, row, c0, c1);
}

RowStats merged_stats(const Source& src, const Recipe& r, int64_t cols, int64_t row, const Moments& merged) {
  return finish({row_of(src, row), cols}, r, merged);
}

void apply(const Forward& call, int64_t row, int64_t c0, int64_t c1, const RowStats& stats) {
  if (c0 == 0) put_stats(call, row, stats);
  const auto generic = call.recipe.centre ? apply_rows<true, kGeneric> : apply_rows<false, kGeneric>;
  const Loops loops = call.recipe.centre ? pick_loops<true>(call) : pick_loops<false>(call);
  // No h was kept for it: a residual is added again.
  (stats.slow || call.src.residual.data ? generic : loops.apply)(call, row, 1, c0, c1, &stats, nullptr);
  if (call.stream) stream_fence();
}

void backward(const Backward& call, int64_t row0, int64_t row1, void* dweight, void* dbias) {
  const BlockSums block{static_cast<C*>(dweight), static_cast<C*>(dbias)};
  pick_grad_loops(call, form_of(call, block)).rows(call, row0, row1, block);
  if (call.stream) stream_fence();
}

RowStats saved_stats(const Backward& call, int64_t row) {
  RowStats s;
  call.recipe.centre ? get_stats<true>(s, call, row) : get_stats<false>(s, call, row);
  return s;
}

GradSums part_grad_sums(const Backward& call, int64_t row, int64_t c0, int64_t c1, const RowStats& stats) {
  GradForm form = form_of(call, {});
  form.dres = false;  // not part of the sums
  return pick_grad_loops(call, form).part(call, row, c0, c1, stats);
}

void grad_apply(const Backward& call, int64_t row0, int64_t row1, int64_t c0, int64_t c1, const RowStats* stats,
                const GradSums* sums, void* dweight, void* dbias) {
  const BlockSums block{static_cast<C*>(dweight), static_cast<C*>(dbias)};
  const auto columns = pick_grad_loops(call, form_of(call, block)).columns;
  GradRow rows[kGradRows];
  for (int64_t row = row0; row < row1; row += kGradRows) {
    const int count = static_cast<int>(min64(kGradRows, row1 - row));
    for (int k = 0; k < count; ++k) {
      set_row(rows[k], call, row + k, stats[row + k]);
      set_sums(rows[k], call.recipe, call.cols, sums[row + k]);
    }
    columns(rows, count, c0, c1, block);
  }
}

// Weight-gradient sums are held in register order; totals are in natural order.
void add_block(const void* block, double* total, int64_t c0, int64_t c1) {
  const C* sums = static_cast<const C*>(block);
  for (int64_t c = c0; c < c1; c += kPairElems) {
    C natural[kPairElems];
    store_c({load_vec<V>(sums + c), load_vec<V>(sums + c + L)}, natural);
    for (int64_t j = 0; j < min64(kPairElems, c1 - c); ++j) total[c + j] += static_cast<double>(natural[j]);
  }
}

}  // namespace
}  // namespace NORMKIT_SIMD

namespace rows {
extern const Kernels NORMKIT_JOIN(kernels, NORMKIT_SIMD, NORMKIT_X);
const Kernels NORMKIT_JOIN(kernels, NORMKIT_SIMD, NORMKIT_X) = {
    .forward = NORMKIT_SIMD::forward,
    .part_moments = NORMKIT_SIMD::any_part_moments,
    .merged_stats = NORMKIT_SIMD::merged_stats,
    .apply = NORMKIT_SIMD::apply,
    .backward = NORMKIT_SIMD::backward,
    .saved_stats = NORMKIT_SIMD::saved_stats,
    .part_grad_sums = NORMKIT_SIMD::part_grad_sums,
    .grad_apply = NORMKIT_SIMD::grad_apply,
    .add_block = NORMKIT_SIMD::add_block,
};
}  // namespace rows
}  // namespace normkit
