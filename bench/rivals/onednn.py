"""oneDNN's layer_normalization primitive from the PyPI package onednn-devel, by a few C functions in onednn.cc.

Looked for in this environment, or in the one that NORMKIT_BENCH_ONEDNN names (the package is 2 GB with what it needs).
Parameters and their gradients are f32, its default; 16-bit x needs AVX-512 (or AVX2 with VNNI), see `Skip` below.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

import numpy as np

from . import Prepared, Skip

NAME, TORCH_DOOR = "oneDNN", False


def _prefix() -> Path:
    return Path(os.environ.get("NORMKIT_BENCH_ONEDNN", sys.prefix))


def absent() -> str | None:
    if not (_prefix() / "include" / "oneapi" / "dnnl" / "dnnl.hpp").exists():
        return "not installed: onednn-devel (or name its environment in NORMKIT_BENCH_ONEDNN)"
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return "no C++ compiler"
    return None


def _library() -> ctypes.CDLL:
    from harness import native

    root = _prefix()
    # The CPU engine of this package is SYCL over OpenCL: this file is its driver.
    os.environ.setdefault("OCL_ICD_FILENAMES", str(root / "lib" / "libintelocl.so"))
    flags = ["-std=c++17", f"-I{root}/include", f"-L{root}/lib", "-ldnnl", f"-Wl,--disable-new-dtags,-rpath,{root}/lib"]
    library = ctypes.CDLL(str(native.build(Path(__file__).with_suffix(".cc"), flags)))
    library.bench_onednn_create.restype = ctypes.c_void_p
    library.bench_onednn_create.argtypes = [ctypes.c_int] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_float, ctypes.c_void_p]
    library.bench_onednn_run.argtypes = [ctypes.c_void_p]
    library.bench_onednn_destroy.argtypes = [ctypes.c_void_p]
    return library


def version() -> str:
    number = _library().bench_onednn_version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class _Plan:
    def __init__(self, cell, arrays):
        self.library, self.arrays = _library(), arrays
        pointers = (ctypes.c_void_p * len(arrays))(*[None if a is None else a.ctypes.data for a in arrays])
        dtype = {"f32": 0, "bf16": 1, "f16": 2}[cell.dtype]
        self.handle = self.library.bench_onednn_create(
            not cell.centred, cell.backward, dtype, cell.rows, cell.cols, cell.eps, pointers
        )
        if not self.handle:
            raise Skip(f"no implementation of {cell.dtype} on this instruction set")
        self.run, self.argument = self.library.bench_onednn_run, ctypes.c_void_p(self.handle)

    def __call__(self):
        self.run(self.argument)

    def __del__(self):
        if getattr(self, "handle", None):
            self.library.bench_onednn_destroy(self.handle)


def prepare(cell, data, threads, outputs_given) -> Prepared:
    if not hasattr(cell, "rows"):
        raise Skip("norms over channels are not measured")
    if not outputs_given:
        raise Skip("never allocates")
    if cell.op == "llama_rms_norm":
        raise Skip("has no such rounding")
    if cell.backward and cell.residual:
        raise Skip("its backward takes no second gradient")
    h = data.empty_like_x() if cell.residual else None
    y = data.empty_like_x()
    dx = data.empty_like_x() if cell.backward else None
    dweight, dbias = (np.zeros(cell.cols, np.float32) if cell.backward else None for _ in range(2))
    weight, bias = data.f32(data.weight), data.f32(data.bias)
    plan = _Plan(cell, [data.x, data.residual, h, weight, bias, y, data.dy, dx, dweight, dbias])

    def results():
        plan()
        found = {"y": y, "h": h, "dx": dx, "dweight": dweight, "dbias": dbias if cell.centred else None}
        return {name: array for name, array in found.items() if array is not None}

    return Prepared(plan, results, given=True)
