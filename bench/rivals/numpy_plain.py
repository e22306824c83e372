"""NumPy, written as well as it can be: outputs and temporaries given, sums by einsum. One thread, f32, forward."""

from __future__ import annotations

import numpy as np

from . import Prepared, Skip

NAME, TORCH_DOOR = "NumPy", False


def absent() -> str | None:
    return None


def version() -> str:
    return np.__version__


def prepare(cell, data, threads, outputs_given) -> Prepared:
    if not hasattr(cell, "rows"):
        raise Skip("norms over channels are not measured")
    if threads > 1:
        raise Skip("these operations run on one thread")
    if cell.dtype != "f32":
        raise Skip("16-bit arithmetic is emulated element by element")
    if cell.backward or cell.op == "llama_rms_norm":
        raise Skip("forward only")
    x, residual, weight, bias = data.x, data.residual, data.weight, data.bias
    given = {"y": data.empty_like_x(), "h": data.empty_like_x() if cell.residual else None}

    def call(y, h):
        source = x if residual is None else np.add(x, residual, out=h)
        if cell.centred:
            y = np.subtract(source, source.mean(axis=1, keepdims=True), out=y)
            source = y
        square = np.einsum("ij,ij->i", source, source)[:, None]
        rstd = 1 / np.sqrt(square / np.float32(cell.cols) + np.float32(cell.eps))
        y = np.multiply(source, rstd, out=y)
        y *= weight
        if cell.centred:
            y += bias
        return y

    def run():
        return call(**given) if outputs_given else call(None, None)

    def results():
        call(**given)
        return {name: array for name, array in given.items() if array is not None}

    return Prepared(run, results, given=outputs_given)
