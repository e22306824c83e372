"""Results for arrays that the extension module does not make itself: computed in NumPy memory, then handed over."""

import sys
from typing import Any


def like(array: Any, given: Any) -> Any:
    """Turns a new NumPy array into the kind of `given`; it stays what it is where that kind cannot be made."""
    if _is_a(given, "torch", "Tensor"):
        return _torch(array)
    if _is_a(given, "jax", "Array"):
        return sys.modules["jax"].device_put(array, given.device)
    if hasattr(given, "__array_namespace__"):  # the array API standard
        return given.__array_namespace__().from_dlpack(array)
    return array


def _is_a(given: Any, module: str, name: str) -> bool:
    """isinstance without an import: an object of a library exists only where the library was imported."""
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(given, cls)


def _torch(array: Any) -> Any:
    torch = sys.modules["torch"]
    if array.dtype.name == "bfloat16":  # torch.from_numpy knows no ml_dtypes
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)
