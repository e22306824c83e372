"""torch.compile of what torch_eager and hf_rmsnorm run, for the very shape (no dynamic sizes)."""

from __future__ import annotations

from . import Prepared, autograd, hf_rmsnorm, torch_eager

NAME, TORCH_DOOR = "compile", True


def absent() -> str | None:
    return torch_eager.absent()


def version() -> str:
    return torch_eager.version()


def prepare(cell, data, threads, outputs_given) -> Prepared:
    import torch

    torch.compiler.reset()  # one cell never recompiles another's code
    formula = hf_rmsnorm.formula(cell) if cell.op == "llama_rms_norm" else torch_eager.formula_of(cell, data)
    compiled = torch.compile(formula, dynamic=False, fullgraph=True)
    return autograd.prepare(cell, data, compiled)
