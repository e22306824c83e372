"""PyTorch eager: torch.nn.functional.layer_norm and rms_norm. They take no outputs."""

from __future__ import annotations

from . import Prepared, Skip, autograd, missing

NAME, TORCH_DOOR = "torch", True


def absent() -> str | None:
    return missing("torch")


def version() -> str:
    import torch

    return torch.__version__


def formula(cell):
    """(x, residual, weight, bias) -> y or (y, h), in torch's own operators."""
    import torch
    from torch.nn import functional

    shape = (cell.cols,)

    def norm(h, weight, bias):
        if cell.centred:
            return functional.layer_norm(h, shape, weight, bias, cell.eps)
        return functional.rms_norm(h, shape, weight, cell.eps)

    def fused(x, residual, weight, bias):
        h = torch.add(x, residual)
        return norm(h, weight, bias), h

    def plain(x, residual, weight, bias):
        return norm(x, weight, bias)

    return fused if cell.residual else plain


def prepare(cell, data, threads, outputs_given) -> Prepared:
    if cell.op == "llama_rms_norm":
        raise Skip("has no such rounding")
    return autograd.prepare(cell, data, formula(cell))
