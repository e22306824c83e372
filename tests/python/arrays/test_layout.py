"""The same bits for any strides, position, batch and number of threads; in place; edge rows."""

import normkit
import numpy as np
import pytest
import reference
import torch
from arrays.kinds import OPS, random, same_bits, to_torch
from reference import DTYPES

LAYOUTS = {
    "contiguous": lambda a: a,
    "every second column": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed columns": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "reversed rows": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "column major": np.asfortranarray,
    "slice of wider rows": lambda a: np.pad(a, [(0, 0)] * (a.ndim - 1) + [(3, 5)])[..., 3:-5],
    "shifted by one element": lambda a: np.concatenate([a.ravel()[:1], a.ravel()])[1:].reshape(a.shape),
}


def arrays(name, shape=(6, 193)):
    rng = np.random.default_rng(11)
    return [random(rng, s, DTYPES[name], 2.0, 1.0) for s in (shape, shape[-1:], shape[-1:], shape, shape)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_strides_of_inputs_and_outputs_do_not_change_bits(op, name, layout):
    place = LAYOUTS[layout]
    x, w, b, r, dy = arrays(name)
    out, h = place(np.zeros_like(x)), place(np.zeros_like(x))
    got = getattr(normkit, op)(*map(place, (x, w, b)), residual=place(r), out=out, residual_out=h)
    want = getattr(normkit, op)(x, w, b, residual=r)
    assert got[0] is out and same_bits(out, want[0]) and same_bits(h, want[1])
    dx, dweight = place(np.zeros_like(x)), place(np.zeros_like(w))
    backward = getattr(normkit, op + "_backward")
    backward(place(dy), place(x), place(w), dx=dx, dweight=dweight, output_mask=(True, True, False))
    want = backward(dy, x, w)
    assert same_bits(dx, want[0]) and same_bits(dweight, want[1])


@pytest.mark.parametrize("op", OPS)
def test_transposed_and_permuted_batches(op):
    rng = np.random.default_rng(3)
    x = random(rng, (4, 5, 6, 33), np.float32)
    want = getattr(normkit, op)(x)
    moved = np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    assert same_bits(getattr(normkit, op)(moved), want)
    channels_first = np.ascontiguousarray(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    assert same_bits(getattr(normkit, op)(channels_first), want)
    assert same_bits(getattr(normkit, op)(torch.from_numpy(channels_first)), want)


@pytest.mark.parametrize("op", OPS)
def test_broadcast_inputs(op):
    row = random(np.random.default_rng(4), (1, 65), np.float32)
    many = np.broadcast_to(row, (7, 65))
    assert same_bits(getattr(normkit, op)(many), np.repeat(getattr(normkit, op)(row), 7, axis=0))
    scalar = np.broadcast_to(np.float32(3), (2, 65))
    assert same_bits(getattr(normkit, op)(scalar), getattr(normkit, op)(np.full((2, 65), 3, np.float32)))
    expanded = torch.from_numpy(row).expand(7, 65)
    assert same_bits(getattr(normkit, op)(expanded), getattr(normkit, op)(many))
    dx, dweight, _ = getattr(normkit, op + "_backward")(np.broadcast_to(np.float32(1), (7, 65)), many)
    full = getattr(normkit, op + "_backward")(np.ones((7, 65), np.float32), np.ascontiguousarray(many))
    assert same_bits(dx, full[0]) and same_bits(dweight, full[1])


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_in_place(op, name):
    x, w, b, r, dy = arrays(name)
    want_y, want_h = getattr(normkit, op)(x, w, b, residual=r)
    own_x, own_r = x.copy(), r.copy()
    y, h = getattr(normkit, op)(own_x, w, b, residual=own_r, out=own_x, residual_out=own_r)
    assert y is own_x and h is own_r
    assert same_bits(y, want_y) and same_bits(h, want_h)
    own = x.copy()
    assert same_bits(getattr(normkit, op)(own, w, b, out=own), getattr(normkit, op)(x, w, b))
    want = getattr(normkit, op + "_backward")(dy, x, w)[0]
    for where in ("dy", "x"):
        given = {"dy": dy.copy(), "x": x.copy()}
        given[where] = given[where].copy()
        got = getattr(normkit, op + "_backward")(given["dy"], given["x"], w, dx=given[where])[0]
        assert got is given[where] and same_bits(got, want)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_threads_and_batch_slices_do_not_change_bits(op, name):
    x, w, b, r, dy = arrays(name, (300, 1000))
    call, backward = getattr(normkit, op), getattr(normkit, op + "_backward")
    want = call(x, w, b, residual=r, return_stats=True, threads=1)
    gradients = backward(dy, x, w, residual=r, threads=1)
    for threads in (*range(2, 9), None):
        for a, e in zip(call(x, w, b, residual=r, return_stats=True, threads=threads), want, strict=True):
            assert same_bits(a, e)
        for a, e in zip(backward(dy, x, w, residual=r, threads=threads), gradients, strict=True):
            assert same_bits(a, e)
    rng = np.random.default_rng(5)
    order = rng.permutation(300)
    assert same_bits(call(np.ascontiguousarray(x[order]), w, b), call(x, w, b)[order])
    for begin, end in ((0, 1), (1, 3), (17, 150), (299, 300)):
        assert same_bits(call(x[begin:end], w, b, residual=r[begin:end])[0], want[0][begin:end])
        assert same_bits(backward(dy[begin:end], x[begin:end], w, residual=r[begin:end])[0], gradients[0][begin:end])


@pytest.mark.parametrize("op", OPS)
def test_a_long_row_is_split_over_threads_without_changing_bits(op):
    x = random(np.random.default_rng(6), (1, 1_000_003), np.float32, 2.0, 100.0)
    want = getattr(normkit, op)(x, threads=1, return_stats=True)
    reference.forward(op, x)["y"].check(want[0])
    for threads in (2, 3, 8):
        for a, e in zip(getattr(normkit, op)(x, threads=threads, return_stats=True), want, strict=True):
            assert same_bits(a, e)


@pytest.mark.parametrize("kind", [lambda a: a, to_torch])
@pytest.mark.parametrize("op", OPS)
def test_no_rows(op, kind):
    for shape in ((0, 5), (3, 0, 5)):
        x = kind(np.empty(shape, np.float32))
        got = getattr(normkit, op)(x, kind(np.ones(5, np.float32)), residual=x, return_stats=True)
        assert tuple(got[0].shape) == tuple(got[1].shape) == shape
        assert tuple(got[-1].shape) == shape[:-1]
        dx, dweight, dbias = getattr(normkit, op + "_backward")(x, x)
        assert tuple(dx.shape) == shape
        assert np.array_equal(dweight, np.zeros(5)) and np.array_equal(dbias, np.zeros(5))


@pytest.mark.parametrize("op", OPS)
def test_accumulate_adds_to_parameter_gradients(op):
    x, w, b, _, dy = arrays("f32")
    backward = getattr(normkit, op + "_backward")
    dx, dweight, dbias = backward(dy, x, w)
    own_w, own_b = np.full_like(w, 2), np.full_like(b, -3)
    got = backward(dy, x, w, dweight=own_w, dbias=own_b, accumulate=True)
    assert got[1] is own_w and got[2] is own_b
    assert same_bits(got[0], dx)
    assert np.allclose(own_w, dweight + 2, rtol=1e-6, atol=1e-6)
    assert np.allclose(own_b, dbias - 3, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "mask", [(True, False, False), (False, True, False), (False, False, True), (False, True, True)]
)
@pytest.mark.parametrize("op", OPS)
def test_output_mask(op, mask):
    x, w, _, _, dy = arrays("f32")
    full = getattr(normkit, op + "_backward")(dy, x, w)
    for wanted, a, e in zip(mask, getattr(normkit, op + "_backward")(dy, x, w, output_mask=mask), full, strict=True):
        assert same_bits(a, e) if wanted else a is None


@pytest.mark.parametrize("op", OPS)
def test_the_gradient_that_arrives_at_h_joins_dx(op):
    x, w, _, _, dy = arrays("f64")
    arriving = np.arange(x.size, dtype=np.float64).reshape(x.shape)
    plain = getattr(normkit, op + "_backward")(dy, x, w)[0]
    joined = getattr(normkit, op + "_backward")(dy, x, w, dresidual_out=arriving)[0]
    assert np.allclose(joined, plain + arriving, rtol=1e-14, atol=1e-14)


def test_constant_rows_and_zero_rows():
    x = np.float32([[7, 7, 7], [0, 0, 0], [1e-30, 1e-30, 1e-30]])
    b = np.float32([1, 2, 3])
    for eps in (1e-5, 0.0):
        assert np.array_equal(normkit.layer_norm(x, None, b, eps=eps), np.broadcast_to(b, x.shape))
    assert np.array_equal(normkit.rms_norm(x[1:2], eps=0.0), np.zeros((1, 3), np.float32))
    assert np.array_equal(normkit.l2_norm(x[1:2]), np.zeros((1, 3), np.float32))


@pytest.mark.parametrize("op", OPS)
def test_nan_and_infinity_stay_in_their_row(op):
    x, w, b, _, _ = arrays("f32")
    clean = getattr(normkit, op)(x, w, b)
    for bad in (np.nan, np.inf, -np.inf):
        dirty = x.copy()
        dirty[2, 5] = bad
        got = getattr(normkit, op)(dirty, w, b)
        assert np.isnan(got[2]).any()
        assert same_bits(np.delete(got, 2, 0), np.delete(clean, 2, 0))


@pytest.mark.parametrize("op", OPS)
def test_more_than_2_to_the_31_elements(op):
    row = random(np.random.default_rng(8), 2**16, np.float32)
    far = np.lib.stride_tricks.as_strided(row, (3, 2**15), (2**16, 4))  # rows begin half a row apart
    assert same_bits(getattr(normkit, op)(far), getattr(normkit, op)(np.ascontiguousarray(far)))
    memory = np.zeros(2**31 + 2**17, np.float16)  # pages that nobody touches cost nothing
    memory[-64:] = 1
    apart = np.lib.stride_tricks.as_strided(memory[-64 - 2**31 :], (2, 64), (2**32, 2))
    assert np.shares_memory(apart[1], memory[-64:])
    got = getattr(normkit, op)(apart, eps=0.0)
    assert same_bits(got[1:], getattr(normkit, op)(np.ones((1, 64), np.float16), eps=0.0))
    assert not got[0].any()
