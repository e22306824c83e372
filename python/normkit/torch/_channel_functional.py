"""batch_norm, instance_norm and group_norm with the signatures of torch.nn.functional; `functional` exports them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _channel_ops  # noqa: F401  (registers the operators)
from ._channels import ChannelOptions, forward, record
from ._route import DIRECT, PLAIN, REFUSALS, SLOW, gate, route


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """BatchNorm (torch.nn.functional.batch_norm; Ioffe & Szegedy 2015).

    y = (x - mean) / sqrt(var + eps) * weight + bias

    input: [samples, channels, positions...], rank 2 to 8, f32, f64, bf16 or f16, in any memory format; y is like it.
    weight, bias, running_mean, running_var: [channels], each of input's type or f32; absent weight 1, bias 0.
    training: mean and biased variance are the batch's, per channel, and running_mean and running_var, if given, become
    (1 - momentum) * running + momentum * batch, in place, the variance unbiased. Those of 16 bits are computed in f32
    and rounded once. An empty batch leaves them as they are; a batch with inf or NaN makes them inf or NaN. Otherwise
    (the default) they are used in place of the batch's, and needed.
    Raises as torch does: ValueError for one value per channel in training and for an eps that is negative, or 0 in
    training; RuntimeError for sizes that do not fit.
    """
    o = ChannelOptions("batch_norm", eps, bool(training), momentum)
    return channel_norm(o, input, weight, bias, running_mean, running_var)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """InstanceNorm (torch.nn.functional.instance_norm; Ulyanov et al. 2016): statistics per sample and channel.

    All is as in `batch_norm`, with use_input_stats (True by default) for training. Running statistics move by the mean
    of the samples'. y has input's memory format, where torch's is contiguous. Raises ValueError, as torch does, if
    there is only one position and the statistics are the input's.
    """
    o = ChannelOptions("instance_norm", eps, bool(use_input_stats), momentum)
    return channel_norm(o, input, weight, bias, running_mean, running_var)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """GroupNorm (torch.nn.functional.group_norm; Wu & He 2018): statistics per sample and group of channels.

    input, weight, bias and y are as in `batch_norm`. num_groups divides the channels: RuntimeError, as in torch, if
    not, ValueError if it is not positive. One value per group gives the bias, in a batch of one, too, where torch
    raises.
    """
    if isinstance(num_groups, int) and num_groups <= 0:
        raise ValueError(f"group_norm: num_groups is {num_groups}, expected 1 or more")
    return channel_norm(ChannelOptions("group_norm", eps, groups=num_groups), input, weight, bias)


def channel_norm(
    o: ChannelOptions,
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
) -> Tensor:
    """What every function above does once its options are known: by the shortest path that is right."""
    kind = gate(x, weight, bias)
    plain = running_mean is None or (type(running_mean) in PLAIN and type(running_var) in PLAIN)
    try:  # what the engine does not take it refuses before it has written a byte
        if kind != SLOW and plain and _fits(o, x, weight, bias, running_mean, running_var):
            if kind == DIRECT:
                return forward(o, x, weight, bias, running_mean, running_var, stats=False)[0]
            return record(x, weight, bias, running_mean, running_var, o)  # type: ignore[no-any-return]
    except REFUSALS:
        pass
    where = route(x, weight, bias, running_mean, running_var)
    if where == "torch" or not _fits(o, x, weight, bias, running_mean, running_var):
        return _by_torch(o, x, weight, bias, running_mean, running_var)
    if 0 in x.shape[2:]:  # the engine takes this for batch_norm only, where an empty batch has the same answer
        o = o._replace(kind="batch_norm", training=True)
    if where == "op":
        return _by_operator(o, x, weight, bias, running_mean, running_var)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        return record(x, weight, bias, running_mean, running_var, o)  # type: ignore[no-any-return]
    return forward(o, x, weight, bias, running_mean, running_var, stats=False)[0]


def _by_operator(
    o: ChannelOptions, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None
) -> Tensor:
    operator = getattr(torch.ops.normkit, o.kind)
    y, _, _, mean_after, var_after = operator(x, weight, bias, mean, var, *o[1:])
    if o.training and mean is not None and var is not None:
        with torch.no_grad():
            mean.copy_(mean_after)
            var.copy_(var_after)
    return y  # type: ignore[no-any-return]


def _by_torch(
    o: ChannelOptions, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None
) -> Tensor:
    """torch's own function: for inputs that the engine does not take, and for the error that torch raises."""
    if o.kind == "group_norm":
        return F.group_norm(x, o.groups, weight, bias, o.eps)
    if o.kind == "batch_norm":
        return F.batch_norm(x, mean, var, weight, bias, o.training, o.momentum, o.eps)
    return F.instance_norm(x, mean, var, weight, bias, o.training, o.momentum, o.eps)


def _fits(
    o: ChannelOptions, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None
) -> bool:
    """True if options and sizes are such that torch and the engine take them and mean the same."""
    shape = x.shape
    positions = math.prod(shape[2:])
    if len(shape) < 2 or shape[1] == 0 or not _is_number(o.eps) or not 0.0 <= o.eps < math.inf:
        return False
    channels = shape[1:2]
    if (weight is not None and weight.shape != channels) or (bias is not None and bias.shape != channels):
        return False
    if o.kind == "group_norm":
        return type(o.groups) is int and o.groups > 0 and shape[1] % o.groups == 0
    if mean is None or var is None:
        if mean is not None or var is not None or not o.training:
            return False
    elif not (_is_running(mean, x) and _is_running(var, x)):
        return False
    if not o.training:
        return True
    values = positions if o.kind == "instance_norm" else shape[0] * positions
    if values == 1 or (o.eps == 0.0 and o.kind == "batch_norm"):
        return False
    return _is_number(o.momentum) and 0.0 <= o.momentum <= 1.0


def _is_running(t: Tensor, x: Tensor) -> bool:
    return t.shape == x.shape[1:2] and not t.requires_grad and t.dtype in (x.dtype, torch.float32)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, torch.SymFloat))
