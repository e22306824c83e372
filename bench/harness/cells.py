"""The grid: one Cell is one line of the table (for each number of threads)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

ITEMSIZE = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class Cell:
    op: str  # layer_norm, rms_norm, llama_rms_norm (xhat is rounded to x's type before the weight)
    direction: str  # forward, forward+backward
    dtype: str  # f32, bf16, f16: of x, weight, bias, y and all the gradients
    rows: int
    cols: int
    residual: bool = False  # h = x + residual is formed, normalized and kept; backward: the gradient of h joins dx
    group: str = ""  # decode, prefill, qk

    @property
    def centred(self) -> bool:
        return self.op == "layer_norm"

    @property
    def backward(self) -> bool:
        return self.direction == "forward+backward"

    @property
    def eps(self) -> float:
        return 1e-5

    @property
    def shape_text(self) -> str:
        return f"{self.rows}x{self.cols}"

    @property
    def name(self) -> str:
        op = self.op + ("+residual" if self.residual else "")
        return f"{op}/{self.direction}/{self.dtype}/{self.shape_text}"

    @property
    def floor_bytes(self) -> int:
        """What must move: every input read once and every output written once, in each direction."""
        arrays = 4 if self.residual else 2  # x (+ residual) -> y (+ h)
        parameters = 2 if self.centred else 1
        if self.backward:
            arrays += 4 if self.residual else 3  # dy, h (+ dh) -> dx
            parameters *= 2
            parameters += 1
        return ITEMSIZE[self.dtype] * (arrays * self.rows * self.cols + parameters * self.cols)


# Out of cache means more than the last-level cache (32 MB on the development machine) for x and y together.
# Dropped from the product of shapes that the design names, because they repeat a cell that is here:
#   rows 2, 8 in decode, 1024, 4096 and 16384 in prefill   between their neighbours, or the same per byte
#   2048 rows of 768, 512 rows of 8192                     cache-resident like 512x4096, out of cache like 2048x4096
#   f16 where the width is not 4096 or 128                 the same loops as bf16 with another conversion
DECODE = [(rows, cols) for rows in (1, 4, 16) for cols in (2048, 4096, 8192)]
PREFILL = [(512, 768), (512, 2048), (512, 4096), (2048, 1024), (2048, 4096), (2048, 8192), (8192, 768), (8192, 2048)]
QK = [(2048, 128), (65536, 64), (65536, 128), (65536, 256)]
TRAINING = [(512, 768), (2048, 1024), (2048, 4096), (8192, 2048), (65536, 128)]
FUSED = [(1, 4096), (512, 2048), (2048, 4096), (8192, 768)]


def _group(rows: int, cols: int) -> str:
    return "decode" if rows <= 16 else "qk" if cols <= 256 else "prefill"


def _cells(ops, directions, dtypes, shapes, residual=False) -> list[Cell]:
    return [
        Cell(op, direction, dtype, rows, cols, residual, _group(rows, cols))
        for op, direction, dtype, (rows, cols) in product(ops, directions, dtypes, shapes)
    ]


def full_grid() -> list[Cell]:
    both = ("layer_norm", "rms_norm")
    f16_shapes = [s for s in DECODE + PREFILL + QK if s[1] in (4096, 128)]
    return [
        *_cells(both, ["forward"], ["f32", "bf16"], DECODE + PREFILL + QK),
        *_cells(both, ["forward"], ["f16"], f16_shapes),
        *_cells(["llama_rms_norm"], ["forward"], ["bf16", "f16"], [(1, 4096), (512, 2048), (2048, 4096)]),
        *_cells(both, ["forward"], ["f32", "bf16"], FUSED, residual=True),
        *_cells(both, ["forward+backward"], ["f32", "bf16"], TRAINING),
        *_cells(both, ["forward+backward"], ["f16"], [(2048, 4096)]),
        *_cells(both, ["forward+backward"], ["f32", "bf16"], [(2048, 4096)], residual=True),
    ]


def quick_grid() -> list[Cell]:
    both = ("layer_norm", "rms_norm")
    return [
        *_cells(both, ["forward"], ["f32", "bf16"], [(1, 4096), (512, 2048), (2048, 4096), (65536, 128)]),
        *_cells(both, ["forward"], ["f16"], [(2048, 4096)]),
        *_cells(["llama_rms_norm"], ["forward"], ["bf16"], [(2048, 4096)]),
        *_cells(both, ["forward"], ["f32", "bf16"], [(2048, 4096)], residual=True),
        *_cells(both, ["forward+backward"], ["f32", "bf16"], [(2048, 4096)]),
    ]


def fresh_grid() -> list[Cell]:
    """Cells that are also measured with fresh outputs: nobody is given memory, page faults count for all."""
    both = ("layer_norm", "rms_norm")
    return _cells(both, ["forward"], ["f32", "bf16"], [(1, 4096), (512, 2048), (2048, 4096)])
