"""The kinds of arrays that the tests pass: made from NumPy arrays and turned back into them, bits unchanged."""

import jax
import normkit
import numpy as np
import torch
from reference import bfloat16

OPS = ("layer_norm", "rms_norm", "l2_norm")
CHANNEL_OPS = ("batch_norm", "instance_norm", "group_norm")
GROUPS = 2  # of group_norm in the tests


def channel_norm(op: str, groups: int = GROUPS):
    """The function of a channel norm or its backward; group_norm gets its groups, so that all are called alike."""
    function = getattr(normkit, op)
    if not op.startswith("group_norm"):
        return function
    arrays = 2 if op.endswith("backward") else 1
    return lambda *given, **options: function(*given[:arrays], groups, *given[arrays:], **options)


def to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype == bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(array) -> np.ndarray:
    if isinstance(array, torch.Tensor):
        array = array.detach()
        return array.view(torch.int16).numpy().view(bfloat16) if array.dtype == torch.bfloat16 else array.numpy()
    return np.asarray(array)


def to_jax(array: np.ndarray) -> jax.Array:
    with jax.enable_x64():  # for float64
        return jax.device_put(array)


# kind: (from NumPy, the type of results, the types that it can hold)
KINDS = {
    "numpy": (lambda a: a, np.ndarray, ("f32", "f64", "f16", "bf16")),
    "torch": (to_torch, torch.Tensor, ("f32", "f64", "f16", "bf16")),
    "parameter": (lambda a: torch.nn.Parameter(to_torch(a), False), torch.Tensor, ("f32", "f64", "f16", "bf16")),
    "jax": (to_jax, jax.Array, ("f32", "f64", "f16", "bf16")),
    "dlpack": (lambda a: DLPackOnly(to_torch(a)), np.ndarray, ("f32", "f64", "f16", "bf16")),
    "old dlpack": (lambda a: OldDLPackOnly(to_torch(a)), np.ndarray, ("f32", "f64", "f16", "bf16")),
    "memoryview": (memoryview, np.ndarray, ("f32", "f64", "f16")),
}
EVERY_KIND_AND_TYPE = [(kind, name) for kind, (_, _, types) in KINDS.items() for name in types]


class DLPackOnly:
    """An array of a library that nobody knows."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def __dlpack__(self, *, max_version=None):
        return self.tensor.__dlpack__(max_version=max_version)


class OldDLPackOnly(DLPackOnly):
    """The same from before DLPack 1.0: no versions."""

    def __dlpack__(self, stream=None):
        return self.tensor.__dlpack__()


def same_bits(a, b) -> bool:
    a, b = np.ascontiguousarray(to_numpy(a)), np.ascontiguousarray(to_numpy(b))
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def random(rng: np.random.Generator, shape, dtype, scale=1.0, shift=0.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale + shift).astype(dtype)
