"""The options of one normalization, as one hashable value that every path of the torch door shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

ROUNDINGS = ("once", "before_weight")
EPS_MODES = ("inside", "outside", "clamp")
RESIDUAL_STATS = ("rounded", "unrounded")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WIDE = (torch.float64, torch.complex128)
_WIDE_EPS, _EPS = torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps


class Options(NamedTuple):
    """What `normkit.layer_norm`, `rms_norm` or `l2_norm` (the kind) is asked for; `dims` last dims are normalized."""

    kind: str
    dims: int
    eps: float
    weight_offset: float = 0.0
    rounding: str = "once"
    eps_mode: str = "inside"
    residual_stats: str = "rounded"

    def check(self) -> None:
        """Raise ValueError for options that no path accepts. The extension module makes the same checks itself."""
        if not self.eps >= 0.0 or self.eps == float("inf"):
            raise ValueError(f"{self.kind}: eps is {self.eps}, expected a finite number of 0 or more")
        for name, value, allowed in (
            ("rounding", self.rounding, ROUNDINGS),
            ("eps_mode", self.eps_mode, EPS_MODES),
            ("residual_stats", self.residual_stats, RESIDUAL_STATS),
        ):
            if value not in allowed:
                raise ValueError(f"{self.kind}: {name} is {value!r}, expected one of {', '.join(allowed)}")

    @property
    def is_torch(self) -> bool:
        """True if torch's own operator of the same name computes this (it knows eps and the weight, nothing else)."""
        return (
            self.kind != "l2_norm"
            and self.weight_offset == 0.0
            and self.rounding == "once"
            and self.eps_mode == "inside"
        )


class BiasInfo(NamedTuple):
    """All that a backward must know of the bias: no derivative depends on its values, so it is not saved."""

    shape: Sequence[int]
    dtype: torch.dtype


def bias_info(bias: Tensor | None) -> BiasInfo | None:
    return None if bias is None else BiasInfo(bias.shape, bias.dtype)


def default_rms_eps(dtype: torch.dtype) -> float:
    """torch's rule for `eps=None` in RMSNorm: the machine epsilon of the type that the sum is formed in."""
    return _WIDE_EPS if dtype in _WIDE else _EPS


def wider(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The wider of the types of x and residual: the type that h is rounded to when nothing else is asked for."""
    return a if a == b else torch.promote_types(a, b)
