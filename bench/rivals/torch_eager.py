"""PyTorch eager: the norms of torch.nn.functional. They take no outputs."""

from __future__ import annotations

from harness.channels import GROUPS

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


def channel_formula(cell, data, functional=None):
    """The same for norms over channels, by torch.nn.functional or what has its signatures."""
    import torch

    functional = functional or torch.nn.functional
    weight = data.torch(data.weight)
    running = [data.torch(a).to(weight.dtype) for a in (data.running_mean, data.running_var)]

    def norm(x, residual, weight, bias):
        if cell.op == "group_norm":
            return functional.group_norm(x, GROUPS, weight, bias, cell.eps)
        if cell.op == "instance_norm":
            return functional.instance_norm(x, None, None, weight, bias, True, 0.1, cell.eps)
        if cell.op == "batch_norm_eval":
            return functional.batch_norm(x, *running, weight, bias, False, 0.1, cell.eps)
        return functional.batch_norm(x, None, None, weight, bias, True, 0.1, cell.eps)

    return norm


def formula_of(cell, data):
    return formula(cell) if hasattr(cell, "rows") else channel_formula(cell, data)


def prepare(cell, data, threads, outputs_given) -> Prepared:
    if cell.op == "llama_rms_norm":
        raise Skip("has no such rounding")
    return autograd.prepare(cell, data, formula_of(cell, data))
