// Docstrings of the channel norms. What the three operations share is written once.
#pragma once

#include <string>

namespace normkit::python::docs {

// What differs between the operations.
struct ChannelWords {
  const char *name, *forward, *groups, *sets;  // groups: the parameter, if there is one; sets: shape of mean and rstd
  bool running;
};

inline constexpr ChannelWords kBatchNorm{
    "batch_norm",
    R"(BatchNorm (Ioffe & Szegedy 2015; torch.nn.BatchNorm1d/2d/3d): y = (x - mean) * rstd * weight + bias, with the mean and the
biased variance of a channel over all samples and positions, and rstd = 1 / sqrt(var + eps).)",
    "", "(channels,)", true};
inline constexpr ChannelWords kInstanceNorm{
    "instance_norm",
    R"(InstanceNorm (Ulyanov et al. 2016; torch.nn.InstanceNorm1d/2d/3d): y = (x - mean) * rstd * weight + bias, with the mean and the
biased variance over the positions of one channel of one sample, and rstd = 1 / sqrt(var + eps).)",
    "", "(samples, channels)", true};
inline constexpr ChannelWords kGroupNorm{
    "group_norm",
    R"(GroupNorm (Wu & He 2018; torch.nn.GroupNorm): y = (x - mean) * rstd * weight + bias, with the mean and the biased
variance over the positions and channels of one group of one sample, and rstd = 1 / sqrt(var + eps).)",
    "groups : number of groups, a divisor of the channels.\n", "(samples, groups)", false};

inline constexpr const char* kRunning =
    R"(running_mean, running_var : float32 or float64 arrays of shape (channels,), both or none. Moved in place if training
    (then they are outputs: writable, not of JAX), otherwise used in place of the batch's statistics and only read.
training : False: normalize by the running statistics.
momentum : from 0 to 1; torch's momentum=None is 1 / (number of batches so far).
running_update : "torch": running = (1 - momentum) * running + momentum * batch, the variance unbiased; "keras" (and ONNX):
    running = momentum * running + (1 - momentum) * batch, the variance biased. instance_norm moves them by the mean of
    its samples' statistics.
)";

inline std::string channel_forward(const ChannelWords& w) {
  return std::string(w.forward) + R"(

Parameters
----------
x : array of shape (samples, channels, positions...) or, with channel_axis=-1, (samples, positions..., channels), of
    float32, float64, float16 or bfloat16. NumPy (bfloat16: ml_dtypes), PyTorch CPU tensors, JAX CPU arrays, anything with
    DLPack or the buffer protocol; any strides. PyTorch's autograd does not see these functions: a tensor that requires
    grad is an error while torch records; normkit.torch has gradients.
)" + w.groups +
         R"(weight, bias : arrays of shape (channels,), x's type or float32. None: 1 and 0.
)" + (w.running ? kRunning : "") +
         R"(eps : number >= 0.
channel_axis : 1 (channels first) or -1 (channels last).
out : writable array for y, of x's shape, x's type or float32. May be x itself; no other overlap. JAX arrays cannot be
    outputs. PyTorch's version counters do not see the write.
return_stats : also return mean and rstd, float64 arrays of shape )" +
         w.sets + R"(: what the backward takes.
threads : at most so many. None: torch.get_num_threads() for tensors, otherwise the processors of this process. The
    result never depends on it.

Returns
-------
y, or (y, mean, rstd) with return_stats: arrays of x's kind (NumPy for objects that only have the buffer protocol). A new
y has x's type and, where x is a dense NumPy array or PyTorch tensor, x's memory layout: channels last in, channels last
out. An empty batch gives an empty y, mean and rstd of 0, and leaves running statistics as they are. JAX gives float32
statistics unless jax_enable_x64 is set.

Raises
------
ValueError (shapes, sizes, options, read-only or overlapping outputs) and TypeError (types), before anything is written.)";
}

inline std::string channel_backward(const ChannelWords& w) {
  return std::string("Gradients of ") + w.name +
         R"(. With g = dy * weight, xhat the normalized x, and means over what shares statistics:
dx = rstd * (g - mean(g) - xhat * mean(g * xhat)))" +
         (w.running ? ", with running statistics dx = rstd * g" : "") + R"(,
dweight = sum over samples and positions of dy * xhat, dbias = sum of dy.

Parameters
----------
dy : gradient of y, x's shape, x's type or float32.
x : the forward's x.
mean, rstd : as returned by the forward (both or none, then they are computed again); float64 is exact.
weight, )" +
         (*w.groups ? "groups, " : "") + (w.running ? "running_mean, running_var, training, " : "") +
         R"(eps, channel_axis, threads : as in the forward.)" +
         (w.running ? " Running\n    statistics only if training is False." : "") + R"(
output_mask : which of dx, dweight and dbias to compute.
dx : writable array of x's shape, x's type or float32. May be dy or x itself.
dweight, dbias : writable arrays of shape (channels,), float32, float64 or x's type.
accumulate : add to dweight and dbias (then both must be given) in place of overwriting.

Returns
-------
(dx, dweight, dbias), None where output_mask is False, arrays of x's kind. New ones: dx has x's type and memory layout,
dweight and dbias weight's type, or without a weight float32 (float64 for float64 x).

Raises
------
ValueError and TypeError as in the forward, before anything is written.)";
}

}  // namespace normkit::python::docs
