"""The RMSNorm of Hugging Face transformers (LlamaRMSNorm), as a model calls it: xhat is rounded before the weight."""

from __future__ import annotations

from . import Prepared, Skip, autograd, missing

NAME, TORCH_DOOR = "HF", True


def absent() -> str | None:
    return missing("torch", "transformers")


def version() -> str:
    import transformers

    return transformers.__version__


def formula(cell):
    """(x, residual, weight, bias) -> y or (y, h). The module's parameter is replaced by the shared weight."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    module = LlamaRMSNorm(cell.cols, eps=cell.eps)
    del module.weight

    def plain(x, residual, weight, bias):
        module.weight = weight
        return module(x)

    def fused(x, residual, weight, bias):
        h = x + residual
        return plain(h, None, weight, bias), h

    return fused if cell.residual else plain


def prepare(cell, data, threads, outputs_given) -> Prepared:
    if not hasattr(cell, "rows"):
        raise Skip("norms over channels are not measured")
    if cell.op == "layer_norm":
        raise Skip("is an RMSNorm")
    return autograd.prepare(cell, data, formula(cell))
