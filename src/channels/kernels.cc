// The channel kernels of one (target, x dtype), as a table. Compiled once per NORMKIT_SIMD and NORMKIT_X.
#include "channels/map-inl.h"

#define NORMKIT_JOIN_(a, b, c) a##_##b##_##c
#define NORMKIT_JOIN(a, b, c) NORMKIT_JOIN_(a, b, c)

namespace normkit::channels {

extern const Kernels NORMKIT_JOIN(kernels, NORMKIT_SIMD, NORMKIT_X);
const Kernels NORMKIT_JOIN(kernels, NORMKIT_SIMD, NORMKIT_X) = {
    .run_moments = NORMKIT_SIMD::run_moments,
    .block_moments = NORMKIT_SIMD::block_moments,
    .merge = NORMKIT_SIMD::merge_arrays,
    .finish = NORMKIT_SIMD::finish_sets,
    .take_stats = NORMKIT_SIMD::take_stats,
    .narrow = NORMKIT_SIMD::narrow,
    .grad_affine = NORMKIT_SIMD::grad_affine,
    .run_grad_sums = NORMKIT_SIMD::run_grad_sums,
    .block_grad_sums = NORMKIT_SIMD::block_grad_sums,
    .map_planes = NORMKIT_SIMD::map_planes,
    .map_columns = NORMKIT_SIMD::map_columns,
};

}  // namespace normkit::channels
