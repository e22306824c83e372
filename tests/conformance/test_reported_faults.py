"""Kinds of faults that users of other libraries reported, where one row of numbers does not show them (for those see
test_reported_values.py). Each test is named for what it checks and names the reports.
"""

import itertools

import normkit
import normkit.torch
import numpy as np
import pytest
import reference
import torch
from arrays.kinds import OPS, random, same_bits, to_numpy, to_torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided
from reference import DTYPES, bfloat16

F = normkit.torch.functional
types = pytest.mark.parametrize("name", DTYPES)
ops = pytest.mark.parametrize("op", OPS)


def rng():
    return np.random.default_rng(7)


def expected_far_from_zero(x, eps=1e-5):
    """layer_norm's y and rstd of rows whose elements are within a factor of two of each other: those of the rows minus
    their first elements, which are exact in any type. (The mean itself would not fit the reference's long double.)"""
    return reference.forward("layer_norm", x - x[:, :1], eps=eps)


# --- numerics


@given(
    st.sampled_from([*DTYPES]),
    st.sampled_from([3, 10, 64, 256, 1024, 4097]),
    st.sampled_from([11.0, -100.0, 1e3, 1e6, -1e7]),
    st.sampled_from([0.0, 1e-10, 1e-8, 1e-6, 1e-4]),
    st.integers(0, 2**32 - 1),
)
def test_variance_of_nearly_constant_rows_is_never_negative(name, size, base, spread, seed):
    """pytorch#40302, jax#30426, keras#18795, tensorflow#3290, onnxruntime#31973: E[x^2] - mean^2 below 0."""
    base = np.clip(base, -6e4, 6e4) if name == "f16" else base
    x = (base * (1 + spread * np.random.default_rng(seed).standard_normal((2, size)))).astype(DTYPES[name])
    y, _, rstd = normkit.layer_norm(x, return_stats=True)
    want = expected_far_from_zero(x)
    want["y"].check(y, "y")
    want["rstd"].check(rstd, "rstd")
    assert (rstd <= (1e-5) ** -0.5 * (1 + 2.0**-22)).all()  # of variance 0
    constant = (x == x[:, :1]).all(-1)
    assert not y[constant].any()


@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_a_row_of_four_million_elements(name):
    """pytorch#54293: long groups lose digits."""
    x = rng().random((1, 4_000_000), np.float32).astype(DTYPES[name])
    for op in ("layer_norm", "rms_norm"):
        y = getattr(normkit, op)(x)
        reference.forward(op, x)["y"].check(y, op)


@pytest.mark.parametrize("size", [2, 4096, 4097, 12289])
def test_mean_of_equal_values_near_the_largest(size):
    """ClickHouse#119721, cudf#22393, datafusion#13247: merged moments of huge means, or of parts of one element, give
    NaN. Rows of more than 4096 elements are merged from blocks; the last block here may have one element."""
    for name, value in (("f64", 1e155), ("f64", -1.7e308), ("f32", 3e38), ("bf16", -3e38), ("f16", 65504.0)):
        x = np.full((1, size), value).astype(DTYPES[name])
        y, mean, _ = normkit.layer_norm(x, return_stats=True)
        assert not y.any()
        assert np.array_equal(mean, x[:, 0].astype(np.float64))


@types
@pytest.mark.parametrize("mean", [5.0, -5.0])
def test_small_deviations_on_an_offset_come_out_with_deviation_one(name, mean):
    """tt-metal#45968: a bfloat16 channel of mean 5 and deviation 0.1 was not normalized."""
    x = random(rng(), (8, 4096), DTYPES[name], 0.1, mean)
    y = normkit.layer_norm(x)
    reference.forward("layer_norm", x)["y"].check(y)
    assert np.allclose(y.astype(np.float64).std(-1), 1, atol=5e-3)


def test_variance_of_float64_rows_far_from_zero():
    """Daft#7474: a running mean that stalls gives a variance 18 % too large."""
    x = 1e15 + rng().standard_normal((3, 3 * 4096 + 5))
    want = expected_far_from_zero(x, eps=0.0)
    y, mean, rstd = normkit.layer_norm(x, eps=0.0, return_stats=True)
    want["y"].check(y)
    want["rstd"].check(rstd)
    assert np.array_equal(mean, x[:, 0] + (x - x[:, :1]).mean(-1))


@ops
def test_constant_data_stays_exact_through_two_norms(op):
    """pytorch#181696, pytorch#183601: noise on constant data, amplified by a second norm."""
    ones = torch.ones(6, 120)
    first = getattr(F, op)(ones, (120,))
    for door in (lambda t: F.layer_norm(t, (120,)), normkit.torch.LayerNorm(120), normkit.layer_norm):
        assert not door(first).any()


# --- types


@ops
@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_16_bit_rows_have_the_statistics_and_results_of_their_float32_copies(op, name):
    """pytorch#77507, pytorch#109188, pytorch#66707, onnxruntime#10079: moments in 16 bits; results rounded twice."""
    narrow = [random(rng(), s, DTYPES[name], 200.0, 50.0) for s in ((4, 5120), 5120, 5120, (4, 5120))]
    x, w, b, dy = narrow
    wide = [v.astype(np.float32) for v in narrow]
    got = getattr(normkit, op)(x, w, b, return_stats=True)
    want = getattr(normkit, op)(*wide[:3], return_stats=True)
    assert same_bits(got[0], want[0].astype(x.dtype))
    assert all(same_bits(a, e) for a, e in zip(got[1:], want[1:], strict=True))
    gradients = getattr(normkit, op + "_backward")(dy, x, w)
    for a, e in zip(gradients, getattr(normkit, op + "_backward")(wide[3], *wide[:2]), strict=True):
        assert same_bits(a, e.astype(x.dtype))


@ops
def test_every_mix_of_types_is_right_or_refused(op):
    """vllm#48324, aiter#4780, xla#10875, transformers#30236: the bytes of one type read as another, or a result of
    another type than x's."""
    right = 0
    for names in itertools.product(DTYPES, repeat=4):
        dtypes = [DTYPES[n] for n in names]
        x, w, b, r = (random(rng(), s, d) for s, d in zip(((3, 70), 70, 70, (3, 70)), dtypes, strict=True))
        if not all(d in (dtypes[0], np.float32) for d in dtypes):
            with pytest.raises(TypeError, match=f"{op}: (weight|bias|residual) has dtype"):
                getattr(normkit, op)(x, w, b, residual=r)
            continue
        y, h = getattr(normkit, op)(x, w, b, residual=r)
        assert y.dtype == x.dtype
        want = reference.forward(op, x, w, b, residual=r)
        want["y"].check(y, str(names))
        assert same_bits(h, want["h"])
        right += 1
    assert right == 1 + 3 * 8  # float32 with itself; each other type with itself or float32 in three places


def test_one_plus_weight_is_added_in_float32():
    """vllm#29810: 1 + 15.8125 is 16.75 in bfloat16, and y 25.125 in place of 25.25."""
    x = np.array([1.5] * 3 + [0.5] * 5).astype(bfloat16)[None]  # mean square 1
    w = np.full(8, 15.8125).astype(bfloat16)
    y = normkit.rms_norm(x, w, eps=0.0, weight_offset=1.0)
    assert (y[0, :3] == bfloat16.type(25.25)).all()
    _, dweight, _ = normkit.rms_norm_backward(np.ones_like(x), x, w, eps=0.0, weight_offset=1.0)
    assert same_bits(dweight, x[0])


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 2e4])
def test_gradient_of_a_16_bit_norm_keeps_the_norm_in_float32(name, size):
    """FlagGems#4381: 1 / norm^3 in half precision."""
    x = (random(rng(), (5, 2), np.float32, 0.5, 1.0) * size).astype(DTYPES[name])
    dy = random(rng(), (5, 2), x.dtype)
    want = reference.backward("l2_norm", dy, x)
    for value, key in zip(normkit.l2_norm_backward(dy, x), want, strict=True):
        want[key].check(value.astype(x.dtype) if key == "dx" else value, key)


# --- shapes


@types
def test_one_element_per_statistic_has_one_rule_for_every_batch(name):
    """pytorch#19250, pytorch#45687, onnxruntime#25896: zeros or an error, by the size of the batch."""
    dtype = DTYPES[name]
    w, b = np.array([2.5]).astype(dtype), np.array([-0.75]).astype(dtype)
    for batch in ((1,), (2,), (300,), (1, 1), (2, 3), ()):
        x = random(rng(), (*batch, 1), dtype, 10.0)
        assert (normkit.layer_norm(x, w, b) == b).all()
        dx, dweight, dbias = normkit.layer_norm_backward(np.ones_like(x), x, w)
        assert not dx.any() and not dweight.any() and dbias[0] == x.size
        for op in ("rms_norm", "l2_norm"):
            reference.forward(op, x, w, b)["y"].check(getattr(normkit, op)(x, w, b))


@types
@ops
@pytest.mark.parametrize("shape", [(0, 10), (0, 3, 10), (2, 0, 10)])
def test_no_rows_forward_and_backward(op, name, shape):
    """pytorch#39049, pytorch#40806: crashes."""
    x = to_torch(np.empty(shape, DTYPES[name])).requires_grad_()
    w, b = (to_torch(np.ones(10, DTYPES[name])).requires_grad_() for _ in range(2))
    y, h = getattr(F, op)(x, (10,), w, bias=b, residual=x)
    (y.sum() + h.sum()).backward()
    assert y.shape == h.shape == x.grad.shape == shape
    for p in (w, b):
        assert p.grad.dtype == p.dtype and torch.equal(p.grad, torch.zeros_like(p))


def test_an_axis_without_elements():
    """onnxruntime#32020: undefined. Here an error; in torch's normalize, which allows it, an empty result."""
    for op in OPS:
        with pytest.raises(ValueError, match=rf"{op}: x has the shape \(2, 0\): dimension 1 is normalized"):
            getattr(normkit, op)(np.empty((2, 0), np.float32))
    for x in (torch.empty(2, 0), torch.empty(2, 0, requires_grad=True)):
        assert F.normalize(x, dim=1).shape == (2, 0)


LAYOUTS = {
    "contiguous": lambda a: a,
    "middle of wider rows": lambda a: np.pad(a, [(0, 0)] * (a.ndim - 1) + [(64, 32)])[..., 64:-32],
    "column major": np.asfortranarray,
    "every second element": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    "rows far apart": lambda a: np.repeat(a, 3, axis=0)[::3],
}


@given(st.sampled_from(OPS), st.sampled_from([*DTYPES]), st.lists(st.sampled_from([*LAYOUTS]), min_size=8, max_size=8))
def test_every_operand_has_its_own_strides(op, name, layouts):
    """vllm-xpu-kernels#397, TensorRT-LLM#14810, LightLLM#1467: one stride used for all tensors or both sweeps."""
    places = [LAYOUTS[layout] for layout in layouts]
    g = rng()
    x, r, w, b, dy = (random(g, s, DTYPES[name]) for s in ((2, 3, 33), (2, 3, 33), 33, 33, (2, 3, 33)))
    out, h, dx = (place(np.zeros_like(x)) for place in places[:3])
    placed = [place(a) for place, a in zip(places[3:], (x, r, w, b, dy), strict=True)]
    getattr(normkit, op)(placed[0], *placed[2:4], residual=placed[1], out=out, residual_out=h)
    want_y, want_h = getattr(normkit, op)(x, w, b, residual=r)
    assert same_bits(out, want_y) and same_bits(h, want_h)
    got = getattr(normkit, op + "_backward")(placed[4], placed[0], placed[2], residual=placed[1], dx=dx)
    want = getattr(normkit, op + "_backward")(dy, x, w, residual=r)
    assert all(same_bits(a, e) for a, e in zip(got, want, strict=True))


def test_rows_further_apart_than_32_bits(tmp_path):
    """pytorch#181555, apex#1845, Paddle#79528: offsets in 32 bits. The file between the rows is a hole."""
    memory = np.memmap(tmp_path / "rows", np.float16, "w+", shape=2**32 + 64)
    rows = as_strided(memory, (2, 64), (2**33, 2))
    rows[:] = random(rng(), (2, 64), np.float16)
    w, dy = random(rng(), 64, np.float16), random(rng(), (2, 64), np.float16)
    for op in OPS:
        assert same_bits(getattr(normkit, op)(rows, w), getattr(normkit, op)(rows.copy(), w))
        for a, e in zip(*(getattr(normkit, op + "_backward")(dy, x, w) for x in (rows, rows.copy())), strict=True):
            assert same_bits(a, e)


REFUSED = [  # shape of x, axis, shape of weight or bias, what the message says
    ((1, 3, 2), 1, (2,), "2 elements, expected 6"),  # onnxruntime#12917: read past the end
    ((1, 1), -1, (2,), "2 elements, expected 1"),  # onnxruntime#31980: would widen x
    ((2, 8), -1, (1, 1, 8), r"shape \(1, 1, 8\), expected \(8\)"),  # onnxruntime#27455
    ((4, 80), -1, (64,), "64 elements, expected 80"),
    ((4, 8), -1, (4, 8), r"32 elements, expected 8|shape \(4, 8\), expected \(8\)"),
]


@ops
@pytest.mark.parametrize("operand", ["weight", "bias"])
@pytest.mark.parametrize(("shape", "axis", "parameter", "message"), REFUSED)
def test_parameters_of_another_shape_are_refused(op, operand, shape, axis, parameter, message):
    x, p = np.ones(shape, np.float32), np.ones(parameter, np.float32)
    with pytest.raises(ValueError, match=f"{op}: {operand} has .*({message})"):
        getattr(normkit, op)(x, axis=axis, **{operand: p})
    if operand == "weight":
        with pytest.raises(ValueError, match=f"{op}_backward: weight has .*({message})"):
            getattr(normkit, op + "_backward")(x, x, p, axis=axis)


def test_modules_without_parameters_check_the_width_too():
    """pytorch#109652, pytorch#50134, pytorch#83221: a wrong width, or a width that is no number, was ignored."""
    for module in (normkit.torch.LayerNorm, normkit.torch.RMSNorm):
        norm = module(64, elementwise_affine=False)
        for x in (torch.ones(4, 80), torch.ones(4, 80, requires_grad=True)):
            with pytest.raises(ValueError, match=r"\[4, 80\].*\[64\]"):
                norm(x)
        with pytest.raises(TypeError):
            module("max")(torch.ones(4, 80))


@types
@ops
def test_dims_that_are_not_the_last_are_normalized_by_a_view(op, name):
    """keras#19642: axes (-2, -3) with a weight of shape (6, 5) failed to broadcast."""
    x = random(rng(), (2, 6, 5, 3), DTYPES[name])
    w, b = (random(rng(), (6, 5), DTYPES[name]) for _ in range(2))
    y = np.empty_like(x)
    getattr(normkit, op)(x.transpose(0, 3, 1, 2), w, b, axis=-2, out=y.transpose(0, 3, 1, 2))
    want = reference.forward(op, np.ascontiguousarray(x.transpose(0, 3, 1, 2)), w, b, axis=-2)["y"]
    want.check(np.ascontiguousarray(y.transpose(0, 3, 1, 2)))


# --- determinism


@types
@ops
def test_a_row_has_the_same_bits_in_any_split_of_4096_rows(op, name):
    """vllm#48271, sglang#28787, RL-Kernel#145: other bits in batches of up to 255 rows, or at other positions."""
    x, dy = (random(rng(), (4096, 96), DTYPES[name]) for _ in range(2))
    whole, gradient = getattr(normkit, op)(x), getattr(normkit, op + "_backward")(dy, x)[0]
    for size in (1, 7, 255, 256, 1000):
        parts = [slice(i, i + size) for i in range(0, 512 if size < 8 else 4096, size)]
        for p in parts:
            assert same_bits(getattr(normkit, op)(x[p]), whole[p])
            assert same_bits(getattr(normkit, op + "_backward")(dy[p], x[p])[0], gradient[p])


@pytest.mark.parametrize("kind", ["layer_norm over two dims", "rms_norm"])
def test_compiled_equals_eager(kind):
    """pytorch#141727, pytorch#158699, pytorch#143182: 7e-4 apart in float32 over a million elements, an ulp of bf16."""
    torch._dynamo.reset()
    if kind == "rms_norm":
        x, norm = torch.randn(2, 157, 1024, dtype=torch.bfloat16), normkit.torch.RMSNorm(1024, dtype=torch.bfloat16)
    else:
        x, norm = torch.rand(1000, 1000), normkit.torch.LayerNorm([1000, 1000])
    with torch.no_grad():
        eager = norm(x)
        assert torch.equal(torch.compile(norm, fullgraph=True)(x), eager)
    axis = -len(norm.normalized_shape)
    operation, eps = ("rms_norm", 2.0**-23) if kind == "rms_norm" else ("layer_norm", norm.eps)
    reference.forward(operation, to_numpy(x), axis=axis, eps=eps)["y"].check(to_numpy(eager))


# --- options


@types
def test_eps_zero_is_allowed(name):
    """pytorch#173337: refused although the variance is positive."""
    x = random(rng(), (3, 16), DTYPES[name])
    t = to_torch(x)
    for module in (
        normkit.torch.LayerNorm(16, eps=0.0, dtype=t.dtype),
        normkit.torch.RMSNorm(16, eps=0.0, dtype=t.dtype),
    ):
        op = "layer_norm" if isinstance(module, torch.nn.LayerNorm) else "rms_norm"
        for mode in (module.train(), module.eval()):
            reference.forward(op, x, eps=0.0)["y"].check(to_numpy(mode(t)))


@ops
@types
def test_zero_centred_weight_of_zero_is_a_weight_of_one(op, name):
    """TransformerEngine#67: the + 1 was missing in the backward."""
    dtype = to_torch(np.zeros(1, DTYPES[name])).dtype
    x, dy = (to_torch(random(rng(), (5, 48), DTYPES[name])) for _ in range(2))
    gradients = []
    for value, offset in ((0.0, 1.0), (1.0, 0.0)):
        leaves = x.clone().requires_grad_(), torch.full((48,), value, dtype=dtype, requires_grad=True)
        y = getattr(F, op)(leaves[0], (48,), leaves[1], weight_offset=offset)
        y.backward(dy)
        gradients.append((y.detach(), leaves[0].grad, leaves[1].grad))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert gradients[0][1].any()


@types
@ops
def test_inputs_keep_their_bytes(op, name):
    """nano-vllm#170: a conversion that is no copy, and then a sum in place."""
    g = rng()
    inputs = [random(g, s, DTYPES[name]) for s in ((4, 64), 64, 64, (4, 64), (4, 64))]
    before = [a.tobytes() for a in inputs]
    x, w, b, r, dy = inputs
    for rounding in ("once", "before_weight"):
        getattr(normkit, op)(x, w, b, residual=r, rounding=rounding)
        getattr(normkit, op + "_backward")(dy, x, w, residual=r, dresidual_out=dy, rounding=rounding)
    assert [a.tobytes() for a in inputs] == before
