"""Rows and eps at both ends of the range of their type, against a long double that holds every value."""

from __future__ import annotations

import normkit
import numpy as np
import pytest

Wide = np.longdouble
pytestmark = pytest.mark.skipif(np.finfo(Wide).maxexp < 16000, reason="needs a long double of a wider range")

EPS = (0.0, 2.0**-1074, 2.0**-1050, 1e-200, 2.0**-140, 1e-5, 1e200, 1e308)
MODES = [("l2_norm", "clamp")] + [(op, m) for op in ("layer_norm", "rms_norm") for m in ("inside", "outside", "clamp")]


def reference(op, mode, x, eps, dy):
    """xhat, dx, the size of the largest term of dx, and rstd, by the formulas of docs/numerics.md."""
    x, dy = x.astype(Wide), dy.astype(Wide)
    n = 1 if op == "l2_norm" else x.size
    d = x - x.mean() if op == "layer_norm" else x
    q = (d * d).sum() / n
    root = np.sqrt(q)
    eps = Wide(eps)
    divisor = {"inside": np.sqrt(q + eps), "outside": root + eps, "clamp": np.maximum(root, eps)}[mode]
    rstd = Wide(0) if divisor == 0 else 1 / divisor
    slope = Wide(1)
    if mode == "outside":
        slope = Wide(0) if root == 0 else divisor / root
    elif mode == "clamp":
        slope = Wide(root >= eps)
    xhat = d * rstd
    terms = [dy, -(dy.mean() if op == "layer_norm" else 0 * dy), -slope * xhat * ((dy * xhat).sum() / n)]
    return xhat, rstd * sum(terms), rstd * sum(abs(t) for t in terms).max(), rstd


def rows(dtype):
    info = np.finfo(dtype)
    smallest, largest = float(info.smallest_subnormal), float(info.max)
    rng = np.random.default_rng(3)
    for size in (0.0, smallest, 37 * smallest, float(info.tiny), 1e-5, 1.0, 1.1 * largest**0.5, largest / 4, largest):
        for n in (1, 2, 7, 64, 300):
            yield np.full((1, n), size).astype(dtype)
            yield (rng.uniform(-1, 1, (1, n)) * size).astype(dtype)
            yield (np.eye(1, n, n // 2) * size).astype(dtype)


@pytest.mark.parametrize(("op", "mode"), MODES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_extreme_rows_and_eps(dtype, op, mode):
    info = np.finfo(dtype)
    unit, step = Wide(info.eps), Wide(info.smallest_subnormal)
    options = {} if op == "l2_norm" else {"eps_mode": mode}
    rng = np.random.default_rng(4)
    for x in rows(dtype):
        dy = rng.standard_normal(x.shape).astype(dtype)
        for eps in EPS:
            xhat, dx, term, rstd = reference(op, mode, x, eps, dy)
            y = getattr(normkit, op)(x, eps=eps, **options)
            # A mean of subnormal f64 elements is an f64, too: half a step of it, times rstd, is lost.
            lost = 2 * step * max(Wide(1), rstd if dtype == "float64" else Wide(0))
            assert (abs(y - xhat) <= 20 * unit * abs(xhat).max() + lost).all(), (x, eps)
            if term > info.max / 2:
                continue  # may overflow on the way
            got = getattr(normkit, op + "_backward")(dy, x, eps=eps, output_mask=(True, False, False), **options)[0]
            assert (abs(got - dx) <= 32 * x.size**0.5 * unit * term + 4 * step).all(), (x, eps)
