"""Differentiation, once for both paths that record it: the eager autograd.Function and the registered operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _engine
from ._compose import compose_backward
from ._options import BiasInfo, Options, bias_info, wider
from ._route import PLAIN, REFUSALS, SLOW, gate, route


def to_save(o: Options, x: Tensor, residual: Tensor | None, h: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(x, residual) for the backward: h in place of both where that gives the same derivatives."""
    if residual is None or h is None or o.residual_stats != "rounded":
        return x, residual
    if o.rounding == "before_weight" and h.dtype != x.dtype:
        return x, residual  # xhat is rounded to x's type, which h does not tell
    return h, None


def norm_backward(
    o: Options,
    dy: Tensor | None,
    dh: Tensor | None,
    saved: tuple[Tensor | None, ...],
    bias: BiasInfo | None,
    mask: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dweight, dbias) from the gradients of y and h; dx in the wider type of x and residual.

    saved: x (or h), weight, residual, mean, rstd, as the forward left them.
    """
    x, weight, residual, mean, rstd = saved
    assert x is not None
    mask = (mask[0], mask[1] and weight is not None, mask[2] and bias is not None)
    if dy is None:
        return dh if mask[0] else None, None, None
    if not any(mask):
        return None, None, None
    if not torch.is_grad_enabled():
        arriving = dh if mask[0] else None
        direct = gate(dy, dh, None) != SLOW and type(x) in PLAIN
        if direct or route(x, weight, residual, dy, dh) == "direct":
            try:
                return _engine.backward(o, dy, x, weight, mean, rstd, residual, arriving, bias, mask)
            except REFUSALS:  # a gradient of an unusual kind, such as a batch of gradients under one name
                if route(x, weight, residual, dy, dh) == "direct":
                    raise
        elif route(x, weight, residual, dy, dh) == "op":
            return _traced_backward(o, dy, arriving, saved, bias, mask)
    dx, dweight, dbias = compose_backward(o, dy, x, weight, residual, None if bias is None else bias.shape, mask)
    if dx is not None:
        if dh is not None:
            dx = dx + dh
        dx = dx.to(x.dtype if residual is None else wider(x.dtype, residual.dtype))
    if dweight is not None and weight is not None:
        dweight = dweight.to(weight.dtype)
    if dbias is not None and bias is not None:
        dbias = dbias.to(bias.dtype)
    return dx, dweight, dbias


def _traced_backward(
    o: Options,
    dy: Tensor,
    dh: Tensor | None,
    saved: tuple[Tensor | None, ...],
    bias: BiasInfo | None,
    mask: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight, residual, mean, rstd = saved
    op = getattr(torch.ops.normkit, o.kind + "_backward")
    dtype = None if bias is None else bias.dtype
    shape = None if bias is None else bias.shape
    outs = op(dy, x, weight, mean, rstd, residual, dh, *o[1:], shape, dtype, list(mask))
    dx, dweight, dbias = (t if m else None for t, m in zip(outs, mask, strict=True))
    return dx, dweight, dbias


def split_dx(
    dx: Tensor | None, x_dtype: torch.dtype, residual_dtype: torch.dtype | None, needs: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and residual from dx: the same values in the type of each."""
    if dx is None:
        return None, None
    dresidual = dx.to(residual_dtype) if needs[1] and residual_dtype is not None else None
    return dx.to(x_dtype) if needs[0] else None, dresidual


class Norm(torch.autograd.Function):
    """The eager path under autograd. Outputs: y, then h if there is a residual, then mean and rstd if asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        o: Options,
        stats: bool,
    ) -> Any:
        ctx.set_materialize_grads(False)
        y, h, mean, rstd = _engine.forward(o, x, weight, bias, residual, stats=True)
        kept, kept_residual = to_save(o, x, residual, h)
        ctx.save_for_backward(kept, weight, kept_residual, mean, rstd)
        ctx.o, ctx.bias, ctx.x_dtype = o, bias_info(bias), x.dtype
        ctx.residual_dtype = None if residual is None else residual.dtype
        if residual is None and not stats:
            return y
        numbers = [t for t in (mean, rstd) if t is not None] if stats else []
        ctx.mark_non_differentiable(*numbers)
        return tuple(t for t in (y, h, *numbers) if t is not None)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, *rest: Tensor | None) -> Any:
        dh = rest[0] if ctx.residual_dtype is not None else None
        need_x, need_weight, need_bias, need_residual = ctx.needs_input_grad[:4]
        mask = (need_x or need_residual, need_weight, need_bias)
        dx, dweight, dbias = norm_backward(ctx.o, dy, dh, ctx.saved_tensors, ctx.bias, mask)
        dx, dresidual = split_dx(dx, ctx.x_dtype, ctx.residual_dtype, (need_x, need_residual))
        return dx, dweight, dbias, dresidual, None, None


record: Any = Norm.apply
