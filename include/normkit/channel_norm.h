// Norms over channels: batch_norm, group_norm, instance_norm, forward and backward.
//
//   normkit::batch_norm({.x = x, .weight = w, .bias = b, .y = y, .running_mean = rm, .running_var = rv});
//   normkit::group_norm({.x = x, .weight = w, .bias = b, .y = y, .groups = 32});
//
// Errors, threads and the numeric contract are those of norm.h; the order of sums of these operations is in
// docs/numerics.md, "Sums over positions".
#pragma once

#include "normkit/tensor.h"

#pragma GCC visibility push(default)
namespace normkit {

// How running statistics move with a batch's.
enum class RunningUpdate : uint8_t {
  torch,  // running = (1 - momentum) * running + momentum * batch; the variance unbiased (torch.nn.BatchNorm)
  keras,  // running = momentum * running + (1 - momentum) * batch; the variance biased (Keras, ONNX)
};

// Forward. y = (x - mean) * rstd * weight + bias, rstd = 1 / sqrt(var + eps), var the biased variance.
//
// Shapes: x is [samples, channels, positions...] (channel_axis 1) or [samples, positions..., channels] (-1), rank 2 to 8;
//   y has x's shape. weight, bias, running_mean, running_var are [channels]. mean and rstd are [channels] (batch_norm),
//   [samples, groups] (group_norm) or [samples, channels] (instance_norm).
// Types: x f32, f64, bf16, f16; y, weight, bias each x's type or f32; mean, rstd, running_mean, running_var f32 or f64.
// Strides: any. Fast where the positions of a channel or the channels of a position are neighbours in memory, whatever
//   channel_axis says (a channels_last tensor of torch has channel_axis 1); others are copied, y and dy of another layout
//   than x's, too.
// Aliasing: y may be exactly x; no other overlap.
// An empty batch leaves running statistics as they are and writes 0 to mean and rstd. One value per channel gives
//   y = bias; the unbiased variance is then taken as 0.
struct ChannelNormArgs {
  ConstView x{};
  ConstView weight{};  // absent: 1
  ConstView bias{};    // absent: 0
  View y{};
  View mean{};          // optional. Save it as f64 for an exact backward
  View rstd{};          // optional; 0 where it would be 1/0
  View running_mean{};  // batch_norm, instance_norm: moved if training, otherwise used in place of the batch's; both
  View running_var{};   //   or neither. instance_norm moves them by the mean of its samples' statistics
  double eps = 1e-5;
  double momentum = 0.1;  // in [0, 1]; torch's momentum=None is 1 / (number of batches so far)
  RunningUpdate running_update = RunningUpdate::torch;
  bool training = true;  // false: the running statistics normalize, and are read only
  int channel_axis = 1;  // 1 or -1
  int64_t groups = 0;    // group_norm only: a divisor of the channels
};

// BatchNorm (Ioffe & Szegedy 2015; torch.nn.BatchNorm1d/2d/3d): a channel's statistics are over all samples.
void batch_norm(const ChannelNormArgs& args, const Exec& exec = {});
// InstanceNorm (Ulyanov et al. 2016; torch.nn.InstanceNorm1d/2d/3d): over the positions of one channel of one sample.
void instance_norm(const ChannelNormArgs& args, const Exec& exec = {});
// GroupNorm (Wu & He 2018; torch.nn.GroupNorm): over the positions and channels of one group of one sample.
void group_norm(const ChannelNormArgs& args, const Exec& exec = {});

// Backward of the above. With g = dy * weight, xhat = (x - mean) * rstd and means over what shares statistics:
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat))     (training is false: dx = rstd * g)
//   dweight = sum over samples and positions of dy * xhat,  dbias = sum of dy
// Shapes, types and layouts as above: dy and dx have x's shape and x's type or f32; dx may be exactly dy or x. dweight and
// dbias are [channels] of f32, x's type or f64. Any of dx, dweight, dbias may be absent, not all. An empty batch gives
// zero gradients.
struct ChannelNormGradArgs {
  ConstView dy{};
  ConstView x{};
  ConstView weight{};
  ConstView mean{};  // saved by the forward; absent (with rstd): computed again. f64 is exact, f32 loses accuracy in
  ConstView rstd{};  //   channels whose mean is many deviations away from 0
  ConstView running_mean{};  // used, and needed, if training is false
  ConstView running_var{};
  View dx{};
  View dweight{};
  View dbias{};
  double eps = 1e-5;
  bool training = true;
  bool accumulate = false;  // dweight and dbias: add to what is there instead of overwriting
  int channel_axis = 1;
  int64_t groups = 0;
};

void batch_norm_backward(const ChannelNormGradArgs& args, const Exec& exec = {});
void instance_norm_backward(const ChannelNormGradArgs& args, const Exec& exec = {});
void group_norm_backward(const ChannelNormGradArgs& args, const Exec& exec = {});

}  // namespace normkit
#pragma GCC visibility pop
