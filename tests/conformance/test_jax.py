"""Hypothesis: results and gradients beside the plain formulas in JAX, in float64, differentiated by JAX.

The gradients of the f64 reference are formulas written by hand; these are not. The bound is that of the reference.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import normkit
import numpy as np
import reference
from hypothesis import given
from hypothesis import strategies as st
from reference import DTYPES

SHAPES = [((4, 7), -1), ((2, 3, 5, 13), -2), ((3, 193), -1)]  # shape and axis
OPS = {"layer_norm": ("inside", "outside", "clamp"), "rms_norm": ("inside", "outside", "clamp"), "l2_norm": ("clamp",)}


def formula(op, eps_mode, axis, h, weight, bias, eps, offset):
    axes = tuple(range(axis, 0))
    centred = h - h.mean(axes, keepdims=True) if op == "layer_norm" else h
    squares = jnp.square(centred)
    q = squares.sum(axes, keepdims=True) if op == "l2_norm" else squares.mean(axes, keepdims=True)
    if eps_mode == "inside":
        denominator = jnp.sqrt(q + eps)
    else:
        denominator = jnp.sqrt(q) + eps if eps_mode == "outside" else jnp.maximum(jnp.sqrt(q), eps)
    return centred / denominator * (weight + offset) + bias


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def value_and_gradients(op, eps_mode, axis, h, weight, bias, eps, offset, dy):
    y, pull_back = jax.vjp(lambda *p: formula(op, eps_mode, axis, *p, eps, offset), h, weight, bias)
    return y, *pull_back(dy)


@st.composite
def problems(draw):
    op = draw(st.sampled_from([*OPS]))
    eps_mode = draw(st.sampled_from(OPS[op]))
    (shape, axis), dtype = draw(st.sampled_from(SHAPES)), DTYPES[draw(st.sampled_from([*DTYPES]))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def make(dims):
        return rng.standard_normal(dims).astype(dtype)

    operands = {"x": make(shape), "weight": make(shape[axis:]), "bias": make(shape[axis:]), "dy": make(shape)}
    if draw(st.booleans()):
        operands |= {"residual": make(shape), "dresidual_out": make(shape)}
    options = {
        "eps": draw(st.sampled_from([1e-12, 1e-5, 0.5, 3.0])),
        "axis": axis,
        "weight_offset": draw(st.sampled_from([0.0, 1.0])),
    }
    return op, eps_mode, operands, options | ({} if op == "l2_norm" else {"eps_mode": eps_mode})


def by_jax(op, eps_mode, operands, options):
    """y, dx, dweight, dbias in float64 from the rounded operands; h is rounded as the fused call stores it."""
    x, residual = operands["x"], operands.get("residual")
    h = x if residual is None else reference.add_residual(x, residual, x.dtype, "rounded")[0]
    with jax.enable_x64():
        wide = [v.astype(np.float64) for v in (h, operands["weight"], operands["bias"])]
        results = value_and_gradients(
            op,
            eps_mode,
            options["axis"],
            *wide,
            options["eps"],
            options["weight_offset"],
            operands["dy"].astype(np.float64),
        )
    y, dx, dweight, dbias = map(np.asarray, results)
    return y, dx + operands.get("dresidual_out", np.float64(0)).astype(np.float64), dweight, dbias


@given(problems())
def test_values_and_gradients(problem):
    op, eps_mode, operands, options = problem
    x, weight, bias, dy = (operands[name] for name in ("x", "weight", "bias", "dy"))
    residual = {k: operands[k] for k in ("residual",) if k in operands}
    arriving = {k: operands[k] for k in ("dresidual_out",) if k in operands}
    y = getattr(normkit, op)(x, weight, bias, **residual, **options)
    got = [
        y[0] if residual else y,
        *getattr(normkit, op + "_backward")(dy, x, weight, **residual, **arriving, **options),
    ]
    bounds = [
        reference.forward(op, x, weight, bias, **residual, **options)["y"],
        *reference.backward(op, dy, x, weight, **residual, **arriving, **options).values(),
    ]
    names = ("y", "dx", "dweight", "dbias")
    for name, value, bound, right in zip(names, got, bounds, by_jax(op, eps_mode, operands, options), strict=True):
        dataclasses.replace(bound, value=right.astype(bound.value.dtype)).check(value, name)


@given(st.sampled_from(["f32", "f16", "bf16"]), st.sampled_from([1, 2, 64, 300]), st.integers(0, 2**32 - 1))
def test_standardize(name, size, seed):
    """jax.nn.standardize is layer_norm without weight and bias; both are within the bound where the mean is small."""
    x = np.random.default_rng(seed).standard_normal((3, size)).astype(DTYPES[name]).astype(np.float32)
    want = reference.forward("layer_norm", x)["y"]
    want.check(normkit.layer_norm(jnp.asarray(x)), "normkit")
    with jax.enable_x64():
        theirs = np.asarray(jax.nn.standardize(jnp.asarray(x, jnp.float64), epsilon=1e-5))
    dataclasses.replace(want, value=theirs).check(normkit.layer_norm(x), "jax.nn.standardize")


def test_jax_jit_has_the_same_bf16():
    """The formula in float32 under jit, rounded to bfloat16: as many equal results as two f32 computations can have."""
    x = np.random.default_rng(0).standard_normal((64, 512)).astype(ml_dtypes.bfloat16)
    w = np.ones(512, ml_dtypes.bfloat16)

    @jax.jit
    def rms_norm(x, w):
        x32 = x.astype(jnp.float32)
        y = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), -1, keepdims=True) + 1e-5) * w.astype(jnp.float32)
        return y.astype(x.dtype)

    ours, theirs = np.asarray(normkit.rms_norm(jnp.asarray(x), jnp.asarray(w))), np.asarray(rms_norm(x, w))
    assert ours.dtype == theirs.dtype == np.dtype(ml_dtypes.bfloat16)
    assert (ours != theirs).mean() < 1e-3
