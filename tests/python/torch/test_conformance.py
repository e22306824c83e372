"""PyTorch's own samples and error inputs for the operators and modules that normkit.torch replaces."""

import normkit.torch
import pytest
import torch
from torch_helpers import F, close_to_torch

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

OPS = {"layer_norm": 6, "native_layer_norm": 20, "rms_norm": 6, "normalize": 8}  # at least so many samples
MODULES = {torch.nn.LayerNorm: normkit.torch.LayerNorm, torch.nn.RMSNorm: normkit.torch.RMSNorm}


def op_info(name):
    (info,) = [i for i in op_db if i.name in (name, f"nn.functional.{name}")]
    return info


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
    return [getattr(F, name)(x, *args, **kwargs)], [getattr(torch.nn.functional, name)(x, *args, **kwargs)]


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
        tensors = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not ours[0].numel():
            continue
        # Gradients against torch's in f64: its own f32 gradients are not exact enough to tell (rows of one element).
        dy = torch.linspace(-1, 1, ours[0].numel(), dtype=torch.float64).reshape(ours[0].shape)
        x, *args = (t.double() if isinstance(t, torch.Tensor) else t for t in (sample.input, *sample.args))
        y = run(name, x, args, sample.kwargs)[1][0]
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
    assert errors or name in ("layer_norm", "normalize")
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
        a, b = MODULES[theirs](*made.args, **made.kwargs), theirs(*made.args, **made.kwargs)
        b.load_state_dict(a.state_dict())
        y, expected = a(*given.args, **given.kwargs), b(*given.args, **given.kwargs)
        close_to_torch(y, expected)
        y.square().sum().backward()
        ours = [p.grad.clone() for p in a.parameters()]
        expected.square().sum().backward()
        for grad, p in zip(ours, b.parameters(), strict=True):
            close_to_torch(grad, p.grad, factor=256)
