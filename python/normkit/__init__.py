"""Normalization layers for the CPU: the same bits everywhere.

LayerNorm, RMSNorm, L2 normalization, BatchNorm, GroupNorm and InstanceNorm, forward and backward, on NumPy, PyTorch and
JAX arrays in CPU memory. A result depends neither on the number of threads, the samples around it or alignment, nor on
the instruction set.

>>> import numpy as np, normkit
>>> normkit.rms_norm(np.float32([[3.0, 4.0]]), np.float32([1.0, 2.0]), eps=0.0)
array([[0.84852815, 2.263..., dtype=float32)

PyTorch modules with autograd, and the replacement of a model's norms, are in `normkit.torch`.
"""

from normkit._core import (
    available_cpus,
    batch_norm,
    batch_norm_backward,
    cache_bytes,
    group_norm,
    group_norm_backward,
    instance_norm,
    instance_norm_backward,
    l2_norm,
    l2_norm_backward,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
    target,
    targets,
)
from normkit._core import version as _version

__version__: str = _version()

__all__ = [
    "__version__",
    "available_cpus",
    "batch_norm",
    "batch_norm_backward",
    "cache_bytes",
    "group_norm",
    "group_norm_backward",
    "instance_norm",
    "instance_norm_backward",
    "l2_norm",
    "l2_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
    "target",
    "targets",
]
