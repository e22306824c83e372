"""Faults of norms over channels that users of other libraries reported, as seen from PyTorch."""

import math

import normkit.torch
import pytest
import torch
from torch import nn
from torch_helpers import F, close_to_torch, finite, make

T = torch.nn.functional
N = normkit.torch
LAST = torch.channels_last
TRACKED = {"affine": True, "track_running_stats": True}


def test_an_infinite_activation_shows_in_the_running_statistics_of_its_channel_only():
    x = make(4, 3, 5)
    x[0, 1, 2] = math.inf
    ours, theirs = N.BatchNorm1d(3), nn.BatchNorm1d(3)
    y, expected = ours(x), theirs(x)
    assert torch.equal(ours.running_var.isfinite(), torch.tensor([True, False, True]))
    close_to_torch(y[:, ::2], expected[:, ::2])
    assert y[:, 1].isnan().all() and finite(y[:, ::2])


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_one_value_per_statistic_has_one_rule_for_every_batch_size(samples):
    x, bias = make(samples, 4, 1, 1), make(4, seed=1)
    y = F.group_norm(x, 4, make(4), bias)
    assert torch.equal(y, bias.view(1, 4, 1, 1).expand_as(y))
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        N.InstanceNorm2d(4)(x)
    if samples == 1:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            N.BatchNorm2d(4)(x)
    assert torch.equal(N.BatchNorm2d(4).eval()(x[:1]), T.batch_norm(x[:1], torch.zeros(4), torch.ones(4)))


@pytest.mark.parametrize("shape", [(0, 3, 10), (0, 3, 10, 10), (2, 3, 0)], ids=str)
def test_empty_batches_forward_and_backward(shape):
    names = ("InstanceNorm1d", "BatchNorm1d") if len(shape) == 3 else ("InstanceNorm2d", "BatchNorm2d")
    for module in (*(getattr(N, n)(3, affine=True, track_running_stats=True) for n in names), N.GroupNorm(3, 3)):
        for training in (True, False):
            x = torch.zeros(shape, requires_grad=True)
            y = module.train(training)(x)
            module.zero_grad()
            y.sum().backward()
            assert y.shape == x.grad.shape == shape and not module.weight.grad.any() and not module.bias.grad.any()
        for name, buffer in module.named_buffers():
            assert name == "num_batches_tracked" or torch.equal(buffer, torch.full((3,), float("var" in name)))


def test_numbers_of_groups_that_are_not_positive_are_named():
    for groups in (0, -1):
        with pytest.raises(ValueError, match=f"num_groups is {groups}, expected 1 or more"):
            N.GroupNorm(groups, 4)
        with pytest.raises(ValueError, match=f"num_groups is {groups}, expected 1 or more"):
            F.group_norm(make(2, 4, 3), groups)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_channels_last_and_contiguous_inputs_give_the_same_results(dtype):
    x, dy = make(2, 64, 10, 10, dtype=dtype), make(2, 64, 10, 10, dtype=dtype, seed=1)
    for module in (N.BatchNorm2d(64), N.InstanceNorm2d(64, **TRACKED), N.GroupNorm(8, 64)):
        nn.init.normal_(module.weight), nn.init.normal_(module.bias)
        for training in (True, False):
            results = []
            for form in (torch.contiguous_format, LAST):
                own = N.BatchNorm2d(64) if isinstance(module, nn.BatchNorm2d) else module
                own.train(training).load_state_dict(module.state_dict())
                own.zero_grad()
                leaf = x.clone(memory_format=form).requires_grad_()
                y = own(leaf)
                y.backward(dy.contiguous(memory_format=form))
                results.append((y.detach(), leaf.grad, own.weight.grad.clone(), own.bias.grad.clone()))
            for a, b in zip(*results, strict=True):  # the order of sums follows the memory
                close_to_torch(a.contiguous(), b.contiguous())


def test_permuted_inputs_have_the_gradients_of_contiguous_ones():
    x, dy = make(4, 8, 8, 3), make(4, 8, 8, 3, seed=1)
    for form in (
        lambda t: t.permute(0, 3, 1, 2),
        lambda t: t.permute(0, 3, 2, 1),
        lambda t: t.permute(0, 3, 1, 2)[::2],
    ):
        for module in (N.BatchNorm2d(3), N.InstanceNorm2d(3, affine=True), N.GroupNorm(3, 3)):
            grads = []
            for contiguous in (False, True):
                leaf = form(x).contiguous() if contiguous else form(x)
                leaf = leaf.detach().requires_grad_()
                module.zero_grad()
                module(leaf).backward(form(dy).contiguous() if contiguous else form(dy))
                grads.append((leaf.grad, module.weight.grad.clone(), module.bias.grad.clone()))
            for a, b in zip(*grads, strict=True):
                close_to_torch(a, b)


@pytest.mark.parametrize("name", ["BatchNorm1d", "InstanceNorm1d"])
def test_the_backward_of_evaluation_has_no_terms_of_the_batch(name):
    module = getattr(N, name)(5, **TRACKED).eval()
    nn.init.normal_(module.weight)
    module.running_var.uniform_(0.5, 2.0)
    x = make(4, 5, 3).requires_grad_()
    for _ in range(2):
        (g,) = torch.autograd.grad(module(x).sum(), x)
        expected = module.weight * (module.running_var + 1e-5).rsqrt()
        close_to_torch(g, expected.detach().view(1, 5, 1).expand_as(g))


def test_16_bit_inputs_with_f32_weights_have_exact_gradients():
    for form in (torch.contiguous_format, LAST):
        x = make(4, 8, 6, 6, dtype=torch.bfloat16).contiguous(memory_format=form).requires_grad_()
        wide = x.detach().double().requires_grad_()
        dy = make(4, 8, 6, 6, dtype=torch.bfloat16, seed=1)
        for name, sizes in (("BatchNorm2d", (8,)), ("GroupNorm", (2, 8)), ("InstanceNorm2d", (8, 1e-5, 0.1, True))):
            ours, exact = getattr(N, name)(*sizes), getattr(nn, name)(*sizes, dtype=torch.float64)
            nn.init.normal_(ours.weight)
            exact.weight.data.copy_(ours.weight)
            x.grad = wide.grad = None
            ours(x).backward(dy)
            exact(wide).backward(dy.double())
            close_to_torch(x.grad, wide.grad.bfloat16())
            for a, b in zip(ours.parameters(), exact.parameters(), strict=True):
                close_to_torch(a.grad, b.grad.float())


def test_group_norm_with_frozen_parameters_has_the_gradient_of_its_input():
    module = N.GroupNorm(2, 4).requires_grad_(False)
    x = make(3, 4, 5).requires_grad_()
    dy = make(3, 4, 5, seed=1)
    (g,) = torch.autograd.grad(module(x), x, dy)
    close_to_torch(g, torch.autograd.grad(T.group_norm(x, 2), x, dy)[0])


@pytest.mark.parametrize("name", ["BatchNorm1d", "InstanceNorm1d"])
@pytest.mark.parametrize("training", [True, False])
def test_tracking_that_is_switched_off_leaves_the_buffers_alone(name, training):
    module = getattr(N, name)(4, **TRACKED).train(training)
    module.track_running_stats = False
    module(make(3, 4, 5))
    assert torch.equal(module.running_mean, torch.zeros(4)) and module.num_batches_tracked == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_modules_of_16_bits_with_and_without_statistics(dtype):
    for tracks in (True, False):
        for name in ("BatchNorm2d", "InstanceNorm2d"):
            module = getattr(N, name)(4, affine=True, track_running_stats=tracks, dtype=dtype)
            x = (100 + make(8, 4, 6, 6)).to(dtype)
            for training in (True, True, False):
                y = module.train(training)(x)
                assert y.dtype == dtype and finite(y)
            if tracks:
                torch.testing.assert_close(module.running_mean.float(), torch.full((4,), 19.1), rtol=1e-2, atol=0)


def test_eps_of_zero_is_fine_in_evaluation():
    module = N.BatchNorm1d(3, eps=0.0).eval()
    module.running_var.fill_(4.0)
    x = make(5, 3)
    assert torch.equal(module(x), x / 2)
    with pytest.raises(ValueError, match="eps must be positive during training"):
        module.train()(x)


def test_constants_give_exactly_zero_through_two_norms():
    x = torch.ones(6, 10, 12)
    for first in (N.BatchNorm1d(10).eval(), N.BatchNorm1d(10)):
        assert torch.equal(N.GroupNorm(10, 10)(first(x)), torch.zeros_like(x))
    for value in (1234.0, 100.0, 0.1, 1e30):
        full = torch.full((8, 2, 9, 9), value)
        for module in (N.BatchNorm2d(2), N.InstanceNorm2d(2), N.GroupNorm(1, 2)):
            assert torch.equal(module(full), torch.zeros_like(full))
            assert torch.equal(module(full.to(memory_format=LAST)), torch.zeros_like(full))


def test_a_fresh_module_is_about_the_identity_in_evaluation():
    x = make(4, 3, 5)
    for name in ("BatchNorm1d", "InstanceNorm1d"):
        torch.testing.assert_close(getattr(N, name)(3, **TRACKED).eval()(x), x, rtol=1e-5, atol=0)


def test_momentum_and_the_unbiased_variance():
    module = N.BatchNorm1d(1, momentum=1.0)
    module(torch.tensor([[1.0], [2.0], [3.0]]))
    assert float(module.running_mean) == 2.0 and float(module.running_var) == 1.0


def test_large_common_offsets_lose_nothing():
    x = 1000 + 0.01 * make(8, 2, 16, 16)
    for ours, theirs in ((N.BatchNorm2d(2), nn.BatchNorm2d(2)), (N.GroupNorm(1, 2), nn.GroupNorm(1, 2))):
        torch.testing.assert_close(ours(x).double(), theirs.double()(x.double()), rtol=1e-5, atol=1e-5)
