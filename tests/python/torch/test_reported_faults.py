"""Faults that users of other libraries reported, as seen from PyTorch. Each test is named for what it checks."""

import normkit.torch
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch_helpers import F, array, check_backward, check_forward, finite, make


def test_constant_rows_give_exactly_zero():
    x = torch.tensor([[2.0, 2.0], [14.0, 14.0], [1e30, 1e30], [0.1, 0.1]])
    assert torch.equal(F.layer_norm(x, (2,), eps=1e-6), torch.zeros(4, 2))
    bias = torch.tensor([3.0, 4.0])
    assert torch.equal(F.layer_norm(x, (2,), None, bias, 1e-6), bias.expand(4, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_small_eps_is_not_rounded_to_the_16_bit_type(dtype):
    zeros = torch.zeros(1, 10, dtype=dtype)
    assert torch.equal(F.layer_norm(zeros, (10,), eps=1e-12), zeros)
    assert torch.equal(F.rms_norm(zeros, (10,), eps=1e-12), zeros)
    assert torch.equal(F.normalize(zeros), zeros)
    assert torch.equal(F.normalize(zeros[0], dim=0), zeros[0])
    small = torch.full((1, 8), 1e-4, dtype=dtype)
    assert torch.allclose(F.rms_norm(small, (8,), eps=1e-12).float(), torch.tensor(0.99995), rtol=1e-2)


def test_large_16_bit_values_do_not_overflow_on_the_way():
    x = torch.full((2, 512), 8000.0, dtype=torch.float16)
    assert torch.equal(F.rms_norm(x, (512,), eps=1e-6), torch.ones_like(x))
    signs = torch.tensor([1.0, -1.0]).repeat(256).half()
    assert torch.equal(F.layer_norm(512 * signs[None], (512,)), signs[None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_16_bit_results_are_the_f32_results_rounded_once(kind, dtype):
    for x, eps in ((0.1 * torch.rand(1, 5, 128), 1e-5), (make(2, 12), 0.0)):
        x = x.to(dtype)
        n = x.shape[-1:]
        ours = getattr(F, kind)(x, n, eps=eps)
        wide = getattr(F, kind)(x.double(), n, eps=eps)
        # Rounding f64 is the exact answer; f32 sits on the other side of a boundary once in thousands of elements.
        assert (ours != wide.to(dtype)).sum() <= 1
        check_forward(kind, ours, x, eps=eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_f32_weights_do_not_widen_the_output(dtype):
    x = make(4, 16, dtype=dtype)
    for module in (normkit.torch.RMSNorm(16), normkit.torch.LayerNorm(16)):
        assert module(x).dtype == dtype
        with torch.no_grad():
            assert module(x).dtype == dtype


def test_one_plus_weight_is_added_in_f32():
    x = torch.tensor([[1.5, 1.5], [1.5, -1.5]], dtype=torch.bfloat16)
    weight = torch.full((2,), 15.8125, dtype=torch.bfloat16)
    y = F.rms_norm(x, (2,), weight, 1.25, weight_offset=1.0)  # rms 1.5, with eps the root is sqrt(3.5)
    check_forward("rms_norm", y, x, weight, eps=1.25, weight_offset=1.0)
    exact = F.rms_norm(torch.ones(1, 2, dtype=torch.bfloat16), (2,), weight, 0.0, weight_offset=1.0)
    assert torch.equal(exact, torch.full((1, 2), 16.8125).bfloat16())


def test_16_bit_weight_gradients_are_not_summed_in_16_bits():
    x = torch.ones(4096, 2, dtype=torch.bfloat16)
    weight = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    F.rms_norm(x, (2,), weight, 0.0).backward(torch.ones_like(x))
    assert torch.equal(weight.grad, torch.full((2,), 4096.0).bfloat16())


def test_double_backward_with_a_weight_other_than_one():
    x = make(2, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    plain = torch.autograd.grad(F.layer_norm(x, (4,), weight).sin().sum(), (x, weight))
    graph = torch.autograd.grad(F.layer_norm(x, (4,), weight).sin().sum(), (x, weight), create_graph=True)
    for a, b in zip(plain, graph, strict=True):
        torch.testing.assert_close(a, b)
    assert gradgradcheck(lambda x, w: F.layer_norm(x, (4,), w), (x, weight))


def test_second_order_with_a_bias_and_no_weight_or_a_weight_and_no_bias():
    x, p = make(2, dtype=torch.float64, requires_grad=True), make(2, dtype=torch.float64, seed=1, requires_grad=True)
    assert gradgradcheck(lambda x, b: F.layer_norm(x, (2,), None, b, 0.1), (x, p))
    assert gradgradcheck(lambda x, w: F.layer_norm(x, (2,), w, None, 0.1), (x, p))
    (g,) = torch.autograd.grad(F.layer_norm(x, (2,), None, p, 0.1).sum(), p, create_graph=True)
    assert g.shape == (2,)


def test_gradient_of_a_zero_row_is_finite():
    for f in (
        lambda x: F.layer_norm(x, (4,)),
        lambda x: F.layer_norm(x, (4,), eps=0.0),
        lambda x: F.rms_norm(x, (4,)),
        lambda x: F.rms_norm(x, (4,), eps=0.0),
        lambda x: F.normalize(x, eps=0.0),
    ):
        x = torch.zeros(1, 4, requires_grad=True)
        y = f(x)
        y.backward(torch.ones(1, 4))
        assert torch.equal(y, torch.zeros(1, 4)) and finite(x.grad)
    x = torch.zeros(1, 4, requires_grad=True)
    F.layer_norm(x, (4,)).backward(make(1, 4))
    check_backward("layer_norm", {"dx": x.grad}, make(1, 4), x)


def test_normalize_at_zero_is_x_over_eps_forward_and_backward():
    for eps in (1e-12, 1e-3):
        x = torch.zeros(3, requires_grad=True)
        y = F.normalize(x, dim=0, eps=eps)
        (g,) = torch.autograd.grad(y, x, torch.ones(3), create_graph=True)
        assert torch.equal(y, torch.zeros(3))
        torch.testing.assert_close(g, torch.full((3,), 1 / eps))


def test_normalize_keeps_ordinary_answers_of_extreme_sizes():
    x = torch.tensor([[1e20, 1.0, 1.0], [1e-30, -1e-30, 0.0]], requires_grad=True)
    y = F.normalize(x, eps=0.0)
    torch.testing.assert_close(y.detach()[0], torch.tensor([1.0, 1e-20, 1e-20]))
    torch.testing.assert_close(y.detach()[1], torch.tensor([0.5**0.5, -(0.5**0.5), 0.0]))
    y[0].sum().backward()
    assert finite(x.grad) and x.grad[0, 1] == pytest.approx(1e-20)


def test_fast_paths_return_weight_gradients():
    for module in (normkit.torch.RMSNorm(6), normkit.torch.LayerNorm(6)):
        for x in (make(3, 6), make(3, 6, requires_grad=True)):
            module.zero_grad()
            module(x).backward(torch.ones(3, 6))
            kind = "rms_norm" if isinstance(module, torch.nn.RMSNorm) else "layer_norm"
            eps = module.eps or 2**-23
            check_backward(kind, {"dweight": module.weight.grad}, torch.ones(3, 6), x, module.weight, eps=eps)


def test_layer_norm_without_a_bias_works():
    module = normkit.torch.LayerNorm(10, bias=False)
    assert module.bias is None and module(make(2, 10, requires_grad=True)).sum().isfinite()
    assert list(module.state_dict()) == ["weight"]


def test_f32_input_keeps_its_bytes():
    x = make(4, 64)
    before = x.clone()
    module = normkit.torch.RMSNorm(64)
    module(x).sum().backward()
    with torch.no_grad():
        module(x)
        F.rms_norm(x, (64,), module.weight, residual=x, rounding="before_weight")
    assert torch.equal(x, before)


def test_one_element_per_row_gives_the_bias():
    x = make(5, 1, requires_grad=True)
    bias = torch.tensor([0.25])
    y = F.layer_norm(x, (1,), torch.tensor([2.0]), bias)
    y.sum().backward()
    assert torch.equal(y, bias.expand(5, 1)) and torch.equal(x.grad, torch.zeros(5, 1))


def test_large_common_offsets_lose_nothing():
    ramps = torch.tensor([[40000.0, 40001, 40002, 40003], [80000, 80001, 80002, 80003]])
    expected = torch.tensor([-1.3416354, -0.4472118, 0.4472118, 1.3416354])
    torch.testing.assert_close(F.layer_norm(ramps, (4,)), expected.expand(2, 4), rtol=1e-6, atol=0)
    last = 32.0 * 199999 + torch.arange(32.0)
    assert float(F.layer_norm(last, (32,))[-1]) == pytest.approx(1.6787440, rel=1e-6)
    huge = torch.tensor([1e30, -1e30, 2e30, -2e30])
    torch.testing.assert_close(F.layer_norm(huge, (4,)), torch.tensor([0.6324555, -0.6324555, 1.2649111, -1.2649111]))


def test_gradients_of_three_dimensional_input_equal_those_of_its_rows():
    x, w, dy = make(2, 3, 4), make(4, seed=1), make(2, 3, 4, seed=2)
    grads = []
    for a, d in ((x, dy), (x.reshape(6, 4), dy.reshape(6, 4))):
        leaves = [t.clone().requires_grad_() for t in (a, w)]
        F.layer_norm(leaves[0], (4,), leaves[1]).backward(d)
        grads.append([leaves[0].grad.reshape(6, 4), leaves[1].grad])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 1025])
def test_no_row_is_missing_from_the_weight_gradient(rows):
    x, dy = make(rows, 32), make(rows, 32, seed=1)
    w = torch.ones(32, requires_grad=True)
    F.layer_norm(x, (32,), w).backward(dy)
    check_backward("layer_norm", {"dweight": w.grad}, dy, x, w)


def test_compiled_and_eager_agree_bit_for_bit():
    torch._dynamo.reset()
    x = make(2, 157, 512, dtype=torch.bfloat16)
    module = normkit.torch.RMSNorm(512, dtype=torch.bfloat16)
    with torch.no_grad():
        assert torch.equal(torch.compile(module, backend="aot_eager")(x), module(x))


def test_a_row_does_not_depend_on_its_batch():
    x = make(4096, 96, dtype=torch.bfloat16)
    whole = F.rms_norm(x, (96,))
    for size in (1, 100, 255, 1000):
        assert torch.equal(torch.cat([F.rms_norm(part, (96,)) for part in x.split(size)]), whole)


def test_rms_norm_gradient_check_on_two_columns():
    x = make(20, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: F.rms_norm(x, (2,), eps=1e-3), (x,))


def test_eps_reaches_the_engine():
    x = torch.full((1, 4), 2.0)
    for eps in (1e-12, 1e-2, 4.0):
        assert array(F.rms_norm(x, (4,), eps=eps))[0, 0] == pytest.approx(2 / (4 + eps) ** 0.5, rel=1e-6)
