"""The registered operators: torch.library's own checks, torch.compile, torch.export, fake and meta tensors, modes."""

import normkit.torch
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch_helpers import KINDS, F, call, close_to_torch, make

DEFAULTS = (1, 1e-5, 0.0, "once", "inside", "rounded")


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_torch_checks_schema_autograd_fake_kernel_and_tracing(kind, residual, dtype):
    x, w = make(3, 8, dtype=dtype, requires_grad=True), make(8, seed=1, requires_grad=True)
    r = make(3, 8, seed=2, requires_grad=True) if residual else None
    operator = getattr(torch.ops.normkit, kind).default
    for bias in (None, make(8, seed=3, requires_grad=True)):
        torch.library.opcheck(operator, (x, w, bias, r, *DEFAULTS))
    torch.library.opcheck(operator, (x, None, None, r, *DEFAULTS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_without_a_graph_break_with_the_same_bits(kind, residual, dynamic):
    torch._dynamo.reset()
    w = make(16, seed=1, requires_grad=True)

    def f(x, r):
        result = call(kind, x.sin(), w, residual=r if residual else None)
        y, h = result if residual else (result, x)
        return (y * 2).cos().sum() + h.square().sum()

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (4, 7):
        x, r = make(rows, 16, requires_grad=True), make(rows, 16, seed=2, requires_grad=True)
        inputs = (x, w, r) if residual else (x, w)
        eager, traced = torch.autograd.grad(f(x, r), inputs), torch.autograd.grad(compiled(x, r), inputs)
        assert all(torch.equal(a, b) for a, b in zip(eager, traced, strict=True))


def test_inductor():
    torch._dynamo.reset()
    module = normkit.torch.LayerNorm(32)
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), module, torch.nn.GELU())
    compiled = torch.compile(net, fullgraph=True)
    x = make(4, 32)
    with torch.no_grad():
        close_to_torch(compiled(x), net(x))
    net(x).sum().backward()
    expected = module.weight.grad.clone()
    module.weight.grad = None
    compiled(x).sum().backward()
    close_to_torch(module.weight.grad, expected)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("module", [normkit.torch.LayerNorm, normkit.torch.RMSNorm])
def test_export(module, strict):
    net, x = module(16), make(4, 16)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},), strict=strict)
    assert "normkit" in program.graph_module.code
    assert torch.equal(program.module()(make(9, 16)), net(make(9, 16)))


@pytest.mark.parametrize("options", [{}, {"residual": True}, {"return_stats": True}], ids=str)
def test_fake_and_meta_tensors_have_the_shapes_and_types_of_real_results(options):
    x, w = make(2, 3, 8, dtype=torch.bfloat16), make(8)
    r = make(2, 3, 8)

    def results(x, w, r):
        got = F.layer_norm(x, (8,), w, **{**options, **({"residual": r} if "residual" in options else {})})
        return [(t.shape, t.dtype, t.stride()) for t in (got if isinstance(got, tuple) else (got,))]

    real = results(x, w, r)
    assert results(x.to("meta"), w.to("meta"), r.to("meta")) == real
    with FakeTensorMode() as mode:
        assert results(*(mode.from_tensor(t) for t in (x, w, r))) == real


def test_modes_see_the_operator():
    x = make(3, 8, requires_grad=True)
    with Seen() as mode:
        F.rms_norm(x, (8,)).sum().backward()
    assert "normkit.rms_norm.default" in mode.names and "normkit.rms_norm_backward.default" in mode.names
    with Seen() as mode, torch.no_grad():
        normkit.torch.LayerNorm(8)(make(3, 8))
    assert "normkit.layer_norm.default" in mode.names


def test_make_fx_records_the_operator_and_its_backward():
    def f(x, w):
        return torch.autograd.grad(F.layer_norm(x, (8,), w).sum(), (x, w))

    x, w = make(3, 8, requires_grad=True), make(8, requires_grad=True)
    graph = make_fx(f)(x, w)
    assert "normkit.layer_norm_backward" in graph.code
    assert all(torch.equal(a, b) for a, b in zip(graph(x, w), f(x, w), strict=True))


def test_transforms_inside_compiled_code():
    torch._dynamo.reset()
    x = make(3, 8)

    def mapped(x):
        return torch.vmap(lambda row: F.layer_norm(row, (8,)))(x)

    def gradient(x):
        return torch.func.grad(lambda t: F.rms_norm(t, (8,)).sin().sum())(x)

    for f in (mapped, gradient):
        close_to_torch(torch.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))


def test_mistakes_are_found_while_tracing():
    torch._dynamo.reset()
    with pytest.raises(Exception, match="normalized_shape"):
        torch.compile(lambda x: F.layer_norm(x, (5,)), fullgraph=True, backend="eager")(make(3, 8))
