"""batch_norm, instance_norm and group_norm: derivatives of every order, transforms, and the registered operators."""

import contextlib

import normkit.torch
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch_helpers import F, close_to_torch, make

DOUBLE = torch.float64
C = 4
KINDS = ("batch_norm", "batch_norm eval", "instance_norm", "instance_norm eval", "group_norm")
T = torch.nn.functional
RUNNING = make(C, dtype=DOUBLE), make(C, dtype=DOUBLE).square() + 0.5


def call(kind, x, weight=None, bias=None, package=F, running=None):
    """One of KINDS; with running (a mean and a variance) these are used, and moved in training."""
    if kind == "group_norm":
        return package.group_norm(x, 2, weight, bias)
    name, training = kind.split()[0], "eval" not in kind
    if running is None:
        running = (None, None) if training else [t.to(x.dtype) for t in RUNNING]
    if name == "batch_norm":
        return package.batch_norm(x, *running, weight, bias, training, 0.3)
    return package.instance_norm(x, *running, weight, bias, training, 0.3)


def leaves(*tensors):
    return [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]


def inputs(dtype=torch.float32, n=3):
    return make(n, C, 3, 2, dtype=dtype), make(C, dtype=dtype, seed=1), make(C, dtype=dtype, seed=2)


@pytest.mark.parametrize("affine", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=["", "weight", "bias", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_first_and_second_derivatives(kind, affine):
    x, w, b = leaves(*inputs(DOUBLE, 2))
    given = (x, w if affine[0] else None, b if affine[1] else None)
    assert gradcheck(lambda *t: call(kind, *t), given, check_batched_grad=True)
    assert gradgradcheck(lambda *t: call(kind, *t), given)


@pytest.mark.parametrize("kind", KINDS)
def test_first_gradients_are_the_same_with_and_without_create_graph(kind):
    x, w, b = leaves(*inputs())
    dy = make(*x.shape, seed=3)
    plain = torch.autograd.grad(call(kind, x, w, b), (x, w, b), dy)
    graph = torch.autograd.grad(call(kind, x, w, b), (x, w, b), dy, create_graph=True)
    theirs = torch.autograd.grad(call(kind, x, w, b, T), (x, w, b), dy)
    assert graph[0].grad_fn is not None and graph[1].grad_fn is not None
    for a, g, t in zip(plain, graph, theirs, strict=True):
        close_to_torch(a, g.detach(), 256)
        close_to_torch(a, t, 256)


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_only_what_requires_a_gradient_gets_one(kind, wanted):
    given = [t.requires_grad_(bool(m)) for t, m in zip(inputs(), wanted, strict=True)]
    others = leaves(*inputs())
    dy = make(*given[0].shape, seed=3)
    call(kind, *given).backward(dy)
    call(kind, *others, T).backward(dy)
    for t, other, m in zip(given, others, wanted, strict=True):
        assert (t.grad is not None) == bool(m)
        if m:
            close_to_torch(t.grad, other.grad, 256)


def test_modified_inputs_are_detected():
    x, w, _ = leaves(*inputs())
    for kind in KINDS:
        y = call(kind, x, w)
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_function_transforms_and_forward_mode(kind):
    x, w, b = inputs()
    dy = make(*x.shape, seed=3)

    def loss(package):
        return lambda x, w: (call(kind, x, w, b, package) * dy).sin().sum()

    for ours, theirs in zip(
        torch.func.grad(loss(F), (0, 1))(x, w), torch.func.grad(loss(T), (0, 1))(x, w), strict=True
    ):
        close_to_torch(ours, theirs)
    close_to_torch(torch.vmap(lambda t: call(kind, t, w))(x[None])[0], call(kind, x, w))
    if kind == "group_norm" or "eval" in kind:
        return
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, dy)
        ours, theirs = (forward_ad.unpack_dual(call(kind, dual, w, b, package)) for package in (F, T))
        assert torch.equal(ours.tangent, theirs.tangent)


OPERATOR_OPTIONS = {
    "batch_norm": (1e-5, True, 0.1, 0),
    "batch_norm eval": (1e-5, False, 0.1, 0),
    "instance_norm": (1e-5, True, 0.1, 0),
    "instance_norm eval": (1e-5, False, 0.1, 0),
    "group_norm": (1e-5, True, 0.1, 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_torch_checks_schema_autograd_fake_kernel_and_tracing(kind, dtype):
    x, _, _ = leaves(*inputs(dtype))
    w, b = leaves(make(C, seed=1), make(C, seed=2))
    operator = getattr(torch.ops.normkit, kind.split()[0]).default
    running = (None, None) if kind == "group_norm" else (make(C, dtype=dtype), make(C, dtype=dtype).square())
    last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    for given in ((x, w, b), (last, w, None), (x, None, b)):
        torch.library.opcheck(operator, (*given, *running, *OPERATOR_OPTIONS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_fake_and_meta_tensors_have_the_shapes_and_types_of_real_results(kind):
    x, w, b = inputs(torch.bfloat16)
    running = torch.zeros(C), torch.ones(C)

    def result(*tensors):
        y = call(kind, *tensors[:3], running=tensors[3:])
        return y.shape, y.dtype, y.stride()

    last = x.contiguous(memory_format=torch.channels_last)
    for given in (x, last, last[:, :, ::2], x.transpose(0, 3)[:2, :, :, :1].expand(-1, C, -1, -1)):
        real = result(given, w, b, *running)
        assert real == (given.shape, given.dtype, torch.empty_like(given).stride())
        tensors = (given, w, b, *running)
        assert (
            result(*(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors)) == real
        )
        with FakeTensorMode() as mode:
            assert result(*(mode.from_tensor(t) for t in tensors)) == real


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_modes_and_make_fx_see_the_operator(kind):
    x, w, b = leaves(*inputs())
    name = "normkit." + kind.split()[0]

    def f(x, w):
        return torch.autograd.grad(call(kind, x, w, b).sin().sum(), (x, w))

    with Seen() as mode:
        f(x, w)
    assert name + ".default" in mode.names and name + "_backward.default" in mode.names
    graph = make_fx(f)(x, w)
    assert name + "_backward" in graph.code
    assert all(torch.equal(a, e) for a, e in zip(graph(x, w), f(x, w), strict=True))


def modules():
    torch.manual_seed(0)
    n = normkit.torch
    tracked = {"affine": True, "track_running_stats": True}
    return {
        "batch": torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), n.BatchNorm2d(8), torch.nn.ReLU()),
        "group": torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), n.GroupNorm(4, 8), torch.nn.ReLU()),
        "instance": torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), n.InstanceNorm2d(8, **tracked), torch.nn.ReLU()),
        "half": torch.nn.Sequential(n.BatchNorm1d(3, dtype=torch.bfloat16)),
    }


def trained(net, run, xs, dys):
    """Gradients and state after training on xs, then the result in evaluation."""
    for x, dy in zip(xs, dys, strict=True):
        y = run(x)
        y.backward(dy[: len(x)].reshape(y.shape))
    net.eval()
    with torch.no_grad():
        y = run(xs[0])
    return [*(p.grad for p in net.parameters()), *net.state_dict().values(), y]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("name", ["batch", "group", "instance", "half"])
def test_compiled_training_and_evaluation_without_a_graph_break(name, last, backend):
    if backend == "inductor" and (name, last) != ("batch", True):
        return  # it takes long, and the operators are alike
    torch._dynamo.reset()
    dtype = torch.bfloat16 if name == "half" else torch.float32
    xs = [make(n, 3, 7, 5, seed=n, dtype=dtype) for n in (4, 6)]
    xs = [x.flatten(2) if name == "half" else x for x in xs]
    if last and name != "half":
        xs = [x.contiguous(memory_format=torch.channels_last) for x in xs]
    eager, traced = modules()[name], modules()[name]
    dys = [make(6, 3 * 35 if name == "half" else 8 * 15, seed=3, dtype=dtype)] * 2
    compiled = torch.compile(traced, fullgraph=True, backend=backend)
    expected, got = trained(eager, eager, xs, dys), trained(traced, compiled, xs, dys)
    for a, b in zip(got, expected, strict=True):
        if backend == "aot_eager" or not a.is_floating_point():
            assert torch.equal(a, b)
        else:
            close_to_torch(a, b, 512)


def test_compiled_code_can_be_called_without_gradients_and_in_training():
    torch._dynamo.reset()
    eager, traced = modules()["batch"], modules()["batch"]
    compiled = torch.compile(traced, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for n in (4, 5, 6):
            assert torch.equal(compiled(make(n, 3, 7, 5)), eager(make(n, 3, 7, 5)))
    assert torch.equal(traced[1].running_var, eager[1].running_var) and traced[1].num_batches_tracked == 3


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["batch", "group", "instance"])
def test_export(name, strict):
    net, x = modules()[name], make(4, 3, 7, 5)
    shapes = ({0: torch.export.Dim("samples", min=2)},)
    trained_program = torch.export.export(net, (x,), dynamic_shapes=shapes, strict=strict).run_decompositions({})
    changed = trained_program.graph_signature.buffers_to_mutate
    assert len(changed) == {"batch": 3, "group": 0, "instance": 2}[name]
    program = torch.export.export(net.eval(), (x,), dynamic_shapes=shapes, strict=strict)
    assert "normkit" in program.graph_module.code
    close_to_torch(program.module()(make(9, 3, 7, 5)), net(make(9, 3, 7, 5)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    net = modules()["batch"]
    x, w = make(4, 3, 7, 5).requires_grad_(), net[0].weight
    plain = torch.autograd.grad(net(x).square().sum(), w)[0]
    y = checkpoint(net, x, use_reentrant=reentrant)
    net.zero_grad()
    y.square().sum().backward()
    assert torch.equal(w.grad, plain)


def test_a_checkpoint_can_leave_the_running_statistics_alone_the_second_time():
    module = normkit.torch.BatchNorm2d(1)
    x = make(2, 1, 3, 3, mean=1.0).requires_grad_()

    def contexts():
        return contextlib.nullcontext(), normkit.torch.freeze_running_stats(module)

    y = checkpoint(lambda t: module(t).sin(), x, use_reentrant=False, context_fn=contexts)
    y.sum().backward()
    torch.testing.assert_close(module.running_mean[0], 0.1 * x.detach().mean())
    assert module.num_batches_tracked == 1 and module.track_running_stats


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_and_symbolic_trace():
    x = make(4, C, 3, 3)
    module = normkit.torch.BatchNorm2d(C).eval()
    close_to_torch(torch.jit.trace(module, (x,))(make(5, C, 3, 3)), module(make(5, C, 3, 3)))
    traced = torch.jit.trace(lambda t: F.group_norm(t, 2), (x,))
    close_to_torch(traced(make(5, C, 3, 3)), F.group_norm(make(5, C, 3, 3), 2))
    graph = torch.fx.symbolic_trace(lambda t: F.instance_norm(t))
    close_to_torch(graph(x), F.instance_norm(x))
