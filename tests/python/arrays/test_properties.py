"""Hypothesis: any shape, values, type and options against the reference, and the promises of the contract."""

import normkit
import numpy as np
import reference
from arrays.kinds import OPS, same_bits
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from reference import DTYPES

ops = st.sampled_from(OPS)
types = st.sampled_from([*DTYPES])
shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=30)
# Scales from where squares are subnormal to where they overflow in f32; f16 reaches less far.
scales = st.sampled_from([1e-30, 1e-20, 1e-3, 1.0, 1e3, 1e20, 1e30])
shifts = st.sampled_from([0.0, 1.0, -1000.0])
seeds = st.integers(0, 2**32 - 1)


def rows(seed, shape, name, scale, shift):
    rng = np.random.default_rng(seed)
    if name == "f16":
        scale = min(max(scale, 1e-3), 10.0)
        shift = max(shift, -100.0)
    return ((rng.standard_normal(shape) + shift) * scale).astype(DTYPES[name]), rng


@given(ops, types, shapes, scales, shifts, seeds, st.sampled_from([1e-5, 1e-12, 0.0, 1e-2]))
def test_forward_is_within_the_bound(op, name, shape, scale, shift, seed, eps):
    x, rng = rows(seed, shape, name, scale, shift)
    w = rng.standard_normal(shape[-1]).astype(x.dtype)
    y, rstd = getattr(normkit, op)(x, w, eps=eps, return_stats=True)[:: 2 if op == "layer_norm" else 1]
    want = reference.forward(op, x, w, eps=eps)
    want["y"].check(y, "y")
    want["rstd"].check(rstd, "rstd")


@given(ops, types, shapes, st.sampled_from([1e-3, 1.0, 1e3]), shifts, seeds, st.booleans())
def test_backward_is_within_the_bound(op, name, shape, scale, shift, seed, affine):
    x, rng = rows(seed, shape, name, scale, shift)
    dy = rng.standard_normal(shape).astype(x.dtype)
    w = rng.standard_normal(shape[-1]).astype(x.dtype) if affine else None
    want = reference.backward(op, dy, x, w)
    for value, key in zip(getattr(normkit, op + "_backward")(dy, x, w), want, strict=True):
        want[key].check(value, key)


@given(ops, types, shapes, seeds, st.data())
def test_axis_is_a_reshape(op, name, shape, seed, data):
    x, _ = rows(seed, shape, name, 1.0, 0.0)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    flat = x.reshape(*shape[: axis % len(shape)], -1)
    assert same_bits(getattr(normkit, op)(x, axis=axis).reshape(flat.shape), getattr(normkit, op)(flat))


@given(ops, types, st.integers(1, 300), st.integers(1, 300), seeds, st.data())
def test_a_row_does_not_know_its_batch(op, name, count, size, seed, data):
    x, _ = rows(seed, (count, size), name, 1.0, 1.0)
    i = data.draw(st.integers(0, count - 1))
    threads = data.draw(st.integers(1, 8))
    assert same_bits(getattr(normkit, op)(x, threads=threads)[i], getattr(normkit, op)(x[i]))


@given(ops, types, hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=20), seeds, st.data())
def test_any_view_has_the_bits_of_its_copy(op, name, shape, seed, data):
    x, _ = rows(seed, shape, name, 1.0, 0.0)
    view = x.transpose(data.draw(st.permutations(range(len(shape)))))
    view = view[
        tuple(data.draw(st.sampled_from([slice(None), slice(None, None, -1), slice(None, None, 2)])) for _ in shape)
    ]
    assert same_bits(getattr(normkit, op)(view), getattr(normkit, op)(np.ascontiguousarray(view)))


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=2, max_side=80), elements=st.floats(width=32)))
def test_any_floats_give_ieee_results_row_by_row(x):
    for op in OPS:
        with np.errstate(all="ignore"):
            y = getattr(normkit, op)(x)
            finite = np.isfinite(x).all(-1)
            assert np.isfinite(y[finite]).all()
            reference.forward(op, x[finite])["y"].check(y[finite]) if x.ndim > 1 and finite.any() else None


@given(types, st.integers(1, 200), seeds, st.sampled_from([1e-3, 1.0, 1e2]))
def test_rms_of_the_result_is_one(name, size, seed, scale):
    x, _ = rows(seed, (3, size), name, scale, 0.0)
    y = normkit.rms_norm(x, eps=0.0).astype(np.float64)
    some = np.any(x != 0, axis=-1)
    assert np.allclose(np.sqrt((y[some] ** 2).mean(-1)), 1, rtol=2.0**-7)


@given(types, st.integers(2, 200), seeds, st.floats(-100, 100))
def test_layer_norm_of_a_constant_row_is_the_bias(name, size, seed, value):
    bias = np.random.default_rng(seed).standard_normal(size).astype(DTYPES[name])
    x = np.full((2, size), value).astype(DTYPES[name])
    assert same_bits(normkit.layer_norm(x, None, bias), np.repeat(bias[None], 2, 0) + DTYPES[name].type(0))
