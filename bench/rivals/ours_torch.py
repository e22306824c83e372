"""normkit behind PyTorch's autograd: normkit.torch.functional. It runs on torch.get_num_threads() threads."""

from __future__ import annotations

from . import Prepared, autograd, missing, torch_eager

NAME, TORCH_DOOR = "normkit.torch", True


def absent() -> str | None:
    return missing("torch", "normkit")


def version() -> str:
    import normkit

    return normkit.__version__


def prepare(cell, data, threads, outputs_given) -> Prepared:
    from normkit.torch import functional

    if not hasattr(cell, "rows"):
        return autograd.prepare(cell, data, torch_eager.channel_formula(cell, data, functional))
    shape = (cell.cols,)
    rounding = "before_weight" if cell.op == "llama_rms_norm" else "once"

    def forward(x, residual, weight, bias):
        if cell.centred:
            return functional.layer_norm(x, shape, weight, bias, cell.eps, residual=residual, rounding=rounding)
        return functional.rms_norm(x, shape, weight, cell.eps, residual=residual, rounding=rounding)

    return autograd.prepare(cell, data, forward)
