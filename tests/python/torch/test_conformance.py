"""PyTorch's own samples and error inputs for the operators and modules that normkit.torch replaces."""

import normkit.torch
import pytest
import torch
from torch_helpers import F, close_to_torch

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

OPS = {  # at least so many samples
    "layer_norm": 6,
    "native_layer_norm": 20,
    "rms_norm": 6,
    "normalize": 8,
    "batch_norm": 12,
    "instance_norm": 9,
    "group_norm": 20,
}
NAMES = ("LayerNorm", "RMSNorm", "GroupNorm", *(f"{kind}Norm{d}d" for kind in ("Batch", "Instance") for d in (1, 2, 3)))
MODULES = {getattr(torch.nn, name): getattr(normkit.torch, name) for name in NAMES}


def op_info(name):
    (info,) = [i for i in op_db if i.name in (name, f"nn.functional.{name}") and not i.variant_test_name]
    return info


def own_statistics(args):
    """Copies of the running statistics, which a call may move."""
    return [t.clone() if isinstance(t, torch.Tensor) and not t.requires_grad else t for t in args]


def native_layer_norm(x, shape, weight, bias, eps):
    y, mean, rstd = F.layer_norm(x, shape, weight, bias, eps, return_stats=True)
    ones = [1] * len(shape)
    return tuple(t.reshape(*x.shape[: x.dim() - len(shape)], *ones).to(x.dtype) for t in (mean, rstd)), y


def run(name, x, args, kwargs):
    """(ours, torch's) as lists of tensors."""
    if name == "native_layer_norm":
        (mean, rstd), y = native_layer_norm(x, *args, **kwargs)
        theirs = torch.native_layer_norm(x, *args, **kwargs)
        return [y, mean.to(theirs[1].dtype), rstd.to(theirs[2].dtype)], theirs
    results = []
    for package in (F, torch.nn.functional):
        own, named = own_statistics(args), dict(zip(kwargs, own_statistics(kwargs.values()), strict=True))
        y = getattr(package, name)(x, *own, **named)
        moved = [t for t in (*own, *named.values()) if isinstance(t, torch.Tensor) and not t.requires_grad]
        results.append([y, *moved])
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_op_samples(name, dtype):
    count = 0
    for sample in op_info(name).sample_inputs("cpu", dtype, requires_grad=True):
        count += 1
        if name == "native_layer_norm" and sample.args[-1] < 0:  # only without statistics is this torch's to answer
            with pytest.raises(ValueError, match="eps is -0"):
                run(name, sample.input, sample.args, sample.kwargs)
            continue
        ours, theirs = run(name, sample.input, sample.args, sample.kwargs)
        for a, b in zip(ours, theirs, strict=True):
            close_to_torch(a, b)
        given = (sample.input, *sample.args, *sample.kwargs.values())
        tensors = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
        if not ours[0].numel() or not ours[0].requires_grad:
            continue
        # Gradients against torch's in f64: its own f32 gradients are not exact enough to tell (rows of one element).
        dy = torch.linspace(-1, 1, ours[0].numel(), dtype=torch.float64).reshape(ours[0].shape)
        x, *args = (t.double() if isinstance(t, torch.Tensor) else t for t in (sample.input, *sample.args))
        kwargs = {k: t.double() if isinstance(t, torch.Tensor) else t for k, t in sample.kwargs.items()}
        y = run(name, x, args, kwargs)[1][0]
        exact = torch.autograd.grad(y, tensors, dy, allow_unused=True)
        for a, b in zip(torch.autograd.grad(ours[0], tensors, dy.to(dtype), allow_unused=True), exact, strict=True):
            assert (a is None) == (b is None)
            if a is not None and dtype in (torch.float32, torch.float64):
                close_to_torch(a, b, factor=1024 if dtype == torch.float64 else 256)
    assert count >= OPS[name]


@pytest.mark.parametrize("name", OPS)
def test_op_error_inputs(name):
    info = op_info(name)
    errors = list(info.error_inputs("cpu")) if info.error_inputs_func else []
    assert errors or name in ("layer_norm", "normalize", "batch_norm", "instance_norm")
    for error in errors:
        sample = error.sample_input
        with pytest.raises((error.error_type, ValueError)):
            run(name, sample.input, sample.args, sample.kwargs)


@pytest.mark.parametrize("theirs", MODULES)
@pytest.mark.parametrize("training", [True, False])
def test_module_samples(theirs, training):
    (info,) = [m for m in module_db if m.module_cls is theirs]
    samples = info.module_inputs_func(info, "cpu", torch.float32, requires_grad=True, training=training)
    assert len(samples) >= 6
    for sample in samples:
        made, given = sample.constructor_input, sample.forward_input
        torch.manual_seed(0)
        a, b = (cls(*made.args, **made.kwargs).train(training) for cls in (MODULES[theirs], theirs))
        b.load_state_dict(a.state_dict())
        y, expected = a(*given.args, **given.kwargs), b(*given.args, **given.kwargs)
        close_to_torch(y, expected)
        for name, buffer in a.named_buffers():
            torch.testing.assert_close(buffer, b.get_buffer(name))
        y.square().sum().backward()
        ours = [p.grad.clone() for p in a.parameters()]
        expected.square().sum().backward()
        for grad, p in zip(ours, b.parameters(), strict=True):
            close_to_torch(grad, p.grad, factor=256)


@pytest.mark.parametrize("theirs", MODULES)
def test_module_error_inputs(theirs):
    (info,) = [m for m in module_db if m.module_cls is theirs]
    for error in (
        info.module_error_inputs_func(info, "cpu", torch.float32, False, True) if info.module_error_inputs_func else ()
    ):
        made, given = error.module_error_input.constructor_input, error.module_error_input.forward_input
        with pytest.raises(error.error_type):
            MODULES[theirs](*made.args, **made.kwargs)(*given.args, **given.kwargs)
