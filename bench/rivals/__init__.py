"""One file per rival. Each is a module with

    NAME                  as it stands in the table
    TORCH_DOOR            True when backward is PyTorch's autograd, so that ours goes through it too
    absent()              why it cannot run here, or None
    version()             of what is measured
    prepare(cell, data, threads, outputs_given) -> Prepared; raises Skip(reason) for a cell that it cannot do

`data` is harness.operands.Operands. Every rival gets the same memory as input. outputs_given: the rival writes into
memory that it was given, if it can; otherwise it allocates its outputs, and Prepared.given says so.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np

# Ours first. normkit_torch is the same engine behind PyTorch's autograd.
OURS = ["ours_arrays", "ours_torch"]
RIVALS = ["torch_eager", "torch_compile", "hf_rmsnorm", "ort", "onednn", "jax_jit", "numpy_plain"]


class Skip(Exception):
    """A cell that a rival cannot do; the message says why."""


@dataclass
class Prepared:
    run: Callable[[], object]  # one call; what it returns may be dropped
    results: Callable[[], dict[str, np.ndarray]]  # runs once more and gives y, h, dx, dweight, dbias: those it has
    given: bool  # outputs were written into given memory


def load(names: list[str]) -> tuple[dict[str, ModuleType], dict[str, str]]:
    """(module by name, reason by name of those that are absent here)."""
    modules, absent = {}, {}
    for name in names:
        module = importlib.import_module(f"rivals.{name}")
        reason = module.absent()
        if reason is None:
            modules[name] = module
        else:
            absent[module.NAME] = reason
    return modules, absent


def missing(*packages: str) -> str | None:
    """'not installed: x' when one of the packages is not there."""
    gone = [p for p in packages if importlib.util.find_spec(p) is None]
    return f"not installed: {', '.join(gone)}" if gone else None
