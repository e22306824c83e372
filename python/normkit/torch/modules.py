"""LayerNorm and RMSNorm: drop-in modules for torch.nn's, with the same constructor arguments and state_dict keys."""

from __future__ import annotations

import torch
from torch import Tensor

from ._options import Options, default_rms_eps
from .functional import fast, norm

__all__ = ["LayerNorm", "RMSNorm"]


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, computed by normkit. Everything but forward is torch's own."""

    def forward(self, input: Tensor) -> Tensor:
        shape = self.normalized_shape
        o = Options("layer_norm", len(shape), self.eps)
        return apply(o, shape, input, self.weight, self.bias)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, computed by normkit; eps=None is the machine epsilon of the type that sums are formed in."""

    def forward(self, x: Tensor) -> Tensor:
        shape = self.normalized_shape
        eps = default_rms_eps(x.dtype) if self.eps is None else self.eps
        return apply(Options("rms_norm", len(shape), eps), shape, x, self.weight, None)


def apply(o: Options, shape: tuple[int, ...], x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """One normalization, by the shortest path that is right."""
    if (weight is None or len(shape) != 1 or shape[0] == 1) and tuple(x.shape[-len(shape) :]) != shape:
        return norm(o, x, shape, weight, bias)  # raises, or torch does
    y = fast(o, x, weight, bias)
    return norm(o, x, shape, weight, bias) if y is None else y
