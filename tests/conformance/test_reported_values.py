"""Rows that users of other libraries reported as computed wrongly, with the right results, in every type and by every
door: arrays, torch, torch under autograd. A row is named for what it shows; its comment names the reports.
"""

import normkit
import normkit.torch
import numpy as np
import pytest
import reference
import torch
from arrays.kinds import to_numpy, to_torch
from reference import DTYPES

F = normkit.torch.functional
RAMP = np.array([-1.3416354, -0.4472118, 0.4472118, 1.3416354])
SIGNS = np.array([1.0, -1.0] * 32)
EVERY, WIDE = ("f32", "f64", "f16", "bf16"), ("f32", "f64")


def constant(value, size):
    return "layer_norm", 1e-5, np.full((2, size), value), np.zeros((2, size)), EVERY


# operation, eps, rows, the right results to seven digits, the types that hold the rows well enough to give them
ROWS = {
    # onnxruntime#28463: NaN by a negative one-pass variance
    "ramps far from 0": ("layer_norm", 1e-5, [[40000, 40001, 40002, 40003], [80000, 80001, 80002, 80003]],
                         [RAMP, RAMP], WIDE),
    # pytorch#81090: drifts as the integers grow
    "consecutive integers": ("layer_norm", 1e-5, [32 * r + np.arange(32) for r in (0, 1000, 50000, 199999)],
                             [(np.arange(32) - 15.5) / np.sqrt(85.25 + 1e-5)] * 4, WIDE),
    # onnxruntime#21935, flax#1491, jax#30426, keras#18795, caffe#3963, PaddlePaddle#16654: NaN or a residue
    "constant 1234": constant(1234.0, 256),
    "constant 1234, a feature map": constant(1234.0, 4096),
    "constant -11.000001907348633": constant(-11.000001907348633, 3),
    "constant 1000.1, 7": constant(1000.1, 7),
    "constant 1000.1, 10": constant(1000.1, 10),
    "constant 100, 9": constant(100.0, 9),
    "constant 1, a group": constant(1.0, 33 * 65),
    # pytorch#108072: x * rstd - mean * rstd leaves a residue
    "short constant rows": ("layer_norm", 1e-6, [[2, 2], [14, 14]], np.zeros((2, 2)), EVERY),
    # pytorch#94288, onnxruntime#25896: one element per statistic is 0, and no error
    "one element per statistic": ("layer_norm", 1e-5, [[3.7], [-0.2], [1e4]], np.zeros((3, 1)), EVERY),
    # pytorch#162489: squared deviations overflow
    "deviations of 1e30": ("layer_norm", 1e-5, [[1e30, -1e30, 2e30, -2e30]],
                           [[0.6324555, -0.6324555, 1.2649111, -1.2649111]], ("f32", "f64", "bf16")),
    # onnxruntime#32574: squares that leave the range
    "norm of 1e30": ("l2_norm", 0.0, [[1e30, -1e30]], [[0.70710678, -0.70710678]], ("f32", "f64", "bf16")),
    "norm of 1e-30": ("l2_norm", 0.0, [[1e-30, -1e-30]], [[0.70710678, -0.70710678]], ("f32", "f64", "bf16")),
    # pytorch#193006: infinite norm, result 0
    "one large element": ("l2_norm", 1e-12, [[1e20, 1, 1]], [[1, 1e-20, 1e-20]], ("f32", "f64", "bf16")),
    # openvino#35887: NaN
    "rows of zeros": ("l2_norm", 1e-12, [[5, 12], [0, 0], [-3, 4], [0, 0]],
                      [[0.3846154, 0.9230769], [0, 0], [-0.6, 0.8], [0, 0]], EVERY),
    "rows of zeros without eps": ("l2_norm", 0.0, [[5, 12], [0, 0]], [[0.3846154, 0.9230769], [0, 0]], EVERY),
    # onnxruntime#10228: no eps
    "constant without eps": ("layer_norm", 0.0, [[7, 7, 7], [0, 0, 0]], np.zeros((2, 3)), EVERY),
    # tensorflow#33027: eps dominates small data, by definition
    "small data and a large eps": ("layer_norm", 1e-3, [[-1e-3, 1e-3]], [[-0.03160698, 0.03160698]], EVERY),
    # pytorch#41527, pytorch#192017: an eps that is 0 in half precision
    "zeros, layer_norm": ("layer_norm", 1e-12, np.zeros((1, 10)), np.zeros((1, 10)), EVERY),
    "zeros, rms_norm": ("rms_norm", 1e-12, np.zeros((1, 10)), np.zeros((1, 10)), EVERY),
    "zeros, l2_norm": ("l2_norm", 1e-12, np.zeros((1, 3)), np.zeros((1, 3)), EVERY),
    # onnxruntime#29034: the sum of squares overflows half precision
    "squares beyond half precision": ("rms_norm", 1e-5, np.full((1, 512), 8000.0), np.ones((1, 512)), EVERY),
    # onnxruntime#31626, mlx#4228, onnxruntime#10079: so do the squared deviations
    "deviations beyond half precision": ("layer_norm", 1e-5, [256 * SIGNS, 512 * SIGNS, 795 * SIGNS], [SIGNS] * 3,
                                         EVERY),
    # minimind#301: squares that are 0 in half precision
    "squares below half precision": ("rms_norm", 1e-12, np.full((1, 64), 1e-4), np.full((1, 64), 0.99995), EVERY),
    # Liger-Kernel#518, unsloth#1867: padded lanes count in the variance
    "three elements": ("layer_norm", 1e-5, [[5, 6, 7]], [[-1.2247357, 0, 1.2247357]], EVERY),
    # tensorflow#58863, TIM-VX#589: eps lost
    "eps 1e-2": ("rms_norm", 1e-2, [[0.125, -0.125]], [[0.7808688, -0.7808688]], EVERY),
    "eps 1e-2, rows of 2": ("rms_norm", 1e-2, np.full((1, 8), 2.0), np.full((1, 8), 0.9987523), EVERY),
    # jax#442: divided by the variance
    "variance 4": ("layer_norm", 0.0, [[3, 7]], [[-1, 1]], EVERY),
}  # fmt: skip
CASES = [(name, dtype) for name, row in ROWS.items() for dtype in row[-1]]
DIGITS = {"f32": 1e-6, "f64": 1e-6, "f16": 2.0**-10, "bf16": 2.0**-7}


def by_arrays(op, x, eps):
    return getattr(normkit, op)(x, eps=eps)


def by_torch(op, x, eps):
    return to_numpy(getattr(F, op)(to_torch(x), x.shape[-1:], eps=eps))


def by_autograd(op, x, eps):
    return to_numpy(getattr(F, op)(to_torch(x.copy()).requires_grad_(), x.shape[-1:], eps=eps))


@pytest.mark.parametrize("door", [by_arrays, by_torch, by_autograd])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_result(name, dtype, door):
    op, eps, rows, right, _ = ROWS[name]
    x = np.array(rows, np.float64).astype(DTYPES[dtype])
    y = door(op, x, eps)
    assert y.dtype == x.dtype
    reference.forward(op, x, eps=eps)["y"].check(y)
    y, right = y.astype(np.float64), np.array(right)
    constant_rows = ~right.any(-1)
    assert not y[constant_rows].any()  # exactly 0
    np.testing.assert_allclose(y, right, rtol=DIGITS[dtype], atol=1e-16)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_gradient(name, dtype):
    """pytorch#2421, burn#1992 and others: NaN or 0 where the forward is out of the ordinary."""
    op, eps, rows, _, _ = ROWS[name]
    x = np.array(rows, np.float64).astype(DTYPES[dtype])
    dy = np.random.default_rng(0).standard_normal(x.shape).astype(x.dtype)
    t = to_torch(x.copy()).requires_grad_()
    getattr(F, op)(t, x.shape[-1:], eps=eps).backward(to_torch(dy))
    dx = to_numpy(t.grad)
    statistics = getattr(normkit, op)(x, eps=eps, return_stats=True)[1:]
    np.testing.assert_array_equal(dx, getattr(normkit, op + "_backward")(dy, x, None, *statistics, eps=eps)[0])
    want = reference.backward(op, dy, x, eps=eps)["dx"]
    assert np.isfinite(want.value).all()
    exact = want.bound(dx.dtype) == 0  # float64 rows without any deviation and eps
    assert not dx[exact].any()
    want.scale = np.where(exact, 1, want.scale)
    want.check(dx)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "l2_norm"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_nan(op, dtype):
    """onnxruntime#32574: a guard against 0 must not swallow NaN."""
    x = np.array([[1, np.nan, 2], [1, 2, 4]]).astype(DTYPES[dtype])
    for y in (by_arrays(op, x, 1e-12), by_torch(op, x, 1e-12)):
        assert np.isnan(y[0].astype("f4")).all() and np.isfinite(y[1].astype("f4")).all()


def test_compiled_equals_eager_on_nearly_constant_rows():
    """jax#30426, jax#37281: compiled and not, other results; NaN."""
    torch._dynamo.reset()
    x = torch.full((2, 3), -11.000001907348633) + torch.tensor([[0, 0, 0], [2e-6, 0, -2e-6]])
    for op in (F.layer_norm, F.rms_norm):
        eager = op(x, (3,), eps=1e-5)
        assert torch.equal(
            torch.compile(lambda t, op=op: op(t, (3,), eps=1e-5), fullgraph=True, backend="aot_eager")(x), eager
        )
        assert torch.isfinite(eager).all()
