// Normalization layers, forward and backward. One plain struct of arguments per direction, filled with designated
// initializers:
//
//   normkit::rms_norm({.x = x, .weight = w, .residual = r, .y = y, .residual_out = r, .eps = 1e-6});
//
// All functions throw std::invalid_argument, before a byte is written, with the operation, the operand, what was given
// and what was expected. They never print, never abort and read no environment but NORMKIT_TARGET. The numeric
// contract (order of sums, rounding, same bits everywhere) is docs/numerics.md.
#pragma once

#include "normkit/tensor.h"

#pragma GCC visibility push(default)
namespace normkit {

// Where an intermediate result is rounded.
enum class Rounding : uint8_t {
  once,           // everything in f32 (f64 for f64 x), y rounded once: torch.nn.LayerNorm/RMSNorm, Gemma, OLMo 2
  before_weight,  // xhat is rounded to x's type, then multiplied by the weight: Llama, Mistral, Qwen, T5
};

// How eps enters. With q = the variance (layer_norm), the mean square (rms_norm) or the sum of squares (l2_norm):
enum class EpsMode : uint8_t {
  inside,   // rstd = 1 / sqrt(q + eps): every LayerNorm, nearly every RMSNorm
  outside,  // rstd = 1 / (sqrt(q) + eps): the code of the RMSNorm paper (Zhang & Sennrich 2019)
  clamp,    // rstd = 1 / max(sqrt(q), eps): torch.nn.functional.normalize, ScaleNorm
};

// What the statistics and y of a fused residual add are computed from.
enum class ResidualStats : uint8_t {
  rounded,    // h = x + residual rounded to the type it is stored in: the bits of two separate calls
  unrounded,  // h in f32 (f64); only residual_out is rounded
};

// Forward. h = x + residual;  y = (h - mean) * rstd * (weight + weight_offset) + bias
//
// Shapes: x is [batch dims..., normalized dims...]; the normalized dims are [axis, rank). y, residual and residual_out
//   have x's shape. weight and bias have the shape of the normalized dims (or one dimension with as many elements), or
//   a single element that serves all. mean and rstd have the batch dims' shape, optionally followed by ones.
// Types: x f32, f64, bf16, f16; weight, bias, residual, residual_out, y each x's type or f32; mean and rstd f32 or f64.
// Strides: any. Rows that are contiguous runs are fast; others are gathered row by row.
// Aliasing: y and residual_out may be exactly x or residual (same data, shape, strides, type); no other overlap.
struct NormArgs {
  ConstView x{};
  ConstView weight{};    // absent: 1
  ConstView bias{};      // absent: 0
  ConstView residual{};  // absent: h = x
  View y{};
  View residual_out{};  // optional: receives h (needs residual); its type is the type h is rounded to, without it
                        // the wider of x's and residual's
  View mean{};          // optional, layer_norm only: mean of h per row. Save it as f64 for an exact backward
  View rstd{};          // optional: 1/sqrt(var + eps) per row; 0 where that would be 1/0
  double eps = 1e-5;    // the same default for all; torch's normalize (and normkit in Python) has 1e-12 for l2_norm
  double weight_offset = 0;  // 1: Gemma, zero-centred gamma. Added in f32; needs a weight
  Rounding rounding = Rounding::once;
  EpsMode eps_mode = EpsMode::inside;  // l2_norm: not used, must stay at its default (see there)
  ResidualStats residual_stats = ResidualStats::rounded;
  int axis = -1;  // first normalized dimension; negative counts from the end
};

// LayerNorm (Ba, Kiros, Hinton 2016; torch.nn.LayerNorm): mean and biased variance over the normalized dims.
void layer_norm(const NormArgs& args, const Exec& exec = {});
// RMSNorm (Zhang & Sennrich 2019; torch.nn.RMSNorm, Llama, Gemma, T5): no mean, q = mean of squares.
void rms_norm(const NormArgs& args, const Exec& exec = {});
// L2 normalize (torch.nn.functional.normalize; ScaleNorm with a single weight): y = h / max(|h|_2, eps) * weight.
// Always EpsMode::clamp; eps_mode is not used and must stay at its default.
void l2_norm(const NormArgs& args, const Exec& exec = {});

// Backward of the above. With g = dy * (weight + weight_offset), xhat = (h - mean) * rstd and means over a row:
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dresidual_out      (no mean(g) without a centre)
//   dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
// dx is also the gradient of residual. Shapes, types and aliasing as above: dy, dx and dresidual_out have x's shape and
// x's type or f32; dx may be exactly dy, x or dresidual_out. dweight and dbias have the shape rules of weight, hold as
// many elements as the normalized dims (or one: then the sum over all) and are f32, x's type or f64.
// Any of dx, dweight, dbias may be absent, not all. rounding before_weight: dweight uses the rounded xhat.
struct NormGradArgs {
  ConstView dy{};
  ConstView x{};  // the forward's x; or its residual_out (h), then without residual
  ConstView weight{};
  ConstView residual{};       // as in the forward: h = x + residual is formed again
  ConstView mean{};           // saved by the forward; absent (with rstd): computed again. f64 is exact, f32 loses
  ConstView rstd{};           //   accuracy in rows whose mean is many deviations away from 0
  ConstView dresidual_out{};  // gradient that arrives at residual_out: joins dx
  View dx{};
  View dweight{};
  View dbias{};
  double eps = 1e-5;
  double weight_offset = 0;
  Rounding rounding = Rounding::once;
  EpsMode eps_mode = EpsMode::inside;
  ResidualStats residual_stats = ResidualStats::rounded;  // rounded: to the wider of x's and residual's type
  int axis = -1;
  bool accumulate = false;  // dweight and dbias: add to what is there instead of overwriting
};

void layer_norm_backward(const NormGradArgs& args, const Exec& exec = {});
void rms_norm_backward(const NormGradArgs& args, const Exec& exec = {});
void l2_norm_backward(const NormGradArgs& args, const Exec& exec = {});

}  // namespace normkit
#pragma GCC visibility pop
