"""Calls of the extension module: options in, a tuple of one shape out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _core
from ._options import BiasInfo, Options, wider

FORWARD: dict[str, Callable[..., Any]] = {
    "layer_norm": _core.layer_norm,
    "rms_norm": _core.rms_norm,
    "l2_norm": _core.l2_norm,
}
BACKWARD: dict[str, Callable[..., Any]] = {
    "layer_norm": _core.layer_norm_backward,
    "rms_norm": _core.rms_norm_backward,
    "l2_norm": _core.l2_norm_backward,
}


# Without the exchange API (torch before 2.10) tensors go by __dlpack__, which refuses those that require gradients.
_MUST_DETACH = not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")


def plain(*tensors: Tensor | None) -> Iterator[Tensor | None]:
    return (None if t is None else t.detach() for t in tensors) if _MUST_DETACH else iter(tensors)


def forward(
    o: Options,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    residual_out: Tensor | None = None,
    stats: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """(y, h, mean, rstd); None for what the kind or the call does not have."""
    x, weight, bias, residual = plain(x, weight, bias, residual)  # type: ignore[assignment]
    result = FORWARD[o.kind](
        x,
        weight,
        bias,
        residual=residual,
        eps=o.eps,
        axis=-o.dims,
        weight_offset=o.weight_offset,
        rounding=o.rounding,
        eps_mode=o.eps_mode,
        residual_stats=o.residual_stats,
        out=out,
        residual_out=residual_out,
        return_stats=stats,
    )
    if residual is None and not stats:
        return result, None, None, None
    parts = list(result)
    y = parts.pop(0)
    h = parts.pop(0) if residual is not None else None
    rstd = parts.pop() if stats else None
    return y, h, parts.pop() if parts else None, rstd


def backward(
    o: Options,
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    residual: Tensor | None,
    dresidual_out: Tensor | None,
    bias: BiasInfo | None,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(dx, dweight, dbias), None where masked out; dx in the wider type of x and residual, the others in their own."""
    dy, x, weight, residual, dresidual_out = plain(dy, x, weight, residual, dresidual_out)  # type: ignore[assignment]
    mask = (mask[0], mask[1] and weight is not None, mask[2] and bias is not None)
    outs: dict[str, Tensor | None] = {}
    if mask[0] and residual is not None and residual.dtype != x.dtype:
        outs["dx"] = torch.empty(x.shape, dtype=wider(x.dtype, residual.dtype))
    if mask[2] and bias is not None and (weight is None or weight.dtype != bias.dtype or weight.shape != bias.shape):
        outs["dbias"] = torch.empty(bias.shape, dtype=bias.dtype)
    if o.kind == "layer_norm":
        outs["mean"] = mean
    dx, dweight, dbias = BACKWARD[o.kind](
        dy,
        x,
        weight,
        rstd=rstd,
        residual=residual,
        dresidual_out=dresidual_out,
        eps=o.eps,
        axis=-o.dims,
        weight_offset=o.weight_offset,
        rounding=o.rounding,
        eps_mode=o.eps_mode,
        residual_stats=o.residual_stats,
        output_mask=mask,
        **outs,
    )
    return dx, dweight, dbias
