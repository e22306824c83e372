"""The functional forms: values against the f64 reference, options, outputs, errors."""

import normkit
import numpy as np
import pytest
import torch
from torch_helpers import DTYPES, KINDS, F, array, call, check_forward, close_to_torch, make


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("affine", ["none", "weight", "bias", "both"])
def test_values_agree_with_the_reference(kind, dtype, affine):
    x = make(3, 5, 37, dtype=dtype)
    weight = make(37, dtype=dtype, seed=1, mean=1) if affine in ("weight", "both") else None
    bias = make(37, dtype=dtype, seed=2) if affine in ("bias", "both") else None
    y = call(kind, x, weight, bias)
    assert y.dtype == dtype and y.is_contiguous()
    check_forward(kind, y, x, weight, bias)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    "options",
    [
        {"weight_offset": 1.0},
        {"rounding": "before_weight"},
        {"eps_mode": "outside", "eps": 1e-3},
        {"eps_mode": "clamp", "eps": 0.5},
        {"eps": 0.0},
        {"weight_offset": 1.0, "rounding": "before_weight", "eps": 1e-2},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_options_mean_what_the_reference_says(kind, options, dtype):
    x, weight = make(6, 48, dtype=dtype), make(48, dtype=dtype, seed=1)
    eps = options.get("eps", 1e-5)
    y = call(kind, x, weight, **{**options, "eps": eps})
    check_forward(kind, y, x, weight, **{**options, "eps": eps})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_f32_weights_beside_16_bit_input_give_the_type_of_the_input(kind, dtype):
    x, weight, bias = make(4, 33, dtype=dtype), make(33, seed=1), make(33, seed=2)
    y = call(kind, x, weight, bias)
    assert y.dtype == dtype
    check_forward(kind, y, x, weight, bias)


@pytest.mark.parametrize("stats", ["rounded", "unrounded"])
@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)])
def test_residual_gives_the_norm_of_the_sum_and_the_sum(dtypes, stats):
    x, residual = make(4, 64, dtype=dtypes[0]), make(4, 64, dtype=dtypes[1], seed=1)
    weight = make(64, dtype=dtypes[0], seed=2)
    y, h = F.rms_norm(x, (64,), weight, 1e-6, residual=residual, residual_stats=stats)
    expected = check_forward("rms_norm", y, x, weight, residual=residual, eps=1e-6, residual_stats=stats)
    assert h.dtype == dtypes[1] and np.array_equal(array(h), expected["h"])


def test_rounded_residual_has_the_bits_of_two_separate_calls():
    x, residual, weight = (make(8, 256, dtype=torch.bfloat16, seed=s) for s in range(3))
    weight = weight[0]
    y, h = F.layer_norm(x, (256,), weight, residual=residual)
    assert torch.equal(h, x + residual) and torch.equal(y, F.layer_norm(x + residual, (256,), weight))


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dims", [1, 2])
def test_agrees_with_torch(kind, dtype, dims):
    x = make(4, 6, 20, dtype=dtype)
    weight = make(*x.shape[-dims:], dtype=dtype, seed=1)
    theirs = getattr(torch.nn.functional, kind)(x, x.shape[-dims:], weight, eps=1e-5)
    close_to_torch(call(kind, x, weight, dims=dims, eps=1e-5), theirs)


def test_rms_norm_without_eps_uses_the_machine_epsilon_of_the_compute_type():
    for dtype, eps in ((torch.float32, 2**-23), (torch.bfloat16, 2**-23), (torch.float64, 2**-52)):
        x = make(3, 16, dtype=dtype, scale=1e-4, mean=0)
        assert torch.equal(F.rms_norm(x, (16,)), F.rms_norm(x, (16,), eps=eps))
        assert not torch.equal(F.rms_norm(x, (16,)), F.rms_norm(x, (16,), eps=1e-5))


def test_statistics_are_f64_of_the_batch_shape():
    x = make(2, 3, 40, dtype=torch.bfloat16)
    y, mean, rstd = F.layer_norm(x, (40,), return_stats=True)
    expected = check_forward("layer_norm", y, x)
    for name, value in (("mean", mean), ("rstd", rstd)):
        assert value.dtype == torch.float64 and value.shape == (2, 3)
        expected[name].check(array(value), name)
    assert len(F.rms_norm(x, (40,), return_stats=True)) == 2
    assert len(F.layer_norm(x, (40,), residual=x, return_stats=True)) == 4


def test_out_and_residual_out_receive_the_results():
    x, residual = make(4, 32), make(4, 32, seed=1)
    y, h = F.rms_norm(x, (32,), residual=residual)
    out, residual_out = torch.empty(4, 32), torch.empty(4, 32)
    result = F.rms_norm(x, (32,), residual=residual, out=out, residual_out=residual_out)
    assert result[0] is out and result[1] is residual_out
    assert torch.equal(out, y) and torch.equal(residual_out, h)
    with pytest.raises(RuntimeError, match="do not support autograd"):
        F.rms_norm(x.requires_grad_(), (32,), out=out)
    with pytest.raises(TypeError, match=r"rms_norm: weight is a list, expected a torch\.Tensor"):
        F.rms_norm(residual, (32,), [1.0] * 32, out=out)


def test_input_is_never_written_to():
    x, weight = make(5, 64), make(64, seed=1)
    before = x.clone(), weight.clone()
    for kind in KINDS:
        call(kind, x, weight, residual=x, rounding="before_weight")
    assert torch.equal(x, before[0]) and torch.equal(weight, before[1])


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t().contiguous().t(),
        lambda t: torch.stack((t, t), -1)[..., 0],
        lambda t: t[:, 1:33].expand(t.shape[0], 32),
        lambda t: t[:1].expand(7, t.shape[1]),
        lambda t: torch.complex(t, -t).conj().imag,  # carries a lazy minus sign
        lambda t: torch.complex(t, -t)[:, :1].conj().imag,
    ],
)
def test_strided_and_lazily_negated_inputs_equal_their_copies(view):
    x = view(make(6, 64))
    for kind in KINDS:
        weight = make(x.shape[-1], seed=1)
        assert torch.equal(call(kind, x, weight), call(kind, x.resolve_neg().clone().contiguous(), weight))


def test_the_bits_are_those_of_the_arrays_api():
    x, weight = make(6, 300, dtype=torch.bfloat16), make(300, dtype=torch.bfloat16, seed=1)
    assert torch.equal(F.rms_norm(x, (300,), weight, 1e-6), normkit.rms_norm(x, weight, eps=1e-6))
    assert np.array_equal(array(F.layer_norm(x, (300,))), normkit.layer_norm(array(x)))


def test_more_dimensions_than_the_engine_takes():
    x = make(*([1] * 7), 3, 16)
    assert x.dim() == 9
    close_to_torch(F.layer_norm(x, (16,)), torch.nn.functional.layer_norm(x, (16,)))
    y, h = F.rms_norm(x, (16,), residual=x)
    assert y.shape == h.shape == x.shape


def test_no_rows():
    x = torch.empty(0, 8, requires_grad=True)
    weight = torch.ones(8, requires_grad=True)
    y = F.layer_norm(x, (8,), weight)
    y.sum().backward()
    assert y.shape == (0, 8) and x.grad.shape == (0, 8) and torch.equal(weight.grad, torch.zeros(8))


X, W = torch.ones(2, 4), torch.ones(4)
MISTAKES = [
    (
        lambda: F.layer_norm(X, (5,)),
        ValueError,
        r"layer_norm: input has shape \[2, 4\], expected last dimensions \[5\]",
    ),
    (lambda: F.rms_norm(X, (4,), torch.ones(3)), ValueError, r"rms_norm: weight has shape \[3\], expected \[4\]"),
    (lambda: F.rms_norm(X, (4,), torch.ones(1)), ValueError, r"rms_norm: weight has shape \[1\], expected \[4\]"),
    (lambda: F.layer_norm(X, (4,), None, torch.ones(1)), ValueError, r"layer_norm: bias has shape \[1\]"),
    (lambda: F.layer_norm(X, ()), ValueError, r"layer_norm: input has shape"),
    (lambda: F.layer_norm(X, (4,), residual=torch.ones(4)), ValueError, r"layer_norm: residual has shape \[4\]"),
    (lambda: F.layer_norm(X, (4,), eps=-1.0, residual=X), ValueError, "layer_norm: eps is -1"),
    (lambda: F.layer_norm(X, (4,), eps=float("nan")), ValueError, "layer_norm: eps is nan"),
    (lambda: F.layer_norm(X, (4,), rounding="twice"), ValueError, "layer_norm: rounding is 'twice'"),
    (lambda: F.rms_norm(X, (4,), eps_mode="near"), ValueError, "rms_norm: eps_mode is 'near'"),
    (lambda: F.rms_norm(X, (4,), weight_offset=1.0), ValueError, "rms_norm: weight_offset"),
    (lambda: F.layer_norm(torch.ones(2, 0), (0,)), ValueError, "layer_norm"),
    (lambda: F.layer_norm(None, (4,)), TypeError, r"layer_norm: input is a NoneType, expected a torch\.Tensor"),
    (lambda: F.rms_norm("x", (4,)), TypeError, "rms_norm: input is a str"),
    (lambda: F.layer_norm(X, (4,), W, torch.ones(1)), ValueError, r"layer_norm: bias has shape \[1\], expected \[4\]"),
    (lambda: F.rms_norm(X, (4,), [1.0] * 4), TypeError, r"rms_norm: weight is a list, expected a torch\.Tensor"),
    (
        lambda: F.layer_norm(X, (4,), np.ones(4)),
        TypeError,
        r"layer_norm: weight is a ndarray, expected a torch\.Tensor",
    ),
    (lambda: F.layer_norm(X, (4,), W, [0.0] * 4), TypeError, r"layer_norm: bias is a list, expected a torch\.Tensor"),
    (lambda: F.l2_norm(X, (4,), 2.0), TypeError, r"l2_norm: weight is a float, expected a torch\.Tensor"),
    (lambda: F.rms_norm(X, (4,), residual=1.0), TypeError, r"rms_norm: residual is a float, expected a torch\.Tensor"),
    (lambda: F.layer_norm(X, (4,), W, eps="1e-5"), TypeError, "layer_norm: eps is '1e-5', expected a number"),
    (lambda: F.layer_norm(X, (4,), eps=None), TypeError, "layer_norm: eps is None, expected a number"),
    (lambda: F.l2_norm(X, (4,), eps=[1e-5]), TypeError, r"l2_norm: eps is \[1e-05\], expected a number"),
    (lambda: F.rms_norm(X, 4.0), TypeError, "rms_norm: normalized_shape is a float, expected an int or a sequence"),
    (lambda: F.layer_norm(X, None), TypeError, "layer_norm: normalized_shape is a NoneType, expected an int or"),
    (lambda: F.layer_norm(X, "4"), TypeError, "layer_norm: normalized_shape is a str, expected an int or a sequence"),
    (lambda: F.l2_norm(X, W), TypeError, "l2_norm: normalized_shape is a Tensor, expected sizes"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m[2])
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_mistakes_raise_and_say_what_was_expected(mistake, grad):
    call, error, message = mistake
    X.requires_grad_(grad)
    try:
        with pytest.raises(error, match=message):
            call()
    finally:
        X.requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_leaves_norms_alone_as_torch_does_on_the_cpu(dtype, x_dtype):
    x, weight = make(4, 32, dtype=x_dtype), make(32, seed=1)
    with torch.autocast("cpu", dtype=dtype):
        theirs = torch.nn.functional.layer_norm(x, (32,), weight)
        ours = F.layer_norm(x, (32,), weight)
        assert F.rms_norm(x, (32,), weight).dtype == torch.nn.functional.rms_norm(x, (32,), weight).dtype
    assert ours.dtype == theirs.dtype == x_dtype
    assert torch.equal(ours, F.layer_norm(x, (32,), weight))


def test_inference_mode():
    x = make(4, 32)
    expected = F.layer_norm(x, (32,))
    with torch.inference_mode():
        assert torch.equal(F.layer_norm(x, (32,)), expected)
        assert torch.equal(F.layer_norm(x.clone(), (32,), torch.ones(32)), expected)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_normalize_agrees_with_torch_over_any_dim(dim, dtype):
    x = make(3, 7, 5, dtype=dtype)
    ours, theirs = F.normalize(x, dim=dim), torch.nn.functional.normalize(x, dim=dim)
    close_to_torch(ours, theirs)
    assert ours.stride() == theirs.stride()
    differentiable = F.normalize(x.clone().requires_grad_(), dim=dim)
    assert torch.equal(differentiable, ours) and differentiable.stride() == ours.stride()
    out = torch.empty_like(x)
    assert F.normalize(x, dim=dim, out=out) is out and torch.equal(out, ours)


def test_normalize_leaves_other_norms_and_several_dims_to_torch():
    x = make(3, 7, 5)
    for options in ({"p": 1.0}, {"p": float("inf")}, {"dim": (1, 2)}, {"p": 3.0, "dim": 0}):
        assert torch.equal(F.normalize(x, **options), torch.nn.functional.normalize(x, **options))
    with pytest.raises(IndexError):
        F.normalize(x, dim=3)
    for eps in (-1.0, float("nan"), float("inf")):
        ours, theirs = F.normalize(x, eps=eps), torch.nn.functional.normalize(x, eps=eps)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    for mistake in ({"dim": True}, {"eps": "1e-12"}, {"eps": None}):
        with pytest.raises(TypeError):
            F.normalize(x, **mistake)


def test_scale_norm_is_l2_norm_with_one_weight():
    x, scale = make(4, 24), torch.tensor([2.5])
    y = F.l2_norm(x, (24,), scale)
    check_forward("l2_norm", y, x, scale)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_types_without_a_norm_are_refused(dtype):
    x = torch.ones(2, 4).to(dtype)
    with pytest.raises(TypeError, match=f"l2_norm: input has type {dtype}"):
        F.l2_norm(x, 4)
    for norm in (F.layer_norm, F.rms_norm):
        for options in (
            {"residual": x},
            {"eps_mode": "outside"},
            {"rounding": "before_weight"},
            {"weight_offset": 1.0, "weight": torch.ones(4)},
            {"return_stats": True},
        ):
            with pytest.raises(TypeError, match=f"{norm.__name__}: input has type {dtype}"):
                norm(x, 4, **options)
