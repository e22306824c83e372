// What the forward and the backward driver share.
#pragma once

#include "check.h"
#include "geometry.h"
#include "parallel.h"
#include "target.h"

namespace normkit::rows {

// The methods of norm.h as recipes. A new row method is a new line here.
struct Method {
  const char* name;
  const char* backward_name;
  bool centre;  // subtract the mean
  bool sum;     // q is the sum of squares
  bool clamp;   // always EpsMode::clamp
};
inline constexpr Method kLayerNorm{"layer_norm", "layer_norm_backward", true, false, false};
inline constexpr Method kRmsNorm{"rms_norm", "rms_norm_backward", false, false, false};
inline constexpr Method kL2Norm{"l2_norm", "l2_norm_backward", false, true, true};

// Checks the options that both directions have and turns them into a recipe. Args: NormArgs or NormGradArgs.
template <class Args>
Recipe make_recipe(const char* op, const Method& m, const Args& args) {
  check_finite(op, "eps", args.eps, true);
  check_finite(op, "weight_offset", args.weight_offset, false);
  if (args.weight_offset != 0 && !args.weight) fail(op, "weight_offset needs a weight, expected 0 without one");
  if (m.clamp && args.eps_mode != EpsMode::inside)
    fail(op, "eps_mode is not used (always clamp), expected the default");
  if (args.residual_stats != ResidualStats::rounded && !args.residual)
    fail(op, "residual_stats needs a residual, expected the default without one");
  check_enum(op, "eps_mode", args.eps_mode, EpsMode::clamp, "inside, outside or clamp");
  check_enum(op, "rounding", args.rounding, Rounding::before_weight, "once or before_weight");
  check_enum(op, "residual_stats", args.residual_stats, ResidualStats::unrounded, "rounded or unrounded");
  Recipe r;
  r.centre = m.centre;
  r.sum = m.sum;
  const EpsMode mode = m.clamp ? EpsMode::clamp : args.eps_mode;
  r.eps_kind = mode == EpsMode::inside ? EpsKind::inside : mode == EpsMode::outside ? EpsKind::outside : EpsKind::clamp;
  r.round_xhat = args.rounding == Rounding::before_weight;
  r.offset = args.weight_offset != 0;
  r.eps = args.eps;
  r.weight_offset = args.weight_offset;
  return r;
}

// f32 if either of two types is the other's f32 companion: the wider of bf16/f16 and f32; f64 stays f64.
inline DType wider(DType x, DType other) { return x == DType::f64 || other == DType::none ? x : other; }

// x is given and has a dimension; operands of x's shape, and parameters, are of x's type or f32.
void check_x(const char* op, const ConstView& x);
void check_like_x(const char* op, const char* name, const ConstView& v, const ConstView& x);
void check_parameter(const char* op, const char* name, const ConstView& v, const ConstView& x, int axis);
// mean and rstd.
void check_stat(const char* op, const char* name, const ConstView& v, const ConstView& x, int axis);

Source make_source(const ConstView& x, const ConstView& residual, DType h_type, ResidualStats stats);
Operand like_x(const ConstView& v, const ConstView& x);
Operand stat(const ConstView& v);
// A parameter as one run: its own memory, or a copy in `scratch` (parameter_scratch() bytes) when strided or single.
size_t parameter_scratch(const ConstView& v, int64_t cols);
Operand parameter(const ConstView& v, const ConstView& x, int64_t cols, char*& scratch);

// Outputs that will not be read again before they leave the cache are written past it.
bool past_the_cache(int64_t bytes, const ConstView& out, std::initializer_list<const ConstView*> inputs);

// Few rows that are long: threads share the blocks of one row.
bool share_rows(const Geometry& g, int threads);
inline int64_t blocks_of(int64_t cols) { return (cols + kBlock - 1) / kBlock; }

}  // namespace normkit::rows
