"""Forward and backward against the f64 reference, element by element, over types and options."""

import normkit
import numpy as np
import pytest
import reference
from arrays.kinds import OPS, random, same_bits
from reference import DTYPES

SIZES = [1, 2, 63, 64, 65, 193, 4095, 4096, 4097]
FORMS = {
    "plain": {},
    "weight offset": {"weight_offset": 1.0},
    "before_weight": {"rounding": "before_weight"},
    "eps outside": {"eps_mode": "outside", "eps": 1e-3},
    "eps clamp": {"eps_mode": "clamp", "eps": 0.9},
    "large eps": {"eps": 3.0},
    "residual": {"residual": True},
    "residual, unrounded": {"residual": True, "residual_stats": "unrounded"},
}


def forms(op):
    return {k: v for k, v in FORMS.items() if not (op == "l2_norm" and "eps_mode" in v)}


CASES = [(op, name, form) for op in OPS for name in DTYPES for form in forms(op)]


def inputs(name, form, size, rows=5, weight="same"):
    rng = np.random.default_rng(size)
    dtype = DTYPES[name]
    parameter = np.dtype("f4") if weight == "f32" else dtype
    x = random(rng, (rows, size), dtype, 3.0, 0.5)
    w, b = random(rng, size, parameter), random(rng, size, parameter)
    options = dict(FORMS[form])
    if options.get("residual"):
        options["residual"] = random(rng, x.shape, dtype)
    return x, w, b, options, rng


def check_forward(op, x, w, b, options, got):
    want = reference.forward(op, x, w, b, **options)
    want["y"].check(got[0], "y")
    if "residual" in options:
        assert same_bits(got[1], want["h"])
    if op == "layer_norm":
        want["mean"].check(got[-2], "mean")
    want["rstd"].check(got[-1], "rstd")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("op", "name", "form"), CASES)
def test_forward(op, name, form, size):
    x, w, b, options, _ = inputs(name, form, size)
    got = getattr(normkit, op)(x, w, b, return_stats=True, **options)
    assert got[0].dtype == x.dtype
    assert len(got) == 1 + ("residual" in options) + (1 + (op == "layer_norm"))
    check_forward(op, x, w, b, options, got)


@pytest.mark.parametrize("size", [1, 65, 193, 4097])
@pytest.mark.parametrize(("op", "name", "form"), CASES)
def test_backward(op, name, form, size):
    x, w, _, options, rng = inputs(name, form, size, rows=70)  # more than one block of rows
    dy = random(rng, x.shape, x.dtype)
    if "residual" in options:
        options["dresidual_out"] = random(rng, x.shape, x.dtype)
    got = getattr(normkit, op + "_backward")(dy, x, w, **options)
    want = reference.backward(op, dy, x, w, **options)
    for value, key in zip(got, ("dx", "dweight", "dbias"), strict=True):
        assert value.dtype == x.dtype
        want[key].check(value, key)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_backward_takes_the_statistics_of_the_forward(op, name):
    x, w, _, _, rng = inputs(name, "plain", 193)
    dy = random(rng, x.shape, x.dtype)
    stats = getattr(normkit, op)(x, w, return_stats=True)[1:]
    saved = dict(zip(("mean", "rstd") if op == "layer_norm" else ("rstd",), stats, strict=True))
    call = getattr(normkit, op + "_backward")
    want = reference.backward(op, dy, x, w)
    for a, b, key in zip(call(dy, x, w, **saved), call(dy, x, w), want, strict=True):
        if op == "layer_norm" and name == "f64":  # one double holds a little less than the engine's mean
            want[key].check(a, key)
        else:
            assert same_bits(a, b)


@pytest.mark.parametrize("name", ["bf16", "f16"])
@pytest.mark.parametrize("op", OPS)
def test_16_bit_rows_with_float32_parameters_and_outputs(op, name):
    x, w, b, _, rng = inputs(name, "plain", 193, weight="f32")
    r = random(rng, x.shape, np.float32)
    y, h = getattr(normkit, op)(x, w, b, residual=r, out=np.empty(x.shape, np.float32))
    assert y.dtype == h.dtype == np.float32
    want = reference.forward(op, x, w, b, residual=r)
    want["y"].check(y, "y")
    assert same_bits(h, want["h"])
    dy = random(rng, x.shape, np.float32)
    dx, dweight, dbias = getattr(normkit, op + "_backward")(dy, x, w)
    assert dx.dtype == x.dtype
    assert dweight.dtype == dbias.dtype == np.float32
    want = reference.backward(op, dy, x, w)
    want["dx"].check(dx, "dx")
    want["dweight"].check(dweight, "dweight")
    want["dbias"].check(dbias, "dbias")


def test_residual_out_decides_the_type_that_h_is_rounded_to():
    x, _, _, options, _ = inputs("bf16", "residual", 193)
    wide = np.empty(x.shape, np.float32)
    y, h = normkit.rms_norm(x, residual=options["residual"], residual_out=wide)
    assert h is wide
    want = reference.forward("rms_norm", x, residual=options["residual"], h_dtype=np.dtype("f4"))
    assert same_bits(h, want["h"])
    want["y"].check(y)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_the_fused_residual_add_has_the_bits_of_two_calls(op, name):
    x, w, b, options, _ = inputs(name, "residual", 193)
    y, h = getattr(normkit, op)(x, w, b, residual=options["residual"])
    assert same_bits(y, getattr(normkit, op)(h, w, b))


@pytest.mark.parametrize("op", OPS)
def test_defaults_of_absent_parameters(op):
    x, w, b, _, rng = inputs("f32", "plain", 65)
    call = getattr(normkit, op)
    one, zero = np.ones_like(w), np.zeros_like(b)
    assert same_bits(call(x), call(x, one))
    assert same_bits(call(x, w), call(x, w, zero) + 0)
    reference.forward(op, x, None, b)["y"].check(call(x, None, b))
    dy = random(rng, x.shape, x.dtype)
    dx, dweight, dbias = getattr(normkit, op + "_backward")(dy, x)
    want = reference.backward(op, dy, x)
    want["dx"].check(dx)
    want["dweight"].check(dweight)
    want["dbias"].check(dbias)
    assert dweight.dtype == dbias.dtype == np.float32


@pytest.mark.parametrize(("axis", "batch"), [(-1, (2, 3)), (2, (2, 3)), (-2, (2,)), (1, (2,)), (0, ()), (-3, ())])
@pytest.mark.parametrize("op", OPS)
def test_axis(op, axis, batch):
    rng = np.random.default_rng(1)
    x = random(rng, (2, 3, 5), np.float32)
    last = x.shape[len(batch) :]
    w, b = random(rng, last, np.float32), random(rng, last, np.float32)
    got = getattr(normkit, op)(x, w, b, axis=axis, return_stats=True)
    assert got[-1].shape == batch
    assert got[-1].dtype == np.float64
    check_forward(op, x, w, b, {"axis": axis}, got)
    dy = random(rng, x.shape, np.float32)
    want = reference.backward(op, dy, x, w, axis=axis)
    for value, key in zip(getattr(normkit, op + "_backward")(dy, x, w, axis=axis), want, strict=True):
        want[key].check(value, key)


@pytest.mark.parametrize("op", OPS)
def test_one_weight_serves_all(op):
    rng = np.random.default_rng(2)
    x, dy = random(rng, (6, 33), np.float32), random(rng, (6, 33), np.float32)
    w = np.float32([1.5])
    reference.forward(op, x, w, w)["y"].check(getattr(normkit, op)(x, w, w))
    _, dweight, dbias = getattr(normkit, op + "_backward")(dy, x, w)
    assert dweight.shape == dbias.shape == (1,)
    want = reference.backward(op, dy, x, w)
    total = sum(want["dweight"].bound("f4").ravel()) + 2.0**-20
    assert abs(float(dweight[0]) - float(want["dweight"].value.sum())) <= total
    assert abs(float(dbias[0]) - float(want["dbias"].value.sum())) <= sum(want["dbias"].bound("f4").ravel()) + 2.0**-20


def test_scale_norm_is_l2_norm_with_one_weight():
    x = np.float32([[3, 4], [0, 0]])
    assert np.array_equal(normkit.l2_norm(x, np.float32([10])), np.float32([[6, 8], [0, 0]]))
