"""out and residual_out: what may be written into, by the same rules on every path, and what autograd learns of it."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch_helpers import KINDS, F, call, make


class Sub(torch.Tensor):
    """A subclass: torch's operators answer for it."""


class Passing(TorchDispatchMode):
    """A mode: the registered operator answers under it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def by_engine(x, **options):
    return F.rms_norm(x, x.shape[-1:], eps=1e-5, **options)


def by_operator(x, **options):
    with Passing():
        return by_engine(x, **options)


def by_torch(x, **options):
    return by_engine(x.as_subclass(Sub), **options)


PATHS = [by_engine, by_operator, by_torch]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference mode"])
def test_the_version_counter_sees_the_write(path, inference):
    x, out, residual_out = make(3, 8), torch.empty(3, 8), torch.empty(3, 8)
    with torch.inference_mode(inference):
        path(x, residual=x, out=out, residual_out=residual_out)
    assert out._version > 0 and residual_out._version > 0
    with torch.inference_mode():
        path(x, out=torch.empty(3, 8))  # has no counter


@pytest.mark.parametrize("path", PATHS)
def test_a_backward_that_saved_the_old_values_notices(path):
    x, out = make(3, 8, requires_grad=True), make(3, 8, seed=1)
    for written in (out, out[:, :]):
        y = x * out
        path(make(3, 8), out=written)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_normalize_tells_autograd_too():
    x, out = make(3, 8, requires_grad=True), make(3, 8, seed=1)
    y = x * out
    F.normalize(make(3, 8), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="autograd"):
        F.normalize(make(3, 8), out=torch.zeros(3, 8, requires_grad=True))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("which", ["out", "residual_out", "input"])
def test_nothing_that_requires_grad_while_grad_mode_is_on(path, which):
    x, out, residual_out = make(3, 8), torch.zeros(3, 8), torch.zeros(3, 8)
    {"input": x, "out": out, "residual_out": residual_out}[which].requires_grad_()
    with pytest.raises(RuntimeError, match=f"rms_norm: .*do not support autograd, but .*{which} requires grad"):
        path(x, residual=make(3, 8), out=out, residual_out=residual_out)
    assert not out.any() and not residual_out.any()
    with torch.no_grad():
        path(x, residual=make(3, 8), out=out, residual_out=residual_out)
    assert out.all() and residual_out.all()


def test_no_output_in_forward_mode_differentiation():
    with forward_ad.dual_level():
        dual, out = forward_ad.make_dual(make(3, 8), make(3, 8, seed=1)), torch.zeros(3, 8)
        with pytest.raises(RuntimeError, match="do not support autograd, but an input"):
            F.rms_norm(dual, (8,), out=out)
        F.rms_norm(make(3, 8), (8,), out=out)
    assert out.all()


@pytest.mark.parametrize("path", [by_engine, by_torch])
def test_inference_tensors_are_written_in_inference_mode_only(path):
    with torch.inference_mode():
        out = torch.zeros(3, 8)
        path(make(3, 8), out=out)
        out.zero_()
    with pytest.raises(RuntimeError, match="rms_norm: out is an inference tensor"):
        path(make(3, 8), out=out)
    assert not out.any()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["out", "residual_out"])
@pytest.mark.parametrize(
    "bad,error,message",
    [
        (torch.zeros(3, 8, dtype=torch.int32), TypeError, "int32"),
        (torch.zeros(3, 8, dtype=torch.complex64), TypeError, "complex64"),
        (torch.zeros(3, 8, dtype=torch.float64), TypeError, "expected (torch.)?bfloat16 or (torch.)?float32"),
        (torch.zeros(2, 3, 8), ValueError, "expected"),
        (torch.zeros(8), ValueError, "expected"),
        (torch.zeros(1, 8), ValueError, "expected"),
        (None, TypeError, "is a str, expected a torch.Tensor"),
    ],
    ids=["integers", "complex", "f64", "more dims", "fewer dims", "one row", "no tensor"],
)
def test_wrong_outputs_are_refused_before_anything_is_written(path, name, bad, error, message):
    x, good = make(3, 8, dtype=torch.bfloat16), torch.zeros(3, 8, dtype=torch.bfloat16)
    other = {"out": "residual_out", "residual_out": "out"}[name]
    bad = "x" if bad is None else bad
    with pytest.raises(error, match=message):
        path(x, residual=x, **{name: bad, other: good})
    assert not good.any() and (bad == "x" or not bad.any())


@pytest.mark.parametrize("path", [by_engine, by_torch])
def test_overlapping_outputs_are_refused(path):
    x, both = make(3, 4), torch.zeros(3, 8)
    cases = [
        {"out": torch.zeros(1, 4).expand(3, 4)},
        {"out": torch.zeros(6).as_strided((3, 4), (1, 1))},
        {"out": both[:, :4], "residual_out": both[:, 3:7]},
        {"out": both[:, :4], "residual_out": both[:, :4]},
    ]
    for outputs in cases:
        with pytest.raises(ValueError, match="overlap"):
            path(x, residual=x, **outputs)
        assert not any(t.any() for t in outputs.values())
    path(x, residual=x, out=both[:, :4], residual_out=both[:, 4:])  # interleaved, but apart
    assert torch.equal(both[:, 4:], 2 * x) and both.all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wide", ["out", "residual_out", "both"])
def test_wide_outputs_of_16_bit_inputs_are_not_rounded_on_any_path(kind, wide):
    x, r, w = make(3, 8, dtype=torch.bfloat16), make(3, 8, dtype=torch.bfloat16, seed=1), make(8, seed=2)
    types = [torch.float32 if wide in (name, "both") else torch.bfloat16 for name in ("out", "residual_out")]

    def results(x):
        y, h = (torch.zeros(3, 8, dtype=t) for t in types)
        call(kind, x, w, residual=r, out=y, residual_out=h)
        return y, h

    engine, formula = results(x), results(x.as_subclass(Sub))
    with Passing():
        operator = results(x)
    for a, b in ((engine, formula), (engine, operator)):
        for s, t in zip(a, b, strict=True):
            bound = 1e-6 if s.dtype == torch.float32 else 2**-8
            torch.testing.assert_close(s, t, rtol=bound, atol=bound)


def test_residual_out_needs_a_residual_and_input_may_be_the_output():
    for path in PATHS:
        with pytest.raises(ValueError, match="residual_out is given without residual"):
            path(make(3, 8), residual_out=torch.zeros(3, 8))
        x = make(3, 8)
        expected = path(x)
        path(x, out=x)
        assert torch.equal(x, expected)


def test_compiled_functions_can_write_into_outputs():
    torch._dynamo.reset()
    x, out = make(3, 8), torch.zeros(3, 8)
    compiled = torch.compile(lambda x, out: F.rms_norm(x, (8,), out=out) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, out), F.rms_norm(x, (8,)) + 1) and torch.equal(out, F.rms_norm(x, (8,)))
