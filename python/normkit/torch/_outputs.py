"""Tensors that a call writes into (`out`, `residual_out`): what may be written, and how autograd learns of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ._route import PLAIN, is_tracing

Outputs = dict[str, Tensor]  # by name; those that the call has


def check_writable(kind: str, outputs: Outputs, inputs: Iterable[Tensor | None]) -> None:
    """Raise unless autograd allows these writes: the rules of torch for `out=` and for writes in place."""
    for name, t in outputs.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{kind}: {name} is a {type(t).__name__}, expected a torch.Tensor")
        if not is_tracing() and t.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError(f"{kind}: {name} is an inference tensor, expected a normal one outside inference mode")
    operands = {"an input": inputs, **{name: (t,) for name, t in outputs.items()}}
    for name, tensors in operands.items():
        if any(_differentiated(t) for t in tensors):
            raise RuntimeError(
                f"{kind}: out and residual_out do not support autograd, but {name} requires grad (expected no grad or "
                "torch.no_grad())"
            )


def _differentiated(t: Tensor | None) -> bool:
    if not isinstance(t, Tensor):
        return False
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None:  # type: ignore[no-untyped-call]
        return True
    return t.requires_grad and torch.is_grad_enabled()


def check_like(kind: str, outputs: Outputs, x: Tensor) -> None:
    """The engine's rules for outputs, where another path computes: x's shape, x's type or f32, no overlap."""
    for name, t in outputs.items():
        if t.shape != x.shape:
            raise ValueError(f"{kind}: {name} has shape {list(t.shape)}, expected {list(x.shape)} (the shape of input)")
        if t.dtype != x.dtype and (t.dtype != torch.float32 or x.is_complex()):
            or_wide = "" if x.is_complex() or x.dtype == torch.float32 else " or torch.float32"
            raise TypeError(f"{kind}: {name} has dtype {t.dtype}, expected {x.dtype}{or_wide}")
    if not is_tracing() and all(_has_memory(t) for t in outputs.values()):
        _check_memory(kind, outputs)


def _has_memory(t: Tensor) -> bool:
    return type(t) in PLAIN and t.layout == torch.strided and t.device.type != "meta" and t.numel() > 0


def _check_memory(kind: str, outputs: Outputs) -> None:
    for name, t in outputs.items():
        if not t.is_contiguous() and int(_bytes(t).sum()) < t.numel() * t.element_size():
            raise ValueError(f"{kind}: {name} has strides under which its elements overlap, expected distinct elements")
    if len(outputs) == 2:
        (name, t), (other_name, other) = outputs.items()
        if t.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and bool(
            (_bytes(t) & _bytes(other)).any()
        ):
            raise ValueError(f"{kind}: {other_name} overlaps {name} in memory, expected separate memory")


def _bytes(t: Tensor) -> Tensor:
    """For each byte of t's storage, whether it belongs to an element of t."""
    size = t.element_size()
    marks = torch.zeros(t.untyped_storage().nbytes(), dtype=torch.bool)
    strides = (*(s * size for s in t.stride()), 1)
    marks.as_strided((*t.shape, size), strides, t.storage_offset() * size).fill_(True)
    return marks


def written(outputs: Outputs) -> None:
    """Tell autograd of a write that torch did not see, so that a backward which needs the old values notices."""
    for t in outputs.values():
        increment_version(t)
