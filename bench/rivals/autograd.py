"""Forward + backward by PyTorch's autograd, the same for every rival that has this door, and for ours."""

from __future__ import annotations

from . import Prepared


def numpy_of(tensor):
    """The tensor's values as a NumPy array; bf16 by its bits."""
    import ml_dtypes
    import numpy as np
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(np.dtype(ml_dtypes.bfloat16))
    return tensor.numpy()


def leaves(cell, data):
    """Tensors over the shared inputs: (x, residual or None, weight, bias or None), with gradients when backward."""
    tensors = [data.torch(a) for a in (data.x, data.residual, data.weight, data.bias)]
    return [t.requires_grad_() if t is not None and cell.backward else t for t in tensors]


def prepare(cell, data, forward) -> Prepared:
    """forward(x, residual, weight, bias) -> y, or (y, h) with a residual. Outputs are always fresh tensors."""
    import torch

    x, residual, weight, bias = leaves(cell, data)
    inputs = [t for t in (x, residual, weight, bias) if t is not None]
    gradients = [data.torch(g) for g in (data.dy, data.dh) if g is not None]

    def forward_only():
        return forward(x, residual, weight, bias)

    def forward_backward():
        y = forward(x, residual, weight, bias)
        return torch.autograd.grad(y, inputs, gradients)

    def results():
        outputs = forward(x, residual, weight, bias)
        y, h = outputs if cell.residual else (outputs, None)
        found = {"y": y, "h": h}
        if cell.backward:
            grads = torch.autograd.grad(outputs, inputs, gradients)
            found |= {"dx": grads[0], "dweight": grads[2 if cell.residual else 1]}
            found["dbias"] = grads[-1] if cell.centred else None
        return {name: numpy_of(t) for name, t in found.items() if t is not None}

    return Prepared(forward_backward if cell.backward else forward_only, results, given=False)
