"""The f64 reference of the row norms and the one tolerance formula (docs/numerics.md), shared by the Python tests.

Inputs are NumPy arrays of float32, float64, float16 or ml_dtypes.bfloat16, already rounded. Everything is computed in
float64 (in long double for float64 inputs) by the plain two-pass formulas. Each element comes with its bound.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

bfloat16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {"f32": np.dtype("f4"), "f64": np.dtype("f8"), "f16": np.dtype("f2"), "bf16": bfloat16}

# Half an ulp of the type, relative, and half its smallest subnormal.
_HALF_ULP = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_HALF_TINY = {"float32": 2.0**-150, "float64": 0.0, "float16": 2.0**-25, "bfloat16": 2.0**-134}  # f64: no double
_LARGEST = {"float32": 3.4028234e38, "float64": 1.797e308, "float16": 65504.0, "bfloat16": 3.3895e38}


@dataclass
class Expected:
    """A value and how far from it a result of type `dtype` may be."""

    value: np.ndarray
    scale: np.ndarray  # the scale of the arithmetic error: 16 units of the compute type times this
    unit: float
    rounded_at: np.ndarray | float = 0.0  # extra bound where the definition itself rounds on the way

    def bound(self, dtype) -> np.ndarray:
        name = np.dtype(dtype).name
        rounding = np.longdouble(_HALF_ULP[name]) * np.abs(self.value) + np.longdouble(_HALF_TINY[name])
        return rounding + 16 * np.longdouble(self.unit) * self.scale + self.rounded_at

    def check(self, actual, what: str = "result") -> None:
        """Asserts that every element of `actual` is within its bound, and that NaN meets NaN."""
        actual = np.asarray(actual)
        assert actual.shape == self.value.shape, f"{what} has shape {actual.shape}, expected {self.value.shape}"
        wide = actual.astype(self.value.dtype)
        finite = np.isfinite(self.value)
        assert np.array_equal(np.isnan(wide), np.isnan(self.value)), f"{what}: NaN in other places"
        error = np.abs(np.where(finite, wide - np.where(finite, self.value, 0), 0))
        worst = np.where(finite, error / np.where(finite, self.bound(actual.dtype), 1), 0)
        largest = _LARGEST[actual.dtype.name]  # a value beyond the type's range becomes infinite
        excused = (np.abs(self.value) > largest) & (np.abs(wide) >= largest) & (np.sign(wide) == np.sign(self.value))
        at = np.unravel_index(np.argmax(np.where(excused, 0, worst)), worst.shape) if worst.size else ()
        assert not worst.size or excused[at] or worst[at] <= 1, (
            f"{what}{tuple(map(int, at))} is {wide[at]}, expected {self.value[at]}: {worst[at]:.3g} times the bound"
        )


@dataclass
class _Row:
    """What forward and backward share: h and its statistics, rows last."""

    h: np.ndarray
    mean: np.ndarray
    rstd: np.ndarray
    xhat: np.ndarray
    coupling: np.ndarray  # d(rstd) enters dx as coupling * xhat * mean(g * xhat)
    size: np.ndarray  # |xhat| in units of a row of deviation 1
    unit: float
    wide: np.dtype


def wider(x, residual) -> np.dtype:
    """The type that h = x + residual is rounded to by default."""
    return residual.dtype if residual is not None and residual.dtype.itemsize > x.dtype.itemsize else x.dtype


def add_residual(x, residual, h_dtype, stats: str):
    """h as it is stored, and h as the statistics see it. The sum of two values is rounded to float32 (float64)."""
    compute = np.dtype("f8") if x.dtype == np.dtype("f8") else np.dtype("f4")
    h = x.astype(compute) if residual is None else x.astype(compute) + residual.astype(compute)
    stored = h.astype(h_dtype)
    return stored, (stored if stats == "rounded" and residual is not None else h)


def _rows(op: str, x, residual, eps, axis, eps_mode, residual_stats, h_dtype) -> _Row:
    wide = np.dtype(np.longdouble if x.dtype == np.dtype("f8") else "f8")
    _, h = add_residual(x, residual, h_dtype or wider(x, residual), residual_stats)
    axis %= x.ndim
    n = int(np.prod(x.shape[axis:]))
    with np.errstate(all="ignore"):
        h = h.astype(wide).reshape(*x.shape[:axis], n)
        mean = h.mean(-1, keepdims=True) if op == "layer_norm" else np.zeros_like(h[..., :1])
        centred = h - mean
        q = (centred * centred).sum(-1, keepdims=True)
        if op != "l2_norm":
            q = q / n
        mode = "clamp" if op == "l2_norm" else eps_mode
        root, eps = np.sqrt(q), wide.type(eps)
        denominator = {"inside": np.sqrt(q + eps), "outside": root + eps, "clamp": np.maximum(root, eps)}[mode]
        rstd = np.where(denominator == 0, 0, 1 / denominator)
        inner = {"inside": 1, "outside": np.where(root == 0, 0, denominator / root), "clamp": (root >= eps)}[mode]
    xhat = centred * rstd
    return _Row(
        h, mean, rstd, xhat, inner + np.zeros_like(q), np.abs(xhat) * (np.sqrt(n) if op == "l2_norm" else 1),
        2.0**-53 if x.dtype == np.dtype("f8") else 2.0**-24, wide,
    )  # fmt: skip


def _parameter(value, default, rows: _Row, offset=0.0):
    """A weight or bias as a row; one element serves all."""
    if value is None:
        return np.full_like(rows.xhat[:1] if rows.xhat.ndim > 1 else rows.xhat, default)
    return value.astype(rows.wide).reshape(-1) + rows.wide.type(offset)


def _ulp(values, dtype):
    """The distance of neighbours of `dtype` at each value."""
    exponent = np.frexp(values)[1] - 1
    return np.maximum(np.ldexp(2 * _HALF_ULP[dtype.name], exponent), 2 * _HALF_TINY[dtype.name])


def forward(
    op: str, x, weight=None, bias=None, *, residual=None, eps=None, axis=-1, weight_offset=0.0, rounding="once",
    eps_mode="inside", residual_stats="rounded", h_dtype=None,
) -> dict:  # fmt: skip
    """y, mean and rstd as Expected, and the exact h (or None). op: "layer_norm", "rms_norm" or "l2_norm"."""
    eps = eps if eps is not None else (1e-12 if op == "l2_norm" else 1e-5)
    rows = _rows(op, x, residual, eps, axis, eps_mode, residual_stats, h_dtype)
    w, b = _parameter(weight, 1, rows, weight_offset), _parameter(bias, 0, rows)
    norm = np.sqrt(rows.xhat.shape[-1]) if op == "l2_norm" else 1.0
    xhat, rounded_at = rows.xhat, 0.0
    with np.errstate(all="ignore"):
        if rounding == "before_weight" and x.dtype.itemsize < 4:
            xhat = rows.xhat.astype(x.dtype).astype(rows.wide)
            # One ulp of x's type where the exact xhat lies within the arithmetic error of a rounding boundary.
            ulp = _ulp(rows.xhat, x.dtype)
            near = np.abs(rows.xhat - xhat) >= ulp / 2 - 16 * rows.unit * (rows.size + 1) / norm
            rounded_at = np.where(near, ulp * np.abs(w), 0)
        y = xhat * w + b
        scale = np.abs(w) * (rows.size + 1) / norm + np.abs(b)
    sigma = np.where(rows.rstd == 0, 0, 1 / np.where(rows.rstd == 0, 1, rows.rstd)) * norm
    batch = x.shape[: axis % x.ndim]
    rounded_at = np.broadcast_to(rounded_at, y.shape).reshape(x.shape)
    stored, _ = add_residual(x, residual, h_dtype or wider(x, residual), residual_stats)
    return {
        "y": Expected(y.reshape(x.shape), np.broadcast_to(scale, y.shape).reshape(x.shape), rows.unit, rounded_at),
        "h": stored if residual is not None else None,
        "mean": Expected(rows.mean.reshape(batch), sigma.reshape(batch), rows.unit),
        "rstd": Expected(rows.rstd.reshape(batch), np.abs(rows.rstd.reshape(batch)), rows.unit),
    }


def backward(
    op: str, dy, x, weight=None, *, residual=None, dresidual_out=None, eps=None, axis=-1, weight_offset=0.0,
    rounding="once", eps_mode="inside", residual_stats="rounded",
) -> dict:  # fmt: skip
    """Returns dx, dweight and dbias as Expected; the latter two have the normalized shape."""
    eps = eps if eps is not None else (1e-12 if op == "l2_norm" else 1e-5)
    rows = _rows(op, x, residual, eps, axis, eps_mode, residual_stats, None)
    shape, n = rows.xhat.shape, rows.xhat.shape[-1]
    d = dy.astype(rows.wide).reshape(shape)
    g = d * _parameter(weight, 1, rows, weight_offset)
    norm = np.sqrt(n) if op == "l2_norm" else 1.0
    unit_xhat = rows.xhat * norm  # of mean square 1 (l2_norm sums where the others take means)
    centre = g.mean(-1, keepdims=True) if op == "layer_norm" else 0
    dx = rows.rstd * (g - centre - rows.coupling * unit_xhat * (g * unit_xhat).mean(-1, keepdims=True))
    mean_g = np.abs(g).mean(-1, keepdims=True)
    scale = rows.rstd * ((rows.size + 1) * mean_g * np.maximum(1, rows.coupling) + np.abs(g))
    if dresidual_out is not None:
        arriving = dresidual_out.astype(rows.wide).reshape(shape)
        dx, scale = dx + arriving, scale + np.abs(arriving)
    xhat = rows.xhat.astype(x.dtype).astype(rows.wide) if rounding == "before_weight" else rows.xhat
    slack = _ulp(rows.xhat, x.dtype) if rounding == "before_weight" and x.dtype.itemsize < 4 else 0.0
    rows_of = tuple(range(len(shape) - 1))
    last = x.shape[axis % x.ndim :]

    def summed(values):
        return np.broadcast_to(values, shape).sum(rows_of).reshape(last)

    return {
        "dx": Expected(dx.reshape(x.shape), scale.reshape(x.shape), rows.unit),
        "dweight": Expected(
            summed(d * xhat), summed(np.abs(d) * (rows.size + 1) / norm), rows.unit, summed(np.abs(d) * slack)
        ),
        "dbias": Expected(summed(d), summed(np.abs(d)), rows.unit),
    }
