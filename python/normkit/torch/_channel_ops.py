"""The registered operators of the norms over channels, namespace `normkit`; see _ops.

    normkit::batch_norm(x, weight, bias, running_mean, running_var, <options>)
        -> (y, mean, rstd, running_mean, running_var)
    normkit::batch_norm_backward(dy, x, weight, mean, rstd, running_mean, running_var, <options>, ...)
        -> (dx, dweight, dbias)

and the same for instance_norm and group_norm. They write to nothing: the running statistics that come out are new
tensors, moved in training, for the caller to copy. y and dx have x's memory format.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _channels
from ._channels import KINDS, ChannelOptions, Saved, channel_backward
from ._ops import empty, library

_OPTIONS = "float eps, bool training, float momentum, SymInt groups"
_RUNNING = "Tensor? running_mean, Tensor? running_var"
_FORWARD = (
    f"(Tensor x, Tensor? weight, Tensor? bias, {_RUNNING}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_BACKWARD = (
    f"(Tensor dy, Tensor x, Tensor? weight, Tensor? mean, Tensor? rstd, {_RUNNING}, {_OPTIONS}, "
    "ScalarType? bias_dtype, bool[] output_mask) -> (Tensor, Tensor, Tensor)"
)
# y's memory format is x's: a compiler must not hand over another one than it traced with.
_TAGS = (getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),)


def _register(kind: str) -> None:
    library.define(kind + _FORWARD, tags=_TAGS)
    library.define(kind + "_backward" + _BACKWARD, tags=_TAGS)

    def forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        mean, var, *options = rest
        o = ChannelOptions(kind, *options)
        mean, var = (None if t is None else t.clone() for t in (mean, var))
        y, *stats = _channels.forward(o, x, weight, bias, mean, var, stats=o.training)
        batch_mean, rstd, mean, var = (empty(x) if t is None else t for t in (*stats, mean, var))
        return y, batch_mean, rstd, mean, var

    def fake_forward(
        x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        mean, var, *options = rest
        o = ChannelOptions(kind, *options)
        stats = [x.new_empty(o.stats_shape(x), dtype=torch.float64) if o.training else empty(x) for _ in range(2)]
        mean_after, var_after = (empty(x) if t is None else t.new_empty(t.shape) for t in (mean, var))
        return torch.empty_like(x), stats[0], stats[1], mean_after, var_after

    def backward(dy: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        saved, options, (bias, mask) = Saved(*rest[:6]), rest[6:-2], rest[-2:]
        grads = _channels.backward(ChannelOptions(kind, *options), dy, saved, bias, mask)
        return tuple(empty(saved.x) if g is None else g for g in grads)

    def fake_backward(dy: Tensor, x: Tensor, weight: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        *_, bias, mask = rest
        return (
            torch.empty_like(x) if mask[0] else empty(x),
            weight.new_empty(weight.shape) if mask[1] and weight is not None else empty(x),
            x.new_empty(x.shape[1:2], dtype=bias) if mask[2] and bias is not None else empty(x),
        )

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, _, _, *options = inputs
        _, mean, rstd, running_mean, running_var = output
        ctx.o, ctx.bias = ChannelOptions(kind, *options), None if bias is None else bias.dtype
        used = (mean, rstd, None, None) if ctx.o.training else (None, None, running_mean, running_var)
        ctx.save_for_backward(x, weight, *used)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)

    def autograd_backward(ctx: Any, dy: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        grads = channel_backward(ctx.o, dy, Saved(*ctx.saved_tensors), ctx.bias, ctx.needs_input_grad[:3])
        return *grads, None, None, *([None] * len(ctx.o[1:]))

    name = "normkit::" + kind
    library.impl(kind, torch.no_grad()(forward), "CPU")
    library.impl(kind + "_backward", torch.no_grad()(backward), "CPU")
    torch.library.register_fake(name, fake_forward, lib=library)
    torch.library.register_fake(name + "_backward", fake_backward, lib=library)
    torch.library.register_autograd(name, autograd_backward, setup_context=setup_context, lib=library)


for _kind in KINDS:
    _register(_kind)
