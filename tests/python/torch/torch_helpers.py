"""Shared by the tests of normkit.torch: tensors as NumPy arrays, and checks against the f64 reference."""

import ml_dtypes
import normkit.torch
import numpy as np
import reference
import torch

F = normkit.torch.functional
KINDS = ("layer_norm", "rms_norm", "l2_norm")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def array(t):
    """A tensor as a NumPy array of the same type and values; None stays None."""
    if t is None:
        return None
    t = t.detach().resolve_neg().contiguous()
    return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype == torch.bfloat16 else t.numpy()


def make(*shape, dtype=torch.float32, seed=0, mean=0.3, scale=1.0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * scale + mean
    return values.to(dtype).requires_grad_(requires_grad)


def call(kind, x, weight=None, bias=None, dims=1, **options):
    """F.layer_norm, F.rms_norm or F.l2_norm over the last `dims` dims, with the eps that the reference defaults to."""
    options.setdefault("eps", 1e-12 if kind == "l2_norm" else 1e-5)
    return getattr(F, kind)(x, x.shape[x.dim() - dims :], weight, bias=bias, **options)


def check_forward(kind, y, x, weight=None, bias=None, dims=1, **options):
    """y against the f64 reference and the tolerance formula."""
    arrays = {k: array(v) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    expected = reference.forward(kind, array(x), array(weight), array(bias), axis=-dims, **arrays)
    expected["y"].check(array(y), f"{kind} y")
    return expected


def check_backward(kind, grads, dy, x, weight=None, dims=1, **options):
    """{"dx": ..., "dweight": ..., "dbias": ...} (those that are there) against the f64 reference."""
    arrays = {k: array(v) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    expected = reference.backward(kind, array(dy), array(x), array(weight), axis=-dims, **arrays)
    for name, grad in grads.items():
        expected[name].check(array(grad), f"{kind} {name}")


def close_to_torch(ours, theirs, factor=64):
    """Two results of good f32 (f64, 16-bit) computations of the same thing."""
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    unit = torch.finfo(ours.dtype).eps
    if theirs.numel() == 0:
        return
    bound = unit * (factor if ours.dtype in (torch.float32, torch.float64) else 2)
    size = max(1.0, float(theirs.detach().nan_to_num().abs().max()))
    torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound * size, equal_nan=True)


def finite(*tensors):
    return all(np.isfinite(array(t).astype(np.float64)).all() for t in tensors)
