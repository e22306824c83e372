"""Derivatives of first and higher order, and autograd's own machinery around them."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint
from torch_helpers import KINDS, F, array, call, check_backward, close_to_torch, finite, make

DOUBLE = torch.float64
OPTIONS = [
    {},
    {"weight_offset": 1.0},
    {"eps_mode": "outside", "eps": 1e-2},
    {"eps_mode": "clamp", "eps": 0.3},
    {"eps_mode": "clamp", "eps": 5.0},
    {"eps": 0.0},
]


def leaves(*tensors):
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("w_dtype", ["same", torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_the_reference(kind, dtype, w_dtype):
    w_dtype = dtype if w_dtype == "same" else w_dtype
    if dtype == DOUBLE and w_dtype != DOUBLE:
        w_dtype = DOUBLE
    x, weight, bias = leaves(make(6, 5, 70, dtype=dtype), make(70, dtype=w_dtype, seed=1), make(70, dtype=w_dtype))
    dy = make(6, 5, 70, dtype=dtype, seed=3)
    call(kind, x, weight, bias).backward(dy)
    assert (x.grad.dtype, weight.grad.dtype, bias.grad.dtype) == (dtype, w_dtype, w_dtype)
    check_backward(kind, {"dx": x.grad, "dweight": weight.grad, "dbias": bias.grad}, dy, x, weight)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_gradients_agree_with_torch(kind):
    tensors = leaves(make(9, 4, 32), make(32, seed=1))
    others = leaves(*tensors)
    dy = make(9, 4, 32, seed=2)
    call(kind, *tensors).backward(dy)
    getattr(torch.nn.functional, kind)(others[0], (32,), others[1], eps=1e-5).backward(dy)
    for ours, theirs in zip(tensors, others, strict=True):
        close_to_torch(ours.grad, theirs.grad)


@pytest.mark.parametrize("weight", [False, True], ids=["", "weight"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_first_and_second_derivatives_for_every_combination_of_weight_and_bias(kind, weight, bias):
    w = make(5, dtype=DOUBLE, seed=1, requires_grad=True) if weight else None
    b = make(5, dtype=DOUBLE, seed=2, requires_grad=True) if bias else None
    x = make(3, 2, 5, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(lambda x, w, b: call(kind, x, w, b), (x, w, b), check_batched_grad=True)
    assert gradgradcheck(lambda x, w, b: call(kind, x, w, b), (x, w, b))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_first_and_second_derivatives_under_every_option(kind, options):
    x, w = make(3, 6, dtype=DOUBLE, requires_grad=True), make(6, dtype=DOUBLE, seed=1, requires_grad=True)
    assert gradcheck(lambda x, w: call(kind, x, w, **options), (x, w))
    assert gradgradcheck(lambda x, w: call(kind, x, w, **options), (x, w))


@pytest.mark.parametrize("stats", ["rounded", "unrounded"])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_through_the_residual_and_its_sum(kind, stats):
    x, r, w = (make(3, 4, dtype=DOUBLE, seed=s, requires_grad=True) for s in range(3))
    w = w[0].detach().clone().requires_grad_()

    def both(x, r, w):
        return call(kind, x, w, residual=r, residual_stats=stats)

    for output in (both, lambda *t: both(*t)[0], lambda *t: both(*t)[1] * 2, lambda *t: sum(both(*t))):
        assert gradcheck(output, (x, r, w))
    assert gradgradcheck(both, (x, r, w))


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)])
@pytest.mark.parametrize("options", [{}, {"rounding": "before_weight"}, {"residual_stats": "unrounded"}], ids=str)
def test_residual_gradients_agree_with_the_reference(dtypes, options):
    x, r, w = leaves(make(8, 40, dtype=dtypes[0]), make(8, 40, dtype=dtypes[1], seed=1), make(40, dtype=dtypes[0]))
    dy, dh = make(8, 40, dtype=dtypes[0], seed=2), make(8, 40, dtype=dtypes[1], seed=3)
    y, h = F.rms_norm(x, (40,), w, 1e-5, residual=r, **options)
    torch.autograd.backward((y, h), (dy, dh))
    assert x.grad.dtype == dtypes[0] and r.grad.dtype == dtypes[1]
    check_backward("rms_norm", {"dx": r.grad, "dweight": w.grad}, dy, x, w, residual=r, dresidual_out=dh, **options)
    assert torch.equal(x.grad, r.grad.to(dtypes[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_third_derivative_equals_that_of_primitive_operators(kind):
    x = make(2, 4, dtype=DOUBLE, requires_grad=True)
    v = make(2, 4, dtype=DOUBLE, seed=1)

    def primitive(x):
        centred = x - x.mean(-1, keepdim=True) if kind == "layer_norm" else x
        q = centred.square()
        root = q.sum(-1, keepdim=True).sqrt() if kind == "l2_norm" else (q.mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / root

    def third(f):
        result = (f(x) * v).sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(result, x, create_graph=True)
            result = (g * v).sum()
        return g

    torch.testing.assert_close(third(lambda x: call(kind, x)), third(primitive), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_first_gradients_are_the_same_with_and_without_create_graph(kind):
    x, w = leaves(make(5, 16), make(16, seed=1, mean=2))
    dy = make(5, 16, seed=2)
    plain = torch.autograd.grad(call(kind, x, w), (x, w), dy)
    graph = torch.autograd.grad(call(kind, x, w), (x, w), dy, create_graph=True)
    for a, b in zip(plain, graph, strict=True):
        close_to_torch(a, b.detach())
        assert b.grad_fn is not None


def test_second_derivative_where_the_weight_depends_on_the_input():
    x = make(3, 4, dtype=DOUBLE, requires_grad=True)
    assert gradgradcheck(lambda x: F.rms_norm(x, (4,), x[0].sin() + x[1], 1e-3), (x,))


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)])
def test_only_what_requires_a_gradient_gets_one(wanted):
    tensors = [make(4, 12), make(12, seed=1), make(12, seed=2)]
    for t, w in zip(tensors, wanted, strict=True):
        t.requires_grad_(bool(w))
    y = F.layer_norm(tensors[0], (12,), *tensors[1:])
    dy = make(4, 12, seed=3)
    y.backward(dy)
    for t, w, name in zip(tensors, wanted, ("dx", "dweight", "dbias"), strict=True):
        assert (t.grad is not None) == bool(w)
        if w:
            check_backward("layer_norm", {name: t.grad}, dy, tensors[0], tensors[1])


def test_modified_inputs_are_detected():
    for changed in ("x", "weight", "h"):
        x, w, r = make(4, 8), make(8, seed=1, requires_grad=True), make(4, 8, seed=2)
        y, h = F.layer_norm(x, (8,), w, residual=r) if changed == "h" else (F.layer_norm(x, (8,), w), None)
        with torch.no_grad():
            {"x": x, "weight": w, "h": h}[changed].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_bias_may_change_before_the_backward():
    x, b = leaves(make(4, 8), make(8))
    y = F.layer_norm(x, (8,), None, b)
    with torch.no_grad():
        b.add_(1)
    y.sum().backward()
    assert torch.equal(b.grad, torch.full((8,), 4.0))


def test_saved_tensors_go_through_the_hooks():
    packed = []

    def pack(t):
        packed.append(t.shape)
        return array(t)

    x, w = leaves(make(4, 8), make(8))
    plain = torch.autograd.grad(F.layer_norm(x, (8,), w).sum(), (x, w))
    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        y = F.layer_norm(x, (8,), w)
    hooked = torch.autograd.grad(y.sum(), (x, w))
    assert {(4, 8), (8,), (4,)} <= {tuple(s) for s in packed}
    assert all(torch.equal(a, b) for a, b in zip(plain, hooked, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    x, w = leaves(make(4, 8), make(8))
    plain = torch.autograd.grad(F.rms_norm(x.sin(), (8,), w).cos().sum(), (x, w))
    checkpoint(lambda t: F.rms_norm(t.sin(), (8,), w).cos(), x, use_reentrant=reentrant).sum().backward()
    assert torch.equal(x.grad, plain[0]) and torch.equal(w.grad, plain[1])


def test_expanded_and_strided_incoming_gradients():
    x, w = leaves(make(6, 16), make(16))
    y = F.layer_norm(x, (16,), w)
    for dy in (torch.ones(()).expand(6, 16), make(16, 6).t(), torch.complex(y, -y).detach().conj().imag):
        a = torch.autograd.grad(y, (x, w), dy, retain_graph=True)
        b = torch.autograd.grad(y, (x, w), dy.resolve_neg().clone().contiguous(), retain_graph=True)
        assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def test_batched_gradients():
    x = make(3, 5, requires_grad=True)
    batched = torch.autograd.functional.jacobian(lambda t: F.layer_norm(t, (5,)), x, vectorize=True)
    single = torch.autograd.functional.jacobian(lambda t: F.layer_norm(t, (5,)), x)
    torch.testing.assert_close(batched, single)


def test_statistics_carry_no_gradient():
    x = make(3, 5, requires_grad=True)
    y, mean, rstd = F.layer_norm(x, (5,), return_stats=True)
    assert y.requires_grad and not mean.requires_grad and not rstd.requires_grad
    y.sum().backward()
    assert finite(x.grad)


def test_gradients_accumulate_and_the_graph_can_be_kept():
    x, w = leaves(make(3, 5), make(5))
    y = F.rms_norm(x, (5,), w).sum()
    y.backward(retain_graph=True)
    once = w.grad.clone()
    y.backward()
    assert torch.equal(w.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gradients_are_exact_in_rows_far_from_zero(dtype):
    """The statistics are saved in f64: a mean of thousands of deviations costs nothing."""
    x = make(4, 256, dtype=DOUBLE, mean=0, scale=1) + 4096
    x = x.to(dtype).requires_grad_()
    dy = make(4, 256, dtype=dtype, seed=1)
    F.layer_norm(x, (256,)).backward(dy)
    check_backward("layer_norm", {"dx": x.grad}, dy, x)
