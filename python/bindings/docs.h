// Docstrings of normkit._core. What the three operations share is written once.
#pragma once

#include <string>

namespace normkit::python::docs {

inline constexpr const char* kModule = "Normalization layers on arrays in CPU memory. Use `import normkit`.";

// What differs between the operations.
struct Words {
  const char *forward, *eps_mode, *stats;  // stats: what return_stats returns
  const char *backward, *saved;
};

inline constexpr Words kLayerNorm{
    R"(LayerNorm (Ba, Kiros, Hinton 2016; torch.nn.LayerNorm): y = (h - mean) * rstd * (weight + weight_offset) + bias,
with h = x + residual, the mean and the biased variance of h, and rstd = 1 / sqrt(var + eps).)",
    R"("inside": 1 / sqrt(var + eps); "outside": 1 / (sqrt(var) + eps); "clamp": 1 / max(sqrt(var), eps).)",
    "mean and rstd", "dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dresidual_out",
    "mean, rstd : as returned by the forward (both or none, then they are computed again); float64 is exact."};
inline constexpr Words kRmsNorm{
    R"(RMSNorm (Zhang & Sennrich 2019; torch.nn.RMSNorm, Llama, Gemma, T5): y = h * rstd * (weight + weight_offset) + bias,
with h = x + residual and rstd = 1 / sqrt(mean(h^2) + eps).)",
    R"("inside": 1 / sqrt(q + eps), q the mean square; "outside": 1 / (sqrt(q) + eps), the code of the paper;
    "clamp": 1 / max(sqrt(q), eps).)",
    "rstd", "dx = rstd * (g - xhat * mean(g * xhat)) + dresidual_out",
    "rstd : as returned by the forward (or None, then it is computed again); float64 is exact."};
inline constexpr Words kL2Norm{
    R"(L2 normalization (torch.nn.functional.normalize; ScaleNorm with one weight): y = h / max(|h|, eps) * weight + bias,
with h = x + residual and |h| the root of the sum of squares; weight is weight + weight_offset.)",
    R"(not used here, must stay "inside".)", "rstd = 1 / max(|h|, eps)",
    "dx = rstd * (g - xhat * sum(g * xhat)) + dresidual_out",
    "rstd : as returned by the forward (or None, then it is computed again); float64 is exact."};

inline std::string forward(const Words& words) {
  return std::string(words.forward) + R"(

The normalized dimensions are [axis, ndim) of x, the ones before are the batch.

Parameters
----------
x : array of float32, float64, float16 or bfloat16. NumPy (bfloat16: ml_dtypes), PyTorch CPU tensors, JAX CPU arrays,
    anything with DLPack or the buffer protocol; any strides. Nothing is copied. PyTorch's autograd does not
    see these functions: a tensor that requires grad is an error while torch records; normkit.torch has gradients.
weight, bias : arrays of the shape of the normalized dimensions (or flat, or one element for all), x's type or float32.
    None: 1 and 0.
residual : array like x, x's type or float32. Then h = x + residual is normalized, and returned as well.
eps : number >= 0.
axis : first normalized dimension; negative counts from the end.
weight_offset : is added to weight in float32. 1 for Gemma.
rounding : "once" (float32 inside, y rounded once: torch.nn, Gemma, OLMo 2), or "before_weight" (the normalized value is
    rounded to x's type, then multiplied by weight: Llama, Mistral, Qwen, T5).
eps_mode : )" +
         words.eps_mode + R"(
residual_stats : "rounded" (statistics of h as it is stored: the bits of two separate calls) or "unrounded".
out, residual_out : writable arrays for y and h, of x's shape, x's type or float32. May be x or residual itself; no
    other overlap. JAX arrays cannot be outputs. PyTorch's version counters do not see the write.
return_stats : also return )" +
         words.stats + R"( per row, float64 arrays of the batch shape: what the backward takes.
threads : at most so many, and no more than the processors or 64. None: torch.get_num_threads() for tensors, otherwise
    the processors of this process. Calls with less than 32 KB of x always use one, and keep Python's lock. The result
    never depends on it.

Returns
-------
y, or (y, h) with residual; with return_stats these and the statistics as one tuple. Arrays of x's kind (NumPy for
objects that only have the buffer protocol); y has out's type or else x's, h residual_out's or else the wider of x and
residual. JAX gives float32 statistics unless jax_enable_x64 is set.

Raises
------
ValueError (shapes, sizes, options, read-only or overlapping outputs) and TypeError (types), before anything is written.)";
}

inline std::string backward(const Words& words, const std::string& name) {
  return "Gradients of " + name +
         ". With g = dy * (weight + weight_offset), xhat the normalized h, and means over a row:\n" + words.backward +
         R"(,
dweight = sum over rows of dy * xhat, dbias = sum over rows of dy. dx is also the gradient of residual.

Parameters
----------
dy : gradient of y, x's shape, x's type or float32.
x : the forward's x; or its h, then without residual.
)" + words.saved +
         R"(
residual : as in the forward.
dresidual_out : gradient that arrives at h, joins dx.
weight, eps, axis, weight_offset, rounding, eps_mode, residual_stats, threads : as in the forward.
output_mask : which of dx, dweight and dbias to compute.
dx : writable array of x's shape, x's type or float32. May be dy, x or dresidual_out itself.
dweight, dbias : writable arrays with as many elements as the normalized dimensions (or one: the sum over all), float32,
    float64 or x's type.
accumulate : add to dweight and dbias (then both must be given) in place of overwriting.

Returns
-------
(dx, dweight, dbias), None where output_mask is False, arrays of x's kind. New ones: dx has x's type, dweight and dbias
weight's type and shape, or without a weight float32 (float64 for float64 x) and x's normalized shape.

Raises
------
ValueError and TypeError as in the forward, before anything is written.)";
}

}  // namespace normkit::python::docs
