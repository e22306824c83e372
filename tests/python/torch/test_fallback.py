"""Inputs that the engine does not take get torch's own answer: never a wrong one, never a crash."""

import normkit.torch
import pytest
import torch
from torch.autograd import forward_ad
from torch_helpers import F, close_to_torch, make

T = torch.nn.functional


def same_answer(ours, theirs):
    """Both give equal tensors, or both raise the same error."""
    try:
        expected = theirs()
    except Exception as error:
        with pytest.raises(type(error)):
            ours()
        return
    got = ours()
    assert type(got) is type(expected) and got.dtype == expected.dtype
    if got.is_sparse or got.layout != torch.strided:
        got, expected = got.to_dense(), expected.to_dense()
    assert torch.equal(torch.view_as_real(got) if got.is_complex() else got,
                       torch.view_as_real(expected) if expected.is_complex() else expected)  # fmt: skip


class Logged(torch.Tensor):
    """A subclass with functions of its own."""

    calls: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


INPUTS = {
    "complex": lambda: torch.randn(3, 8, dtype=torch.complex64),
    "complex128": lambda: torch.randn(3, 8, dtype=torch.complex128).conj(),
    "integer": lambda: torch.arange(24).reshape(3, 8),
    "bool": lambda: torch.ones(3, 8, dtype=torch.bool),
    "float8": lambda: torch.ones(3, 8).to(torch.float8_e4m3fn),
    "sparse": lambda: torch.eye(3, 8).to_sparse(),
    "sparse_csr": lambda: torch.eye(3, 8).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3, 8), 0.1, 0, torch.quint8),
    "mkldnn": lambda: torch.ones(3, 8).to_mkldnn(),
    "subclass": lambda: make(3, 8).as_subclass(Logged),
    "no dims": lambda: torch.tensor(1.0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_unusual_inputs(name, grad):
    torch.manual_seed(0)
    x = INPUTS[name]()
    weight = torch.ones(8, requires_grad=grad)
    if name == "no dims":
        with pytest.raises((ValueError, RuntimeError)):
            F.layer_norm(x, (8,), weight)
        return
    same_answer(lambda: F.layer_norm(x, (8,), weight), lambda: T.layer_norm(x, (8,), weight))
    same_answer(lambda: F.rms_norm(x, (8,), weight), lambda: T.rms_norm(x, (8,), weight))
    same_answer(lambda: F.rms_norm(x, (8,)), lambda: T.rms_norm(x, (8,)))
    same_answer(lambda: F.normalize(x), lambda: T.normalize(x))
    module, reference = normkit.torch.LayerNorm(8), torch.nn.LayerNorm(8)
    with torch.set_grad_enabled(grad):
        same_answer(lambda: module(x), lambda: reference(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("w_dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_every_pair_of_types_gives_the_type_that_torch_gives_or_its_error(x_dtype, w_dtype):
    x, w = make(3, 8, dtype=x_dtype), make(8, dtype=w_dtype, seed=1)
    for ours, theirs in ((F.layer_norm, T.layer_norm), (F.rms_norm, T.rms_norm)):
        try:
            expected = theirs(x, (8,), w)
        except RuntimeError:
            if (x_dtype, w_dtype) == (torch.float64, torch.float32):  # the engine takes this, torch's LayerNorm not
                assert torch.equal(ours(x, (8,), w), ours(x, (8,), w.double()))
                continue
            with pytest.raises(RuntimeError):
                ours(x, (8,), w)
        else:
            close_to_torch(ours(x, (8,), w), expected)


def test_nested_tensors():
    x = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)])
    w, b = make(8, seed=1), make(8, seed=2)
    for ours, theirs in zip(F.layer_norm(x, (8,), w, b).unbind(), T.layer_norm(x, (8,), w, b).unbind(), strict=True):
        assert torch.equal(ours, theirs)


def test_subclasses_see_torchs_function_and_keep_their_type():
    Logged.calls.clear()
    x = make(3, 8).as_subclass(Logged)
    assert type(F.layer_norm(x, (8,))) is Logged and T.layer_norm in Logged.calls


def test_options_that_torch_lacks_work_on_inputs_that_the_engine_lacks():
    x = torch.randn(3, 8, dtype=torch.float32)
    sub = x.as_subclass(Logged)
    options = {"weight_offset": 1.0, "rounding": "before_weight", "residual": x, "return_stats": True}
    expected = F.layer_norm(x, (8,), torch.ones(8), **options)
    for a, b in zip(F.layer_norm(sub, (8,), torch.ones(8), **options), expected, strict=True):
        torch.testing.assert_close(a.as_subclass(torch.Tensor).double(), b.double(), rtol=1e-6, atol=1e-6)


def test_function_transforms():
    x, w = make(3, 4, 8), make(8, seed=1)
    close_to_torch(torch.vmap(lambda t: F.layer_norm(t, (8,), w))(x), F.layer_norm(x, (8,), w))
    close_to_torch(torch.vmap(lambda w: F.rms_norm(x, (8,), w))(w.expand(2, 8))[1], F.rms_norm(x, (8,), w))

    def loss(norm):
        return lambda t: norm(t, (8,), w).sin().sum()

    close_to_torch(torch.func.grad(loss(F.layer_norm))(x), torch.func.grad(loss(T.layer_norm))(x))
    row = x[0, 0]
    hessian = torch.func.hessian(loss(T.rms_norm))(row)
    torch.testing.assert_close(torch.func.hessian(loss(F.rms_norm))(row), hessian)
    options = {"weight_offset": 1.0, "residual": row}
    y, h = torch.vmap(lambda t: F.rms_norm(t, (8,), w, 1e-6, **options))(x[0])
    torch.testing.assert_close(y, F.rms_norm(x[0], (8,), w, 1e-6, weight_offset=1.0, residual=row.expand(4, 8))[0])
    assert torch.equal(h, x[0] + row)


def test_forward_mode_differentiation():
    x, tangent = make(3, 8), make(3, 8, seed=1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        ours = forward_ad.unpack_dual(F.layer_norm(dual, (8,)))
        theirs = forward_ad.unpack_dual(T.layer_norm(dual, (8,)))
        assert torch.equal(ours.tangent, theirs.tangent)
    assert torch.func.jvp(lambda t: F.rms_norm(t, (8,)), (x,), (tangent,))[1].abs().sum() > 0


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_records_torchs_operator_not_a_constant():
    traced = torch.jit.trace(lambda x: F.layer_norm(x, (8,)), (make(3, 8),))
    x = make(5, 8, seed=9)
    close_to_torch(traced(x), F.layer_norm(x, (8,)))
    module = torch.jit.trace(normkit.torch.RMSNorm(8), (make(3, 8),))
    close_to_torch(module(x), normkit.torch.RMSNorm(8)(x))


def test_symbolic_trace_records_torchs_operator():
    class Net(torch.nn.Module):
        def forward(self, x):
            return F.layer_norm(x, (8,))

    x = make(5, 8)
    close_to_torch(torch.fx.symbolic_trace(Net())(x), F.layer_norm(x, (8,)))
