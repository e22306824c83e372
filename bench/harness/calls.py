"""What one call from Python costs, on arrays so small that nothing else counts."""

from __future__ import annotations

from functools import partial

import numpy as np

from .timing import interleave


def _arrays(modules: dict) -> dict[str, object]:
    if "ours_arrays" not in modules:
        return {}
    import normkit

    x, weight = np.ones((1, 64), np.float32), np.ones(64, np.float32)
    out = np.empty_like(x)
    return {
        "normkit.rms_norm, NumPy, out": partial(normkit.rms_norm, x, weight, out=out),
        "normkit.rms_norm, NumPy, new array": partial(normkit.rms_norm, x, weight),
    }


def _torch(modules: dict) -> dict[str, object]:
    if "torch_eager" not in modules:
        return {}
    import torch
    from torch.nn import functional

    x, weight, bias = torch.ones(1, 64), torch.ones(64), torch.zeros(64)
    layer, rms = torch.nn.LayerNorm(64), torch.nn.RMSNorm(64, eps=1e-5)
    runs = {
        "F.layer_norm": partial(functional.layer_norm, x, (64,), weight, bias, 1e-5),
        "F.rms_norm": partial(functional.rms_norm, x, (64,), weight, 1e-5),
        "torch.nn.LayerNorm module, no grad": partial(layer, x),
        "torch.nn.RMSNorm module, no grad": partial(rms, x),
    }
    if "ours_torch" not in modules:
        return runs
    import normkit
    import normkit.torch

    out = torch.empty_like(x)
    ours_layer, ours_rms = normkit.torch.LayerNorm(64), normkit.torch.RMSNorm(64, eps=1e-5)
    runs |= {
        "normkit.rms_norm, torch, out": partial(normkit.rms_norm, x, weight, out=out),
        "normkit.layer_norm, torch, out": partial(normkit.layer_norm, x, weight, bias, out=out),
        "normkit.rms_norm, torch, new tensor": partial(normkit.rms_norm, x, weight),
        "normkit.torch.LayerNorm module, no grad": partial(ours_layer, x),
        "normkit.torch.RMSNorm module, no grad": partial(ours_rms, x),
    }
    return runs


def measure(modules: dict) -> dict[str, dict[str, float]]:
    """{what: seconds and spread}, f32, 1 x 64."""
    runs = _arrays(modules) | _torch(modules)
    if not runs:
        return {}
    if "torch_eager" in modules:
        import torch

        with torch.no_grad():
            timings = interleave(runs, 2e-3)
    else:
        timings = interleave(runs, 2e-3)
    return {name: {"seconds": t.seconds, "spread": t.spread} for name, t in timings.items()}
