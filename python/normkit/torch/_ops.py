"""The registered operators, namespace `normkit`: what torch.compile, torch.export and dispatch modes see.

    normkit::layer_norm(x, weight, bias, residual, <options>) -> (y, h, mean, rstd)
    normkit::layer_norm_backward(dy, x, weight, mean, rstd, residual, dresidual_out, <options>, ...) -> (dx, dweight,
        dbias)

and the same for rms_norm and l2_norm. An output that the call does not have is an empty tensor of shape (0,).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _engine
from ._autograd import norm_backward, split_dx, to_save
from ._options import BiasInfo, Options, bias_info, wider

_OPTIONS = "int dims, float eps, float weight_offset, str rounding, str eps_mode, str residual_stats"
_FORWARD = f"(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)"
_BACKWARD = (
    "(Tensor dy, Tensor x, Tensor? weight, Tensor? mean, Tensor rstd, Tensor? residual, Tensor? dresidual_out, "
    f"{_OPTIONS}, SymInt[]? bias_shape, ScalarType? bias_dtype, bool[] output_mask) -> (Tensor, Tensor, Tensor)"
)
library: Any = torch.library.Library("normkit", "DEF")  # type: ignore[no-untyped-call]


def empty(x: Tensor) -> Tensor:
    return x.new_empty((0,))


def _register(kind: str) -> None:
    library.define(kind + _FORWARD)
    library.define(kind + "_backward" + _BACKWARD)

    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, *options: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        o = Options(kind, *options)
        y, h, mean, rstd = _engine.forward(o, x, weight, bias, residual, stats=True)
        assert rstd is not None
        return y, empty(x) if h is None else h, empty(x) if mean is None else mean, rstd

    def fake_forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, *options: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        o = Options(kind, *options)
        rstd = x.new_empty(x.shape[: x.dim() - o.dims], dtype=torch.float64)
        mean = torch.empty_like(rstd) if kind == "layer_norm" else empty(x)
        h = empty(x) if residual is None else x.new_empty(x.shape, dtype=wider(x.dtype, residual.dtype))
        return x.new_empty(x.shape), h, mean, rstd

    def backward(
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor | None,
        rstd: Tensor,
        residual: Tensor | None,
        dresidual_out: Tensor | None,
        *rest: Any,
    ) -> tuple[Tensor, ...]:
        *options, bias_shape, bias_dtype, mask = rest
        o = Options(kind, *options)
        bias = None if bias_dtype is None else BiasInfo(bias_shape, bias_dtype)
        grads = _engine.backward(o, dy, x, weight, mean, rstd, residual, dresidual_out, bias, mask)
        return tuple(empty(x) if g is None else g for g in grads)

    def fake_backward(
        dy: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor | None,
        rstd: Tensor,
        residual: Tensor | None,
        dresidual_out: Tensor | None,
        *rest: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        *_, bias_shape, bias_dtype, mask = rest
        dx_dtype = x.dtype if residual is None else wider(x.dtype, residual.dtype)
        return (
            x.new_empty(x.shape, dtype=dx_dtype) if mask[0] else empty(x),
            weight.new_empty(weight.shape) if mask[1] and weight is not None else empty(x),
            x.new_empty(bias_shape, dtype=bias_dtype) if mask[2] and bias_dtype is not None else empty(x),
        )

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, residual, *options = inputs
        _, h, mean, rstd = output
        ctx.o = Options(kind, *options)
        ctx.bias, ctx.x_dtype = bias_info(bias), x.dtype
        ctx.residual_dtype = None if residual is None else residual.dtype
        kept, kept_residual = to_save(ctx.o, x, residual, h)
        ctx.save_for_backward(kept, weight, kept_residual, mean if kind == "layer_norm" else None, rstd)
        ctx.mark_non_differentiable(mean, rstd)
        ctx.set_materialize_grads(False)

    def autograd_backward(ctx: Any, dy: Tensor | None, dh: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        need_x, need_weight, need_bias, need_residual = ctx.needs_input_grad[:4]
        if ctx.residual_dtype is None:
            dh = None
        mask = (need_x or need_residual, need_weight, need_bias)
        dx, dweight, dbias = norm_backward(ctx.o, dy, dh, ctx.saved_tensors, ctx.bias, mask)
        dx, dresidual = split_dx(dx, ctx.x_dtype, ctx.residual_dtype, (need_x, need_residual))
        return dx, dweight, dbias, dresidual, *([None] * len(ctx.o[1:]))

    name = "normkit::" + kind
    # Autograd has done its part when a kernel runs, but it may still record, which the engine refuses.
    library.impl(kind, torch.no_grad()(forward), "CPU")
    library.impl(kind + "_backward", torch.no_grad()(backward), "CPU")
    torch.library.register_fake(name, fake_forward, lib=library)
    torch.library.register_fake(name + "_backward", fake_backward, lib=library)
    torch.library.register_autograd(name, autograd_backward, setup_context=setup_context, lib=library)


for _kind in ("layer_norm", "rms_norm", "l2_norm"):
    _register(_kind)
