"""The operands of a cell and the check of every answer against f64."""

from __future__ import annotations

from functools import cached_property

import ml_dtypes
import numpy as np

from .cells import Cell

NUMPY_DTYPE = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
HALF_ULP = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
HALF_SUBNORMAL = {"f32": 2.0**-150, "bf16": 2.0**-134, "f16": 2.0**-25}
F32_TOLERANCE = 16 * 2.0**-24  # of docs/numerics.md; everything is computed in f32


class Operands:
    """Inputs that all rivals share: the same memory as NumPy arrays (attributes) and as torch tensors (torch())."""

    def __init__(self, cell: Cell):
        self.cell = cell
        shape, self.width = (cell.rows, cell.cols), (cell.cols,)
        self.x = self._normal(shape, 1, 0.5, 1.5)
        self.residual = self._normal(shape, 2, -0.25, 1.0) if cell.residual else None
        self.weight = self._normal(self.width, 3, 1.0, 0.25)
        self.bias = self._normal(self.width, 4, 0.0, 0.5) if cell.centred else None
        self.dy = self._normal(shape, 5, 0.1, 1.0) if cell.backward else None
        self.dh = self._normal(shape, 6, 0.0, 1.0) if cell.backward and cell.residual else None

    def _normal(self, shape, seed, mean, deviation) -> np.ndarray:
        # A table of prime length repeated: rows differ and large operands are filled quickly.
        table = np.random.default_rng(seed).normal(mean, deviation, 100003).astype(NUMPY_DTYPE[self.cell.dtype])
        out = self.empty(shape)
        flat = out.reshape(-1)
        for start in range(0, flat.size, table.size):
            flat[start : start + table.size] = table[: flat.size - start]
        return out

    def empty(self, shape, dtype: str | None = None) -> np.ndarray:
        """A touched array that starts on a cache line."""
        kind = NUMPY_DTYPE[dtype or self.cell.dtype]
        count = int(np.prod(shape))
        raw = np.zeros(count * kind.itemsize + 64, np.uint8)
        raw.fill(0)  # np.zeros may map pages only when they are first written
        start = -raw.ctypes.data % 64
        return raw[start : start + count * kind.itemsize].view(kind).reshape(shape)

    def empty_like_x(self) -> np.ndarray:
        return self.empty(self.x.shape)

    def torch(self, array: np.ndarray | None):
        """The same memory as a torch tensor."""
        if array is None:
            return None
        import torch

        if array.dtype == NUMPY_DTYPE["bf16"]:
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        return torch.from_numpy(array)

    def f32(self, array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else array.astype(np.float32)

    # ---- what the answers should be -----------------------------------------------------------------------------

    def h(self, rows) -> np.ndarray:
        """x, or x + residual rounded to their type, of some rows, in f64."""
        x = self.x[rows].astype(np.float64)
        if self.residual is None:
            return x
        total = self.x[rows].astype(np.float32) + self.residual[rows].astype(np.float32)
        return total.astype(self.x.dtype).astype(np.float64)

    def standardized(self, rows) -> tuple[np.ndarray, np.ndarray]:
        """(xhat, rstd) of some rows, in f64."""
        h = self.h(rows)
        if self.cell.centred:
            h = h - h.mean(axis=1, keepdims=True)
        rstd = 1 / np.sqrt((h * h).mean(axis=1, keepdims=True) + self.cell.eps)
        return h * rstd, rstd

    @cached_property
    def sampled_rows(self) -> np.ndarray:
        return np.unique(np.linspace(0, self.cell.rows - 1, min(self.cell.rows, 96)).astype(np.int64))

    @cached_property
    def sampled_columns(self) -> np.ndarray:
        return np.unique(np.linspace(0, self.cell.cols - 1, min(self.cell.cols, 64)).astype(np.int64))

    @cached_property
    def parameter_gradients(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Name -> (gradient, sum of absolute terms) in the sampled columns, over all the rows."""
        columns = self.sampled_columns
        sums = np.zeros((4, columns.size))
        for start in range(0, self.cell.rows, 1024):
            rows = slice(start, start + 1024)
            xhat = self.standardized(rows)[0][:, columns]
            dy = self.dy[rows][:, columns].astype(np.float64)
            terms = (dy * xhat, np.abs(dy) * (np.abs(xhat) + 1), dy, np.abs(dy))
            sums += np.stack([t.sum(axis=0) for t in terms])
        return {"dweight": (sums[0], sums[1]), "dbias": (sums[2], sums[3])}


def check(data: Operands, results: dict[str, np.ndarray], strict: bool) -> float:
    """The largest error of some answers, as a share of what is allowed; over 1 is wrong.

    strict: the tolerance of docs/numerics.md, for ours. Rivals may sum in another order and round intermediate results
    to their own type: four times 16 * 2^-24, or eight half ulps of it. Looked for: y, h, dx, dweight, dbias.
    """
    cell = data.cell
    unit, tiny = HALF_ULP[cell.dtype], HALF_SUBNORMAL[cell.dtype]
    # Llama's form rounds xhat first: another half ulp, times the weight; ours is compared bit by bit in the tests.
    loose = F32_TOLERANCE if strict else max(4 * F32_TOLERANCE, 8 * unit)
    if strict and cell.op == "llama_rms_norm":
        loose += 2 * unit
    rows = data.sampled_rows
    xhat, rstd = data.standardized(rows)
    weight = data.weight.astype(np.float64)
    bias = data.bias.astype(np.float64) if cell.centred else np.zeros_like(weight)
    shares = []

    def compare(name, want, scale, relative=unit):
        got = results[name][rows if results[name].ndim == 2 else data.sampled_columns].astype(np.float64)
        with np.errstate(invalid="ignore"):
            share = np.abs(got - want) / (relative * np.abs(want) + loose * scale + tiny)
        shares.append(np.inf if np.isnan(share).any() else share.max())

    if "y" in results:
        compare("y", xhat * weight + bias, np.abs(weight) * (np.abs(xhat) + 1) + np.abs(bias))
    if "h" in results:
        h = data.h(rows)
        compare("h", h, np.zeros_like(h) if strict else np.abs(h))
    if "dx" in results:
        g = data.dy[rows].astype(np.float64) * weight
        mean_g = g.mean(axis=1, keepdims=True) if cell.centred else 0
        want = rstd * (g - mean_g - xhat * (g * xhat).mean(axis=1, keepdims=True))
        scale = rstd * ((np.abs(xhat) + 1) * np.abs(g).mean(axis=1, keepdims=True) + np.abs(g))
        if data.dh is not None:
            dh = data.dh[rows].astype(np.float64)
            want, scale = want + dh, scale + np.abs(dh)
        compare("dx", want, scale)
    for name in ("dweight", "dbias"):
        if name in results:
            compare(name, *data.parameter_gradients[name])
    return float(max(shares))
