"""Mistakes in calls of the channel norms: a ValueError or TypeError that says what is wrong, and nothing written."""

import contextlib

import jax.numpy as jnp
import normkit
import numpy as np
import pytest
import torch
from arrays.kinds import CHANNEL_OPS, channel_norm

X = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
P, D = np.ones(4, np.float32), np.ones(4)
READ_ONLY = np.ones(4)
READ_ONLY.flags.writeable = False

# function, arguments after x, options, type of the error, words that its message contains
FORWARD = [
    ("batch_norm", [P[:3]], {}, ValueError, ["weight has the shape (3)", "expected (4)"]),
    ("batch_norm", [P, np.ones((4, 1), np.float32)], {}, ValueError, ["bias has the shape (4, 1)", "expected (4)"]),
    ("batch_norm", [D], {}, TypeError, ["weight has dtype float64", "float32"]),
    ("batch_norm", [], {"running_mean": D}, ValueError, ["running_var is absent"]),
    ("batch_norm", [], {"running_mean": READ_ONLY, "running_var": D.copy()}, ValueError, ["running_mean", "read-only"]),
    ("batch_norm", [], {"running_mean": jnp.ones(4), "running_var": D}, (TypeError, ValueError), ["running_mean"]),
    ("batch_norm", [], {"running_mean": D.astype(np.float16), "running_var": D}, TypeError, ["running_mean has dtype"]),
    ("batch_norm", [], {"training": False}, ValueError, ["running_mean is absent"]),
    ("batch_norm", [], {"training": None}, TypeError, ["training is None", "True or False"]),
    ("batch_norm", [], {"momentum": 1.5}, ValueError, ["momentum is 1.5", "0 to 1"]),
    ("batch_norm", [], {"momentum": float("nan")}, ValueError, ["momentum is nan"]),
    ("batch_norm", [], {"momentum": None}, TypeError, ["momentum is None", "a number"]),
    ("batch_norm", [], {"running_update": "jax"}, ValueError, ["running_update is 'jax'", "'torch' or 'keras'"]),
    ("batch_norm", [], {"eps": -1.0}, ValueError, ["eps is -1", "0 or more"]),
    ("batch_norm", [], {"channel_axis": 0}, ValueError, ["channel_axis is 0", "1 (channels first) or -1"]),
    ("batch_norm", [], {"channel_axis": 1.0}, TypeError, ["channel_axis is 1.0", "integer"]),
    ("batch_norm", [], {"out": np.empty((2, 3, 4), np.float32)}, ValueError, ["out has the shape", "(2, 4, 3)"]),
    ("batch_norm", [], {"out": np.empty((2, 4, 3), np.int32)}, TypeError, ["out has type int32"]),
    ("batch_norm", [], {"threads": 0}, ValueError, ["threads is 0"]),
    ("instance_norm", [], {"return_stats": 1}, TypeError, ["return_stats is 1", "True or False"]),
    ("instance_norm", [], {"running_mean": D, "running_var": D, "training": False, "return_stats": True}, ValueError,
     ["return_stats is True"]),
    ("group_norm", [3], {}, ValueError, ["groups is 3", "divisor of the 4 channels"]),
    ("group_norm", [0], {}, ValueError, ["groups is 0", "1 or more"]),
    ("group_norm", [-1], {}, ValueError, ["groups is -1"]),
    ("group_norm", [2.0], {}, TypeError, ["groups is 2.0", "integer"]),
    ("group_norm", [None], {}, TypeError, ["groups is None"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "options", "kind", "words"), FORWARD)
def test_mistakes_of_the_forward(name, arguments, options, kind, words):
    out = options.get("out")
    before = None if out is None else out.copy()
    with pytest.raises(kind) as error:
        getattr(normkit, name)(X, *arguments, **options)
    assert str(error.value).startswith(f"{name}: ")
    for word in words:
        assert word in str(error.value)
    assert before is None or np.array_equal(out, before, equal_nan=before.dtype.kind == "f")


@pytest.mark.parametrize("op", CHANNEL_OPS)
@pytest.mark.parametrize(
    ("x", "kind", "words"),
    [
        (None, TypeError, ["x is None"]),
        (np.float32(1), ValueError, ["x"]),
        (X[0, 0], ValueError, ["x has 1 dimensions", "2 or more"]),
        (X.astype(np.int64), TypeError, ["x has type int64"]),
        (X.astype(np.complex64), TypeError, ["x has type complex64"]),
        ("text", TypeError, ["x"]),
        (torch.ones(2, 4, requires_grad=True), (TypeError, ValueError, RuntimeError), ["x"]),
    ],
)
def test_what_is_no_input(op, x, kind, words):
    with pytest.raises(kind) as error:
        channel_norm(op)(x)
    for word in words:
        assert word in str(error.value)


BACKWARD = [
    ({"mean": D}, ValueError, ["rstd is absent"]),
    ({"output_mask": (False, False, False)}, ValueError, ["output_mask"]),
    ({"output_mask": [True, True, True]}, TypeError, ["output_mask"]),
    ({"accumulate": True}, ValueError, ["accumulate is True", "dweight"]),
    ({"dweight": P.copy(), "output_mask": (True, False, True)}, ValueError, ["dweight was given"]),
    ({"dbias": np.ones(3, np.float32)}, ValueError, ["dbias has the shape (3)", "expected (4)"]),
    ({"dx": np.empty((4, 2, 3), np.float32)}, ValueError, ["dx has the shape"]),
]


@pytest.mark.parametrize(("options", "kind", "words"), BACKWARD)
def test_mistakes_of_the_backward(options, kind, words):
    x = X.copy()
    with pytest.raises(kind) as error:
        normkit.batch_norm_backward(x, x, P, **options)
    for word in words:
        assert word in str(error.value)
    assert np.array_equal(x, X)


def test_an_output_that_overlaps_an_input_in_another_order_is_refused():
    x = X.copy()
    for out in (x[:, ::-1], x[::-1]):
        with pytest.raises(ValueError, match="out overlaps x"):
            normkit.batch_norm(x, out=out)
        with pytest.raises(ValueError, match="dx overlaps"):
            normkit.batch_norm_backward(X, x, dx=out)
    assert np.array_equal(x, X)


def test_running_statistics_of_the_wrong_life():
    with pytest.raises(ValueError, match="running_mean is not used when training is true"):
        normkit.batch_norm_backward(X, X, running_mean=D, running_var=D)
    with pytest.raises(ValueError, match="mean is not used when training is false"):
        normkit.batch_norm_backward(X, X, None, D, D, running_mean=D, running_var=D, training=False)


def test_a_failed_call_leaves_running_statistics():
    mean, var = np.zeros(4), np.ones(4)
    with pytest.raises(ValueError, match="weight"):
        normkit.batch_norm(X, P[:2], running_mean=mean, running_var=var)
    assert not mean.any() and (var == 1).all()


@pytest.mark.parametrize("op", CHANNEL_OPS)
def test_random_calls_raise_or_compute(op):
    """Odd operands in every place: nothing but a ValueError, a TypeError or a result."""
    rng = np.random.default_rng(0)
    y = X.copy()  # calls may write to their operands
    arrays = [y, y[:, ::-1], y[0], y[:0], y.T, np.ones((2, 4, 0), np.float32), P.copy(), D.copy()]
    ranks = [np.ones((1, 4) + (1,) * 6, np.float32), np.ones((1,) * 9, np.float32)]
    odd = [None, *arrays, *ranks, torch.ones(2, 4), jnp.ones((2, 4)), 3, "s", [1.0], np.float64(2)]
    for _ in range(400):
        x, weight, bias, out, stat = (odd[i] for i in rng.integers(len(odd), size=5))
        options = {"out": out, "channel_axis": int(rng.choice([1, -1])), "eps": float(rng.choice([0, 1e-5]))}
        if op != "group_norm" and rng.random() < 0.5:
            options |= {"running_mean": stat, "running_var": stat}
        with contextlib.suppress(TypeError, ValueError):
            channel_norm(op)(x, weight, bias, **options)
        with contextlib.suppress(TypeError, ValueError):
            channel_norm(op + "_backward")(out, x, weight, stat, stat, dx=bias, eps=options["eps"])
