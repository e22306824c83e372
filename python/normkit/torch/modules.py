"""LayerNorm and RMSNorm: drop-in modules for torch.nn's, with the same constructor arguments and state_dict keys."""

from __future__ import annotations

import torch
from torch import Tensor

from . import _engine
from ._options import Options, default_rms_eps
from ._route import DIRECT, REFUSALS, gate
from .functional import fits, norm_plain

__all__ = ["LayerNorm", "RMSNorm"]

_layer_norm = _engine.FORWARD["layer_norm"]
_rms_norm = _engine.FORWARD["rms_norm"]


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, computed by normkit. Everything but forward is torch's own."""

    def forward(self, input: Tensor) -> Tensor:
        try:
            parameters = self._parameters  # getattr of a parameter costs ten times as much
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # a parametrized or pruned module
            weight, bias = self.weight, self.bias
        shape = self.normalized_shape
        if gate(input, weight, bias) == DIRECT and fits(shape, weight, bias):
            try:
                return _layer_norm(input, weight, bias, eps=self.eps, axis=-len(shape))  # type: ignore[no-any-return]
            except REFUSALS:
                pass
        o = Options("layer_norm", len(shape), self.eps)
        return norm_plain(o, input, shape, weight, bias)


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, computed by normkit; eps=None is the machine epsilon of the type that sums are formed in."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            weight = self._parameters["weight"]
        except KeyError:
            weight = self.weight
        shape, eps = self.normalized_shape, self.eps
        if eps is None:
            if not isinstance(x, Tensor):  # torch.fx traces: what it holds has no type yet
                return super().forward(x)
            eps = default_rms_eps(x.dtype)
        if gate(x, weight, None) == DIRECT and fits(shape, weight, None):
            try:
                return _rms_norm(x, weight, None, eps=eps, axis=-len(shape))  # type: ignore[no-any-return]
            except REFUSALS:
                pass
        return norm_plain(Options("rms_norm", len(shape), eps), x, shape, weight)
