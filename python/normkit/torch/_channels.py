"""Norms over channels: options, calls of the extension module, and derivatives.

x is [samples, channels, positions...] as everywhere in torch, in any memory format (channels_last stays channels_last).
Statistics are [channels] (batch_norm), [samples, channels] (instance_norm) or [samples, groups] (group_norm), in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from .. import _core
from ._compose import gradients, reciprocal_root
from ._engine import plain
from ._route import PLAIN, REFUSALS, SLOW, gate, route

KINDS = ("batch_norm", "instance_norm", "group_norm")
_HALVES = (torch.bfloat16, torch.float16)
_FORWARD: dict[str, Callable[..., Any]] = {kind: getattr(_core, kind) for kind in KINDS}
_BACKWARD: dict[str, Callable[..., Any]] = {kind: getattr(_core, kind + "_backward") for kind in KINDS}
_Maybe = Tensor | None


class ChannelOptions(NamedTuple):
    """What `normkit.batch_norm`, `instance_norm` or `group_norm` (the kind) is asked for."""

    kind: str
    eps: float
    training: bool = True  # statistics of the batch; False: the running ones
    momentum: float = 0.1  # the share of the batch in the running statistics, 0 to 1
    groups: int = 0  # group_norm only

    def stats_shape(self, x: Tensor) -> Sequence[int]:
        if self.kind == "batch_norm":
            return x.shape[1:2]
        return x.shape[:2] if self.kind == "instance_norm" else (x.shape[0], self.groups)


class Saved(NamedTuple):
    """What the backward needs: the statistics of the batch, or copies of the running ones that were used."""

    x: Tensor
    weight: _Maybe
    mean: _Maybe
    rstd: _Maybe
    running_mean: _Maybe
    running_var: _Maybe


def forward(
    o: ChannelOptions,
    x: Tensor,
    weight: _Maybe,
    bias: _Maybe,
    running_mean: _Maybe = None,
    running_var: _Maybe = None,
    stats: bool = True,
) -> tuple[Tensor, _Maybe, _Maybe]:
    """(y, mean, rstd) by the engine, the latter None unless asked for. In training the running statistics move."""
    x, weight, bias = plain(x, weight, bias)  # type: ignore[assignment]
    out = torch.empty_like(x)  # the strides that torch gives, and promises of the registered operators
    if o.kind == "group_norm":
        result = _FORWARD[o.kind](x, o.groups, weight, bias, eps=o.eps, out=out, return_stats=stats)
        return result if stats else (result, None, None)
    result = _FORWARD[o.kind](
        x,
        weight,
        bias,
        running_mean=(mean := _wide(running_mean)),
        running_var=(var := _wide(running_var)),
        training=o.training,
        momentum=o.momentum if o.training else 0.0,
        eps=o.eps,
        out=out,
        return_stats=stats,
    )
    if o.training:
        _moved(running_mean, mean)
        _moved(running_var, var)
    return result if stats else (result, None, None)


def _wide(running: _Maybe) -> _Maybe:
    """Running statistics in a type that the engine takes: themselves, or a copy of 16-bit ones."""
    return running.float() if running is not None and running.dtype in _HALVES else running


def _moved(running: _Maybe, wide: _Maybe) -> None:
    """Round the copy of 16-bit statistics back; tell autograd of a write that torch did not see."""
    if running is None:
        return
    if wide is not running:
        assert wide is not None
        running.copy_(wide)
    elif not running.is_inference():
        increment_version(running)


def backward(
    o: ChannelOptions, dy: Tensor, saved: Saved, bias: torch.dtype | None, mask: Sequence[bool]
) -> tuple[_Maybe, _Maybe, _Maybe]:
    """(dx, dweight, dbias) by the engine, None where masked out: dx as x, dweight as weight, dbias of type bias."""
    x, weight, mean, rstd, running_mean, running_var = saved
    dy, x, weight = plain(dy, x, weight)  # type: ignore[assignment]
    options: dict[str, Any] = {"eps": o.eps, "output_mask": tuple(mask), "dx": torch.empty_like(x) if mask[0] else None}
    if mask[2] and (weight is None or weight.dtype != bias):
        options["dbias"] = x.new_empty(x.shape[1], dtype=bias)
    if o.kind == "group_norm":
        return _BACKWARD[o.kind](dy, x, o.groups, weight, mean, rstd, **options)  # type: ignore[no-any-return]
    if not o.training:
        options.update(running_mean=_wide(running_mean), running_var=_wide(running_var))
    return _BACKWARD[o.kind](  # type: ignore[no-any-return]
        dy, x, weight, mean, rstd, training=o.training, **options
    )


def compose(
    o: ChannelOptions, x: Tensor, weight: _Maybe, bias: _Maybe, running_mean: _Maybe, running_var: _Maybe
) -> Tensor:
    """y by torch's differentiable operators, in the type of x, which the caller has widened already."""
    shape, ones = x.shape, [1] * (x.dim() - 2)
    positions = list(range(2, x.dim()))
    if o.training:
        reduced = {"batch_norm": [0, *positions], "instance_norm": positions, "group_norm": [2]}[o.kind]
        if o.kind == "group_norm":
            x = x.reshape(shape[0], o.groups, math.prod(shape[1:]) // o.groups)
        x = x - x.mean(dim=reduced, keepdim=True)
        var = (x * x).mean(dim=reduced, keepdim=True)
    else:
        assert running_mean is not None and running_var is not None
        x = x - running_mean.to(x.dtype).reshape(-1, *ones)
        var = running_var.to(x.dtype).reshape(-1, *ones)
    y = (x * reciprocal_root(var, o.eps)).reshape(shape)
    if weight is not None:
        y = y * weight.to(y.dtype).reshape(-1, *ones)
    return y if bias is None else y + bias.to(y.dtype).reshape(-1, *ones)


def channel_backward(
    o: ChannelOptions, dy: _Maybe, saved: Saved, bias: torch.dtype | None, mask: Sequence[bool]
) -> Sequence[_Maybe]:
    """[dx, dweight, dbias] for both paths that record, None where masked out or where y has no gradient."""
    x, weight = saved.x, saved.weight
    mask = [mask[0], mask[1] and weight is not None, mask[2] and bias is not None]
    if dy is None or not any(mask):
        return None, None, None
    if not torch.is_grad_enabled():
        where = "direct" if gate(dy, None, None) != SLOW and type(x) in PLAIN else route(x, weight, dy)
        if where == "direct":
            try:
                return backward(o, dy, saved, bias, mask)
            except REFUSALS:  # a gradient of an unusual kind, such as a batch of gradients under one name
                if route(x, weight, dy) == "direct":
                    raise
        elif where == "op":
            outs = getattr(torch.ops.normkit, o.kind + "_backward")(dy, *saved, *o[1:], bias, mask)
            return [t if m else None for t, m in zip(outs, mask, strict=True)]

    def y(x: Tensor, weight: _Maybe, bias: _Maybe) -> Tensor:
        return compose(o, x, weight, bias, saved.running_mean, saved.running_var)

    grads = gradients(y, dy, x, weight, None if bias is None else x.shape[1:2], mask)
    dtypes = (x.dtype, None if weight is None else weight.dtype, bias)
    return [None if g is None else g.to(t) for g, t in zip(grads, dtypes, strict=True)]


class ChannelNorm(torch.autograd.Function):
    """The eager path under autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: _Maybe,
        bias: _Maybe,
        running_mean: _Maybe,
        running_var: _Maybe,
        o: ChannelOptions,
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        y, mean, rstd = forward(o, x, weight, bias, running_mean, running_var, stats=o.training)
        # Copies: the running statistics may move before the backward.
        used = (None, None) if o.training else (running_mean.clone(), running_var.clone())  # type: ignore[union-attr]
        ctx.save_for_backward(x, weight, mean, rstd, *used)
        ctx.o, ctx.bias = o, None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: _Maybe) -> Any:
        grads = channel_backward(ctx.o, dy, Saved(*ctx.saved_tensors), ctx.bias, ctx.needs_input_grad[:3])
        return *grads, None, None, None


record: Any = ChannelNorm.apply
