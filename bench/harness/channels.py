"""Cells of the norms over channels, their operands, and the check of their answers against f64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from .cells import ITEMSIZE
from .operands import F32_TOLERANCE, HALF_SUBNORMAL, HALF_ULP, Operands

GROUPS = 32


@dataclass(frozen=True)
class ChannelCell:
    """What Cell is for rows. batch_norm_eval normalizes by running statistics; group_norm has 32 groups."""

    op: str  # batch_norm, batch_norm_eval, instance_norm, group_norm
    direction: str  # forward, forward+backward
    dtype: str
    shape: tuple[int, int, int, int]  # samples, channels, height, width
    last: bool = False  # channels last in memory, as torch.channels_last

    residual, centred, eps, group = False, True, 1e-5, "channels"

    @property
    def backward(self) -> bool:
        return self.direction == "forward+backward"

    @property
    def channels(self) -> int:
        return self.shape[1]

    @property
    def shape_text(self) -> str:
        return "x".join(map(str, self.shape)) + ("cl" if self.last else "")

    @property
    def name(self) -> str:
        return f"{self.op}/{self.direction}/{self.dtype}/{self.shape_text}"

    @property
    def floor_bytes(self) -> int:
        """Every input read once and every output written once. batch_norm must read x twice where no cache holds it."""
        return ITEMSIZE[self.dtype] * (5 if self.backward else 2) * int(np.prod(self.shape))


SHAPES = [(32, 64, 56, 56), (32, 256, 14, 14), (32, 512, 7, 7), (1, 320, 64, 64)]
OPS = ("batch_norm", "batch_norm_eval", "instance_norm", "group_norm")


def full_grid() -> list[ChannelCell]:
    directions = ("forward", "forward+backward")
    cells = (ChannelCell(*fields) for fields in product(OPS, directions, ("f32", "bf16"), SHAPES, (False, True)))
    return [c for c in cells if not (c.backward and c.op == "batch_norm_eval")]


def quick_grid() -> list[ChannelCell]:
    few = (SHAPES[0], SHAPES[2])
    return [c for c in full_grid() if c.shape in few and not (c.op == "instance_norm" and c.last)]


class ChannelOperands(Operands):
    """Inputs that all rivals share, as Operands; x, y, dy and dx in the memory layout of the cell."""

    def __init__(self, cell: ChannelCell):
        self.cell = cell
        self.width = (cell.channels,)
        self.x = self._placed(self._normal(self._memory_shape(), 1, 0.5, 1.5))
        self.residual = self.dh = None
        self.weight = self._normal(self.width, 3, 1.0, 0.25)
        self.bias = self._normal(self.width, 4, 0.0, 0.5)
        self.dy = self._placed(self._normal(self._memory_shape(), 5, 0.1, 1.0)) if cell.backward else None
        index = np.arange(cell.channels, dtype=np.float32)  # values that bf16 holds
        self.running_mean, self.running_var = (index % 128 - 64) / 64, 0.5 + index % 16 / 8

    def _memory_shape(self) -> tuple[int, ...]:
        n, c, h, w = self.cell.shape
        return (n, h, w, c) if self.cell.last else (n, c, h, w)

    def _placed(self, memory: np.ndarray) -> np.ndarray:
        return memory.transpose(0, 3, 1, 2) if self.cell.last else memory

    def empty_like_x(self) -> np.ndarray:
        return self._placed(self.empty(self._memory_shape()))

    # ---- what the answers should be -----------------------------------------------------------------------------

    @cached_property
    def sampled_sets(self) -> list[tuple]:
        """Indices into [samples, channels] of some sets: what shares statistics."""
        n, c = self.cell.shape[:2]
        if self.cell.op.startswith("batch_norm"):
            return [(slice(None), slice(i, i + 1)) for i in np.unique(np.linspace(0, c - 1, 6).astype(int))]
        each = c // GROUPS if self.cell.op == "group_norm" else 1
        firsts = np.unique(np.linspace(0, c // each - 1, 6).astype(int)) * each
        return [(slice(i, i + 1), slice(f, f + each)) for i in {0, n - 1} for f in firsts]

    def expected(self, index: tuple) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{y, dx: (value, scale of the tolerance)} of one set."""
        channels = index[1]
        x = self.x[index].astype(np.float64)
        w, b = (p[channels].astype(np.float64).reshape(1, -1, 1, 1) for p in (self.weight, self.bias))
        mean, var = x.mean(), x.var()
        if self.cell.op == "batch_norm_eval":
            mean, var = (float(p[channels][0]) for p in (self.running_mean, self.running_var))
        rstd = 1 / np.sqrt(var + self.cell.eps)
        xhat = (x - mean) * rstd
        found = {"y": (xhat * w + b, np.abs(w) * (np.abs(xhat) + 1) + np.abs(b))}
        if self.dy is not None:
            g = self.dy[index].astype(np.float64) * w
            dx = rstd * (g - g.mean() - xhat * (g * xhat).mean())
            found["dx"] = dx, rstd * ((np.abs(xhat) + 1) * np.abs(g).mean() + np.abs(g))
        return found

    def parameter_sums(self, channel: int) -> dict[str, tuple[float, float]]:
        """{dweight, dbias: (value, scale)} of one channel."""
        x, dy = (a[:, channel].astype(np.float64) for a in (self.x, self.dy))
        if self.cell.op == "batch_norm":
            mean, var = x.mean(), x.var()
        elif self.cell.op == "instance_norm":
            mean, var = x.mean((1, 2), keepdims=True), x.var((1, 2), keepdims=True)
        else:
            each = self.cell.channels // GROUPS
            group = self.x[:, channel // each * each :][:, :each].astype(np.float64)
            mean, var = (f((1, 2, 3)).reshape(-1, 1, 1) for f in (group.mean, group.var))
        xhat = (x - mean) / np.sqrt(var + self.cell.eps)
        return {
            "dweight": ((dy * xhat).sum(), (np.abs(dy) * (np.abs(xhat) + 1)).sum()),
            "dbias": (dy.sum(), np.abs(dy).sum()),
        }


def check(data: ChannelOperands, results: dict[str, np.ndarray], strict: bool) -> float:
    """As operands.check: the largest error as a share of what is allowed."""
    cell = data.cell
    unit, tiny = HALF_ULP[cell.dtype], HALF_SUBNORMAL[cell.dtype]
    loose = F32_TOLERANCE if strict else max(4 * F32_TOLERANCE, 8 * unit)
    shares = []

    def compare(got, want, scale):
        with np.errstate(invalid="ignore"):
            share = np.abs(np.float64(got) - want) / (unit * np.abs(want) + loose * scale + tiny)
        shares.append(np.inf if np.isnan(share).any() else np.max(share))

    for index in data.sampled_sets:
        for name, (want, scale) in data.expected(index).items():
            if name in results:
                compare(results[name][index], want, scale)
    for channel in (0, cell.channels // 2, cell.channels - 1):
        if "dweight" in results:
            for name, (want, scale) in data.parameter_sums(channel).items():
                compare(results[name][channel], want, scale)
    return float(max(shares))
