"""Every mistake: its exception, the message (operation, operand, got, expected), and that nothing is written."""

import jax.numpy as jnp
import normkit
import numpy as np
import pytest
import torch
from arrays.kinds import OPS

F4 = np.float32
SENTINEL = F4(-77)


def ones(*shape, dtype=F4):
    return np.ones(shape, dtype)


def read_only(*shape):
    a = ones(*shape)
    a.flags.writeable = False
    return a


def misaligned(*shape):
    count = int(np.prod(shape))
    return np.zeros(4 * count + 1, np.uint8)[1:].view(F4).reshape(shape)


def overlapping_rows(x):
    return np.lib.stride_tricks.as_strided(ones(100), x.shape, (4, 4))


x = ones(4, 8)
# what is passed besides x -> (exception, parts of the message)
FORWARD = {
    "weight too short": (dict(weight=ones(7)), ValueError, ["weight", "7", "8"]),
    "bias too long": (dict(bias=ones(9)), ValueError, ["bias", "9", "8"]),
    "weight of the batch's shape": (dict(weight=ones(4, 8)), ValueError, ["weight", "32", "8"]),
    "weight float64": (dict(weight=ones(8, dtype=np.float64)), TypeError, ["weight", "float64", "float32"]),
    "bias int": (dict(bias=ones(8, dtype=np.int64)), TypeError, ["bias", "int64", "float32"]),
    "weight a list": (dict(weight=[1.0] * 8), TypeError, ["weight", "list", "array"]),
    "bias a number": (dict(bias=1.0), TypeError, ["bias", "1.0", "array"]),
    "residual of another shape": (dict(residual=ones(8, 4)), ValueError, ["residual", "(8, 4)", "(4, 8)"]),
    "residual float16": (dict(residual=ones(4, 8, dtype=np.float16)), TypeError, ["residual", "float16", "float32"]),
    "residual_out without residual": (dict(residual_out=ones(4, 8)), ValueError, ["residual_out", "residual"]),
    "out of another shape": (dict(out=ones(4, 7)), ValueError, ["out has", "(4, 7)", "(4, 8)"]),
    "out of another rank": (dict(out=ones(32)), ValueError, ["out has", "(32)", "(4, 8)"]),
    "out float64": (dict(out=ones(4, 8, dtype=np.float64)), TypeError, ["out has", "float64", "float32"]),
    "out bool": (dict(out=ones(4, 8, dtype=bool)), TypeError, ["out", "bool", "float32"]),
    "out read-only": (dict(out=read_only(4, 8)), ValueError, ["out", "read-only", "writable"]),
    "out bytes": (dict(out=bytes(128)), TypeError, ["out", "float32"]),
    "out read-only memoryview": (dict(out=memoryview(read_only(4, 8))), ValueError, ["out", "read-only", "writable"]),
    "out JAX": (dict(out=jnp.ones((4, 8))), TypeError, ["out", "JAX", "cannot be changed"]),
    "out broadcast": (dict(out=torch.ones(1).expand(4, 8)), ValueError, ["out has", "overlap"]),
    "out with overlapping rows": (dict(out=overlapping_rows(x)), ValueError, ["overlap"]),
    "weight misaligned": (dict(weight=misaligned(8)), ValueError, ["weight", "aligned", "4"]),
    "weight of big-endian floats": (dict(weight=ones(8, dtype=">f4")), TypeError, ["weight", ">f4", "float32"]),
    "weight in a record": (
        dict(weight=np.zeros(8, np.dtype([("a", "f4"), ("b", "u1")]))["a"]),
        ValueError,
        ["weight", "stride", "5"],
    ),
    "weight masked": (dict(weight=np.ma.masked_array(ones(8), ones(8) > 0)), TypeError, ["weight", "mask"]),
    "weight of 9 dimensions": (dict(weight=ones(*[1] * 8, 8)), ValueError, ["weight", "9", "8"]),
    "axis too large": (dict(axis=2), ValueError, ["axis", "2", "-2", "1"]),
    "axis too small": (dict(axis=-3), ValueError, ["axis", "-3", "-2", "1"]),
    "axis a float": (dict(axis=1.0), TypeError, ["axis", "1.0", "integer"]),
    "axis a tuple": (dict(axis=(0, 1)), TypeError, ["axis", "tuple", "integer"]),
    "axis of 100 bits": (dict(axis=2**100), ValueError, ["axis", "integer"]),
    "eps negative": (dict(eps=-1e-5), ValueError, ["eps", "-"]),
    "eps NaN": (dict(eps=float("nan")), ValueError, ["eps", "nan"]),
    "eps infinite": (dict(eps=float("inf")), ValueError, ["eps", "inf"]),
    "eps a string": (dict(eps="1e-5"), TypeError, ["eps", "'1e-5'", "number"]),
    "eps None": (dict(eps=None), TypeError, ["eps", "None", "number"]),
    "eps an array": (dict(eps=ones(2)), TypeError, ["eps", "ndarray", "number"]),
    "weight_offset without weight": (dict(weight_offset=1.0), ValueError, ["weight_offset", "weight"]),
    "weight_offset NaN": (dict(weight=ones(8), weight_offset=float("nan")), ValueError, ["weight_offset", "nan"]),
    "rounding unknown": (dict(rounding="twice"), ValueError, ["rounding", "'twice'", "'once'", "'before_weight'"]),
    "rounding a number": (dict(rounding=1), TypeError, ["rounding", "1", "'once'"]),
    "eps_mode unknown": (dict(eps_mode="Inside"), ValueError, ["eps_mode", "'Inside'", "'inside'", "'clamp'"]),
    "residual_stats unknown": (
        dict(residual=x, residual_stats=""),
        ValueError,
        ["residual_stats", "''", "'rounded'", "'unrounded'"],
    ),
    "residual_stats without residual": (dict(residual_stats="unrounded"), ValueError, ["residual_stats", "residual"]),
    "return_stats a number": (dict(return_stats=1), TypeError, ["return_stats", "1", "True or False"]),
    "threads zero": (dict(threads=0), ValueError, ["threads", "0", "1"]),
    "threads negative": (dict(threads=-2), ValueError, ["threads", "-2", "1"]),
    "threads a float": (dict(threads=2.0), TypeError, ["threads", "2.0", "integer"]),
}
X = {
    "None": (None, TypeError, ["x", "None", "array"]),
    "a list": ([1.0, 2.0], TypeError, ["x", "list", "array"]),
    "a string": ("abc", TypeError, ["x", "'abc'", "array"]),
    "a class": (np.ndarray, TypeError, ["x", "type", "array"]),
    "a number": (3.0, TypeError, ["x", "3.0", "array"]),
    "bytes": (b"12345678", TypeError, ["x", "'B'", "float32"]),
    "int32": (np.ones((2, 3), np.int32), TypeError, ["x", "int32", "float32"]),
    "complex": (np.ones((2, 3), np.complex64), TypeError, ["x", "complex64", "float32"]),
    "long double": (np.ones((2, 3), np.longdouble), TypeError, ["x", "float32"]),
    "objects": (np.array([[1.0, None]]), TypeError, ["x", "object", "float32"]),
    "no dimensions": (np.float32(3), ValueError, ["x", "dimension"]),
    "rank 9": (ones(*[1] * 9), ValueError, ["x", "9", "8"]),
    "nothing to normalize": (ones(3, 0), ValueError, ["x", "0"]),
    "torch int": (torch.ones(2, 3, dtype=torch.int64), TypeError, ["x", "int64", "float32"]),
    "torch bool": (torch.ones(2, 3, dtype=torch.bool), TypeError, ["x", "bool", "float32"]),
    "torch float8": (torch.ones(2, 3).to(torch.float8_e4m3fn), TypeError, ["x", "DLPack code 10", "float32"]),
    "torch complex conjugate": (torch.ones(2, 3, dtype=torch.complex64).conj(), TypeError, ["x", "complex64"]),
    "torch sparse": (torch.ones(2, 3).to_sparse(), TypeError, ["x", "plain CPU tensor", "storage"]),
    "torch meta": (torch.ones(2, 3, device="meta"), TypeError, ["x", "plain CPU tensor", "meta"]),
    "torch freed": (None, TypeError, ["x", "memory"]),
    "torch of 2^60 elements": (torch.ones(1).expand(2**30, 2**30), (ValueError, MemoryError), []),
    "jax int": (jnp.ones((2, 3), jnp.int32), TypeError, ["x", "int32", "float32"]),
}


def freed_tensor():
    t = torch.ones(2, 3)
    t.untyped_storage().resize_(0)
    return t


def check(error, op, parts):
    text = str(error.value)
    assert text.startswith(op + ": "), text
    for part in parts:
        assert part in text, text


@pytest.mark.parametrize("case", FORWARD)
@pytest.mark.parametrize("op", OPS)
def test_forward_mistakes(op, case):
    options, exception, parts = FORWARD[case]
    given = {"out": np.full((4, 8), SENTINEL), **options}
    with pytest.raises(exception) as error:
        getattr(normkit, op)(x, **given)
    check(error, op, parts)
    if "out" not in options:
        assert np.all(given["out"] == SENTINEL)
    assert np.all(x == 1)


@pytest.mark.parametrize("case", X)
@pytest.mark.parametrize("op", [*OPS, *(op + "_backward" for op in OPS)])
def test_what_x_cannot_be(op, case):
    value, exception, parts = X[case]
    value = freed_tensor() if case == "torch freed" else value
    with pytest.raises(exception) as error:
        getattr(normkit, op)(*([value, value] if op.endswith("backward") else [value]))
    check(error, op, [("dy" if op.endswith("backward") and exception is TypeError and p == "x" else p) for p in parts])


BACKWARD = {
    "dy of another shape": (dict(dy=ones(4, 7)), ValueError, ["dy", "(4, 7)", "(4, 8)"]),
    "dy float64": (dict(dy=ones(4, 8, dtype=np.float64)), TypeError, ["dy", "float64", "float32"]),
    "weight too short": (dict(weight=ones(7)), ValueError, ["weight", "7", "8"]),
    "rstd of another shape": (dict(rstd=ones(5)), ValueError, ["5", "4"]),
    "rstd float16": (dict(rstd=ones(4, dtype=np.float16)), TypeError, ["rstd", "float16", "float32"]),
    "residual of another shape": (dict(residual=ones(4, 1)), ValueError, ["residual", "(4, 1)", "(4, 8)"]),
    "dresidual_out of another shape": (dict(dresidual_out=ones(8)), ValueError, ["dresidual_out", "(8)", "(4, 8)"]),
    "dx of another shape": (dict(dx=ones(8, 4)), ValueError, ["dx", "(8, 4)", "(4, 8)"]),
    "dx read-only": (dict(dx=read_only(4, 8)), ValueError, ["dx", "read-only", "writable"]),
    "dweight too short": (dict(dweight=ones(3)), ValueError, ["dweight", "3", "8"]),
    "dbias int": (dict(dbias=ones(8, dtype=np.int32)), TypeError, ["dbias", "int32", "float32"]),
    "dweight is dbias": (dict(zip(("dweight", "dbias"), [ones(8)] * 2, strict=True)), ValueError, ["overlap"]),
    "dx that is not wanted": (dict(dx=ones(4, 8), output_mask=(False, True, True)), ValueError, ["dx", "output_mask"]),
    "nothing wanted": (dict(output_mask=(False, False, False)), ValueError, ["output_mask", "True"]),
    "mask of two": (dict(output_mask=(True, True)), ValueError, ["output_mask", "2", "three"]),
    "mask of numbers": (dict(output_mask=(1, 1, 1)), TypeError, ["output_mask", "1", "True or False"]),
    "mask None": (dict(output_mask=None), TypeError, ["output_mask", "None", "three"]),
    "accumulate to nothing": (dict(accumulate=True), ValueError, ["accumulate", "dweight"]),
    "accumulate a string": (dict(accumulate="yes"), TypeError, ["accumulate", "'yes'", "True or False"]),
    "eps negative": (dict(eps=-1.0), ValueError, ["eps", "-1"]),
    "axis too large": (dict(axis=2), ValueError, ["axis", "2", "1"]),
    "weight_offset without weight": (dict(weight_offset=1.0), ValueError, ["weight_offset", "weight"]),
}


@pytest.mark.parametrize("case", BACKWARD)
@pytest.mark.parametrize("op", OPS)
def test_backward_mistakes(op, case):
    options, exception, parts = BACKWARD[case]
    given = {"dy": ones(4, 8), "dx": np.full((4, 8), SENTINEL), **options}
    if op == "layer_norm" and "rstd" in options:
        given["mean"] = np.zeros_like(options["rstd"])
        parts = [p for p in parts if p != "rstd"]  # mean comes first
    if "output_mask" in options and "dx" not in options:
        del given["dx"]
    with pytest.raises(exception) as error:
        getattr(normkit, op + "_backward")(given.pop("dy"), x, **given)
    check(error, op + "_backward", parts)
    if "dx" in given and "dx" not in options:
        assert np.all(given["dx"] == SENTINEL)


def test_mean_without_rstd():
    for saved in (dict(mean=ones(4)), dict(rstd=ones(4))):
        with pytest.raises(ValueError, match=r"layer_norm_backward: .*(mean|rstd)"):
            normkit.layer_norm_backward(x, x, **saved)


@pytest.mark.parametrize("op", OPS)
def test_partly_overlapping_outputs(op):
    memory = ones(5, 8)
    for out, residual_out in ((memory[1:], None), (ones(4, 8), memory[1:])):
        with pytest.raises(ValueError, match=f"{op}: .*overlap"):
            getattr(normkit, op)(memory[:4], residual=ones(4, 8), out=out, residual_out=residual_out)
    assert np.all(memory == 1)


def test_l2_norm_has_no_eps_mode():
    with pytest.raises(ValueError, match="l2_norm: eps_mode"):
        normkit.l2_norm(x, eps_mode="outside")


def test_arguments_that_do_not_exist():
    for call in (lambda: normkit.rms_norm(), lambda: normkit.rms_norm(x, epsilon=1), lambda: normkit.rms_norm(x, x=x)):
        with pytest.raises(TypeError, match="rms_norm"):
            call()
    with pytest.raises(TypeError, match="rms_norm_backward"):
        normkit.rms_norm_backward(x, x, mean=ones(4))
    with pytest.raises(TypeError, match="incompatible function arguments"):
        normkit.rms_norm(x, None, None, None)


def test_causes_are_kept():
    with pytest.raises(TypeError) as error:
        normkit.rms_norm(x, eps="a")
    assert isinstance(error.value.__cause__, TypeError)
