"""Functional forms: the signatures of torch.nn.functional, plus the options of normkit as keywords.

The options mean what they mean in `normkit.rms_norm` and in normkit/norm.h:

residual        h = input + residual is normalized in place of input, and (y, h) comes back. Same shape as input.
weight_offset   added to the weight in f32: 1.0 for Gemma and zero-centred weights.
rounding        "once", or "before_weight": xhat is rounded to input's type, then multiplied (Llama, Mistral, Qwen, T5).
eps_mode        "inside" 1/sqrt(q + eps), "outside" 1/(sqrt(q) + eps), "clamp" 1/max(sqrt(q), eps).
residual_stats  statistics from h "rounded" to the type it is stored in, or from the "unrounded" sum.
out, residual_out  tensors that receive y and h: of input's shape, of its type or f32, each with memory of its own (or
                exactly that of input or residual). Like torch's `out=` not differentiable: while grad mode is on,
                neither they nor an input may require grad. A backward that needs their old values raises.
return_stats    also return mean (layer_norm only) and rstd: f64, of the batch dims' shape, not differentiable.

input is f32, f64, bf16 or f16; weight, bias and residual have its type or f32; y has input's type, whatever the type of
the weight. Inputs that the engine does not take (other devices, layouts and types, tensor subclasses, torch.func
transforms, forward-mode differentiation) go to torch's own operator, or with an option that torch does not know to the
same formula in torch's operators. So does a negative eps, which torch allows. Mistakes raise ValueError (shapes,
options) or TypeError.

weight and bias have the shape normalized_shape. One element does not stand for all of a longer row: that is a
ValueError, but for l2_norm, where it is ScaleNorm. Rows of one element (normalized_shape of one element) are a legal
corner: layer_norm gives the bias (or 0) whatever the input, rms_norm x / sqrt(x^2 + eps) and l2_norm x / max(|x|, eps),
hence about the sign of x, each times weight plus bias.

batch_norm, instance_norm and group_norm have torch's arguments and no options; each says what it takes.

Derivatives of any order exist: the first by the engine, higher ones by differentiating torch's operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _engine, _ops, _outputs  # noqa: F401  (_ops registers the operators)
from ._autograd import record
from ._channel_functional import batch_norm, group_norm, instance_norm
from ._compose import compose_forward
from ._options import Options, default_rms_eps, wider
from ._route import DIRECT, RECORD, REFUSALS, gate, route

__all__ = ["batch_norm", "group_norm", "instance_norm", "l2_norm", "layer_norm", "normalize", "rms_norm"]


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    eps_mode: str = "inside",
    residual_stats: str = "rounded",
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
    return_stats: bool = False,
) -> Any:
    """LayerNorm (torch.nn.functional.layer_norm): mean and biased variance over the last dims, `normalized_shape`.

    weight and bias have that shape: one element is refused unless rows have one element, and there y is the bias.
    """
    shape = _shape("layer_norm", normalized_shape)
    o = Options("layer_norm", len(shape), eps, weight_offset, rounding, eps_mode, residual_stats)
    if residual is None and out is None and residual_out is None and not return_stats:
        return norm_plain(o, input, shape, weight, bias)
    return norm(o, input, shape, weight, bias, residual, out, residual_out, return_stats)


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    eps_mode: str = "inside",
    residual_stats: str = "rounded",
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
    return_stats: bool = False,
) -> Any:
    """RMSNorm (torch.nn.functional.rms_norm) over the last dims, `normalized_shape`.

    eps=None is torch's rule: the machine epsilon of the type that sums are formed in (f64 for f64, else f32).
    A weight of one element is refused unless rows have one element, and there y is x / sqrt(x^2 + eps) * weight.
    """
    shape = _shape("rms_norm", normalized_shape)
    if eps is None:
        eps = default_rms_eps(getattr(input, "dtype", torch.float32))
    o = Options("rms_norm", len(shape), eps, weight_offset, rounding, eps_mode, residual_stats)
    if residual is None and out is None and residual_out is None and not return_stats:
        return norm_plain(o, input, shape, weight, bias)
    return norm(o, input, shape, weight, bias, residual, out, residual_out, return_stats)


def l2_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float = 1e-12,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    rounding: str = "once",
    residual_stats: str = "rounded",
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
    return_stats: bool = False,
) -> Any:
    """y = h / max(|h|_2, eps) * weight over the last dims, `normalized_shape`.

    A weight (or bias) of one element serves all elements of a row: ScaleNorm. Rows of one element give their sign.
    """
    shape = _shape("l2_norm", normalized_shape)
    o = Options("l2_norm", len(shape), eps, weight_offset, rounding, "inside", residual_stats)
    return norm(o, input, shape, weight, bias, residual, out, residual_out, return_stats)


def normalize(
    input: Tensor, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """torch.nn.functional.normalize: by the engine for p = 2, one dim and a finite eps >= 0, by torch otherwise.

    At a zero row the result is 0 and the derivative 1/eps, as in torch: there the function is x / eps.
    """
    if p != 2.0 or not isinstance(input, Tensor) or not _is_dim(dim, input) or not _is_usual_eps(eps):
        return F.normalize(input, p, dim, eps, out)  # type: ignore[arg-type]
    assert isinstance(dim, int)
    where = route(input, out)
    if input.shape[dim] == 0 or where == "torch" or (out is not None and out.shape != input.shape):
        return F.normalize(input, p, dim, eps, out)
    o = Options("l2_norm", 1, eps)
    rows, shape = input.movedim(dim, -1), (input.shape[dim],)
    if out is None and (where == "op" or (torch.is_grad_enabled() and input.requires_grad)):
        y: Tensor = norm(o, rows, shape)
        return y.movedim(-1, dim).contiguous()
    result = torch.empty_like(input) if out is None else out
    norm(o, rows, shape, out=result.movedim(dim, -1))
    return result


def _is_dim(dim: object, x: Tensor) -> bool:
    """True if dim is one dim of x. True and False are none: torch refuses them."""
    return isinstance(dim, int) and not isinstance(dim, bool) and -x.dim() <= dim < x.dim()


def _is_usual_eps(eps: object) -> bool:
    return isinstance(eps, (int, float)) and 0.0 <= eps < math.inf


def norm_plain(
    o: Options, x: Tensor, shape: tuple[int, ...], weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """`norm` without residual, outputs and statistics: by the shortest path that is right."""
    if fits(shape, weight, bias):
        y = fast(o, x, weight, bias)
        if y is not None:
            return y
    return norm(o, x, shape, weight, bias)  # type: ignore[no-any-return]


def fits(shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None) -> bool:
    """True if weight and bias are as `normalized_shape` says and the engine will compare the last dims of x with them.

    One element it would take for all of a longer row.
    """
    try:
        return (
            weight is not None
            and weight.shape == shape
            and weight.numel() > 1
            and (bias is None or bias.shape == shape)
        )
    except AttributeError:  # not a tensor: `norm` says so
        return False


def norm(
    o: Options,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
    stats: bool = False,
) -> Any:
    """What every function above does once its options are known: choose the path, call, pack the results."""
    if out is not None or residual_out is not None:
        return _norm_into(o, x, shape, weight, bias, residual, out, residual_out, stats)
    where = route(x, weight, bias, residual)
    if where == "torch":
        _check_tensors(o, x, weight, bias, residual)
    if _has_negative_eps(o) or where == "torch":  # torch gives a negative eps a meaning; its own operator may have it
        return _by_torch(o, x, shape, weight, bias, residual, stats)
    _check_shapes(o, x, shape, weight, bias, residual)
    if where == "op":
        o.check()
        y, h, mean, rstd = getattr(torch.ops.normkit, o.kind)(x, weight, bias, residual, *o[1:])
        return _pack(y, None if residual is None else h, mean if o.kind == "layer_norm" else None, rstd, stats)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias, residual)):
        return record(x, weight, bias, residual, o, stats)
    return _pack(*_engine.forward(o, x, weight, bias, residual, stats=stats), stats)


def _norm_into(
    o: Options,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    out: Tensor | None,
    residual_out: Tensor | None,
    stats: bool,
) -> Any:
    """`norm` into the caller's tensors: the engine writes there; what another path computes is copied."""
    if residual is None and residual_out is not None:
        raise ValueError(f"{o.kind}: residual_out is given without residual")
    outputs = {name: t for name, t in (("out", out), ("residual_out", residual_out)) if t is not None}
    _outputs.check_writable(o.kind, outputs, (x, weight, bias, residual))
    if not _has_negative_eps(o) and route(x, weight, bias, residual, out, residual_out) == "direct":
        _check_shapes(o, x, shape, weight, bias, residual)
        result = _pack(*_engine.forward(o, x, weight, bias, residual, out, residual_out, stats), stats)
        _outputs.written(outputs)
        return result
    _check_tensors(o, x, weight, bias, residual)
    if not isinstance(x, Tensor) or not isinstance(residual, (Tensor, type(None))):
        return norm(o, x, shape, weight, bias, residual, stats=stats)  # which raises and names the argument
    _outputs.check_like(o.kind, outputs, x)
    usual = {"out": x.dtype, "residual_out": x.dtype if residual is None else wider(x.dtype, residual.dtype)}
    if all(t.dtype == usual[name] for name, t in outputs.items()):
        result = norm(o, x, shape, weight, bias, residual, stats=stats)
    else:  # computed in the wider type: rounding to input's type first would lose what the wider output is for
        dtypes = (None if t is None else t.dtype for t in (out, residual_out))
        result = _by_formula(o, x, shape, weight, bias, residual, stats, *dtypes)
    parts = list(result) if isinstance(result, tuple) else [result]
    for name, t in outputs.items():
        place = 0 if name == "out" else 1
        parts[place] = t.copy_(parts[place])
    return tuple(parts) if isinstance(result, tuple) else parts[0]


def fast(o: Options, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """y by the shortest path, or None if anything is out of the ordinary; then `norm` finds out what.

    The caller vouches that the last dims of x are what the weight was made for, or gives a weight of several elements,
    which the engine compares with them.
    """
    kind = gate(x, weight, bias)
    try:
        if kind == DIRECT:
            y: Tensor = _engine.FORWARD[o.kind](
                x,
                weight,
                bias,
                eps=o.eps,
                axis=-o.dims,
                weight_offset=o.weight_offset,
                rounding=o.rounding,
                eps_mode=o.eps_mode,
            )
            return y
        if kind == RECORD:
            return record(x, weight, bias, None, o, False)  # type: ignore[no-any-return]
    except REFUSALS:
        pass
    return None


def _shape(kind: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(normalized_shape, int):
        return (normalized_shape,)
    if isinstance(normalized_shape, (tuple, list)):
        return tuple(normalized_shape)
    given = f"{kind}: normalized_shape is a {type(normalized_shape).__name__}"
    if isinstance(normalized_shape, Tensor):
        raise TypeError(f"{given}, expected sizes: as in torch, weight is the argument after it")
    if not isinstance(normalized_shape, Sequence) or isinstance(normalized_shape, (str, bytes)):
        raise TypeError(f"{given}, expected an int or a sequence of ints")
    return tuple(normalized_shape)


def _has_negative_eps(o: Options) -> bool:
    try:
        return bool(o.eps < 0.0)
    except TypeError:
        raise TypeError(f"{o.kind}: eps is {o.eps!r}, expected a number") from None


def _check_tensors(o: Options, x: Any, weight: Any, bias: Any, residual: Any) -> None:
    """Raise TypeError for an operand that is no tensor, nor (as what torch.fx traces with) stands for one."""
    for name, t in (("input", x), ("weight", weight), ("bias", bias), ("residual", residual)):
        stands_in = isinstance(t, Tensor) or hasattr(type(t), "__torch_function__")
        if not stands_in and (t is not None or name == "input"):
            raise TypeError(f"{o.kind}: {name} is a {type(t).__name__}, expected a torch.Tensor")


def _pack(y: Tensor, h: Tensor | None, mean: Tensor | None, rstd: Tensor | None, stats: bool) -> Any:
    if h is None and not stats:
        return y
    return tuple(t for t in ((y, h, mean, rstd) if stats else (y, h)) if t is not None)


def _check_shapes(
    o: Options,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
) -> None:
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"{o.kind}: input has shape {list(x.shape)}, expected last dimensions {list(shape)} (normalized_shape)"
        )
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and tuple(t.shape) != shape and not (o.kind == "l2_norm" and t.numel() == 1):
            raise ValueError(f"{o.kind}: {name} has shape {list(t.shape)}, expected {list(shape)} (normalized_shape)")
    if weight is None and o.weight_offset != 0.0:
        raise ValueError(f"{o.kind}: weight_offset is {o.weight_offset}, but there is no weight")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"{o.kind}: residual has shape {list(residual.shape)}, expected {list(x.shape)} (the shape of input)"
        )


def _by_torch(
    o: Options,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    stats: bool,
) -> Any:
    """torch's own operator, or where it lacks an option the same formula in torch's operators."""
    if o.is_torch and residual is None and not stats:
        if o.kind == "layer_norm":
            return F.layer_norm(x, shape, weight, bias, o.eps)
        if bias is None:
            return F.rms_norm(x, shape, weight, o.eps)
    for name, t in (("input", x), ("weight", weight), ("bias", bias), ("residual", residual)):
        # Integers would be rounded to nothing, and the square of a complex number is not that of its size.
        if isinstance(t, Tensor) and not t.is_floating_point():
            raise TypeError(f"{o.kind}: {name} has type {t.dtype}, expected a real floating-point type")
    return _by_formula(o, x, shape, weight, bias, residual, stats)


def _by_formula(
    o: Options,
    x: Tensor,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    stats: bool,
    y_dtype: torch.dtype | None = None,
    h_dtype: torch.dtype | None = None,
) -> Any:
    o.check()
    _check_shapes(o, x, shape, weight, bias, residual)
    y, h, mean, rstd = compose_forward(o, x, weight, bias, residual, y_dtype, h_dtype)
    return _pack(y, None if residual is None else h, mean, rstd, stats)
