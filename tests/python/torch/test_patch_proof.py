"""What patch must see before it replaces a module: gradients, unusual inputs and weights, side effects, odd classes."""

import abc
import copy
import pickle

import pytest
import torch
from normkit.torch import patch, unpatch
from torch import nn
from torch_helpers import make

WIDTH = 32
COUNT = 0
CALLS = []


class Norm(nn.Module):
    """An RMSNorm with places for what a subclass does otherwise."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.scaled(x, torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))

    def scaled(self, x, factor):
        return x * factor * self.weight


class DetachedFactorNorm(Norm):
    def scaled(self, x, factor):
        return super().scaled(x, factor.detach())


class DetachedWeightNorm(Norm):
    def scaled(self, x, factor):
        return x * factor * self.weight.detach()


class NoGradNorm(Norm):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy


class CustomBackwardNorm(Norm):
    def forward(self, x):
        return Doubled.apply(super().forward(x))


class Failing(Doubled):
    @staticmethod
    def backward(ctx, dy):
        raise RuntimeError("no backward")


class FailingBackwardNorm(Norm):
    def forward(self, x):
        return Failing.apply(super().forward(x))


class DifferentWithGradNorm(Norm):
    def forward(self, x):
        y = super().forward(x)
        return y * 1.5 if torch.is_grad_enabled() else y


GRADIENTS = [DetachedFactorNorm, DetachedWeightNorm, NoGradNorm, CustomBackwardNorm, FailingBackwardNorm]


class AbsoluteWeightNorm(Norm):
    def scaled(self, x, factor):
        return x * factor * self.weight.abs()


class ClampedWeightNorm(Norm):
    def scaled(self, x, factor):
        return x * factor * self.weight.clamp(min=0.01)


class ClampedInputNorm(Norm):
    def forward(self, x):
        return super().forward(x.clamp(-1e4, 1e4))


class ClampedOutputNorm(Norm):
    def forward(self, x):
        return super().forward(x).clamp(-1000, 1000)


class ClampedNormalizedNorm(Norm):
    def scaled(self, x, factor):
        return (x * factor).clamp(-4.5, 4.5) * self.weight


class FlushedNorm(Norm):
    def forward(self, x):
        return super().forward(torch.where(x.abs() < 1e-10, 0, x))


class NanGuardNorm(Norm):
    def forward(self, x):
        return super().forward(x.nan_to_num())


class NanSpreadingNorm(Norm):
    def forward(self, x):
        return super().forward(x) + 0 * x.sum()


class SingleRowNorm(Norm):
    def forward(self, x):
        return super().forward(x) * (2 if x.numel() == x.shape[-1] else 1)


class SingleBatchNorm(Norm):
    def forward(self, x):
        return super().forward(x) * (2 if x.dim() > 1 and x.shape[0] == 1 else 1)


class BareRowNorm(Norm):
    def forward(self, x):
        return super().forward(x) * (2 if x.dim() == 1 else 1)


class ZeroRowNorm(Norm):
    def forward(self, x):
        return torch.where((x == 0).all(-1, keepdim=True), 1.0, super().forward(x))


VALUES = [
    *(AbsoluteWeightNorm, ClampedWeightNorm, ClampedInputNorm, ClampedOutputNorm, ClampedNormalizedNorm, FlushedNorm),
    *(NanGuardNorm, NanSpreadingNorm, SingleRowNorm, SingleBatchNorm, BareRowNorm, ZeroRowNorm),
]


class CountingNorm(Norm):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class RememberingNorm(Norm):
    def forward(self, x):
        self.last = x.detach()
        return super().forward(x)


class ListingNorm(Norm):
    def __init__(self):
        super().__init__()
        self.shapes = []

    def forward(self, x):
        self.shapes.append(x.shape)
        return super().forward(x)


class ClassCountingNorm(Norm):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


class GlobalCountingNorm(Norm):
    def forward(self, x):
        global COUNT
        COUNT += 1
        return super().forward(x)


class GlobalListingNorm(Norm):
    def forward(self, x):
        CALLS.append(1)
        return super().forward(x)


class PrintingNorm(Norm):
    def forward(self, x):
        print("forward")
        return super().forward(x)


class CachingNorm(Norm):
    def forward(self, x):
        if not hasattr(self, "cached"):
            self.cached = x.shape[-1]
        return super().forward(x)


class WeightChangingNorm(Norm):
    def forward(self, x):
        self.weight.data.clamp_(-1, 1)
        with torch.no_grad():
            self.weight.mul_(1)
        return super().forward(x)


class TrainingCountingNorm(CountingNorm):
    def forward(self, x):
        self.calls += self.training
        return Norm.forward(self, x)


STATE = {
    CountingNorm: "side effect",
    RememberingNorm: "side effect",
    ListingNorm: "its attribute shapes is a list",
    ClassCountingNorm: "side effect",
    GlobalCountingNorm: "side effect",
    GlobalListingNorm: "side effect",
    PrintingNorm: "it prints",
    CachingNorm: "side effect",
    WeightChangingNorm: "changes its parameters",
    TrainingCountingNorm: "side effect",
}


def left(module):
    """Why patch left this module, which it must leave, as it was."""
    cls, before = type(module), dict(vars(module))
    report = patch(nn.ModuleList([module]))
    assert not report.replaced, str(report)
    assert type(module) is cls and vars(module) == before
    return report.left["0"]


def test_the_plain_module_is_replaced():
    assert patch(Norm()).replaced


@pytest.mark.parametrize("cls", [*GRADIENTS, DifferentWithGradNorm])
def test_gradients_are_compared(cls):
    reason = left(cls())
    assert "gradient" in reason or "backward" in reason


@pytest.mark.parametrize("cls", VALUES)
def test_unusual_rows_and_weights_are_compared(cls):
    assert "but not for" in left(cls())


@pytest.mark.parametrize("cls", STATE)
def test_side_effects_are_seen(cls, capsys):
    module = cls()
    assert STATE[cls] in left(module)
    assert getattr(module, "calls", 0) in (0, 1) and not getattr(module, "shapes", []) and not capsys.readouterr().out


def test_side_effects_in_a_closure_are_seen():
    seen = {}

    class ClosureNorm(Norm):
        def forward(self, x):
            seen["calls"] = seen.get("calls", 0) + 1
            return super().forward(x)

    assert "side effect" in left(ClosureNorm())


class FixedDimsNorm(Norm):
    def forward(self, x):
        if x.dim() < 2:
            raise ValueError("rows in batches only")
        return super().forward(x)


def test_a_row_without_batch_dims_is_refused_where_the_module_refuses_it():
    module = FixedDimsNorm()
    assert patch(module).replaced
    assert module(make(1, WIDTH)).shape == (1, WIDTH)
    with pytest.raises(ValueError, match="rows in batches only"):
        module(make(WIDTH))


def test_16_bit_types_whose_gradients_differ_are_not_replaced():
    class HalfDetachedNorm(Norm):
        def forward(self, x):
            h = x.float()
            factor = torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
            return (h * (factor if x.dtype == torch.float32 else factor.detach()) * self.weight.float()).to(x.dtype)

    (definition,) = patch(HalfDetachedNorm()).replaced.values()
    assert definition == "rms_norm eps=1e-06 (f32)"
    assert "gradient" in left(HalfDetachedNorm().bfloat16())


class Refusing:
    """Any class made from one with this base raises."""

    def __init_subclass__(cls, **kwargs):
        if cls.__name__ != "RefusingNorm" or "RefusingNorm" in [c.__name__ for c in cls.__mro__[1:]]:
            raise TypeError("no more subclasses")


class RefusingNorm(Refusing, Norm):
    pass


class SealedMeta(abc.ABCMeta):
    def __new__(mcs, name, bases, namespace):
        if any(type(b) is SealedMeta for b in bases):
            raise TypeError("sealed")
        return super().__new__(mcs, name, bases, namespace)


class SealedNorm(Norm, metaclass=SealedMeta):
    pass


class FrozenNorm(Norm):
    def __setattr__(self, name, value):
        if name == "__class__":
            raise AttributeError("frozen")
        super().__setattr__(name, value)


class RaisingPropertyNorm(Norm):
    @property
    def normalized_shape(self):
        raise LookupError("not yet")


@pytest.mark.parametrize("cls", [RefusingNorm, SealedNorm, RaisingPropertyNorm])
def test_a_class_that_raises_is_left_and_the_others_are_replaced(cls):
    model, x = nn.Sequential(Norm(), cls(), Norm()), make(3, WIDTH)
    expected = model(x)
    report = patch(model)
    assert sorted(report.replaced) == ["0", "2"] and "Error" in report.left["1"]
    assert type(model[1]) is cls and "_normkit_definition" not in vars(model[1])
    torch.testing.assert_close(model(x), expected)
    assert unpatch(model) == 2


def test_a_class_with_its_own_setattr_is_replaced_and_restored():
    module = FrozenNorm()
    assert patch(module).replaced and unpatch(module) == 1 and type(module) is FrozenNorm


def test_nothing_is_replaced_if_the_model_cannot_be_listed():
    class Model(nn.Sequential):
        def named_modules(self, *args, **kwargs):
            yield from super().named_modules(*args, **kwargs)
            raise RuntimeError("no more names")

    model = Model(Norm(), Norm())
    with pytest.raises(RuntimeError, match="no more names"):
        patch(model)
    assert all(type(m) is Norm for m in model)


class ReducingNorm(Norm):
    def __reduce__(self):
        return ReducingNorm, (self.eps,)


class NewArgumentNorm(Norm):
    def __new__(cls, *args):
        return super().__new__(cls)

    def __getnewargs__(self):
        return (self.eps,)


class DeepCopyNorm(Norm):
    def __deepcopy__(self, memo):
        made = type(self)(self.eps)
        made.load_state_dict(self.state_dict())
        return made


@pytest.mark.parametrize("cls", [ReducingNorm, NewArgumentNorm])
def test_classes_that_say_how_they_are_pickled_are_left(cls):
    assert "of its own" in left(cls(1e-3))


def test_copies_by_a_classs_own_deepcopy_work():
    module, x = DeepCopyNorm(1e-3), make(3, WIDTH)
    patch(module)
    other = copy.deepcopy(module)
    torch.testing.assert_close(other(x), module(x))


def test_a_patched_module_does_not_carry_the_parameters_of_another():
    first, second = Norm(), Norm()
    patch(nn.ModuleList([first, second]))
    first.weight.data = torch.full((WIDTH,), 123.0)
    assert len(pickle.dumps(second)) < len(pickle.dumps(Norm())) + 4 * WIDTH + 2000
    assert copy.deepcopy(second)(make(3, WIDTH)).abs().max() < 100


def test_modules_of_unusual_copying_are_not_copied_to_be_examined():
    class UncopyableNorm(Norm):
        def __copy__(self):
            raise RuntimeError("not to be copied")

    assert patch(UncopyableNorm()).replaced


def test_the_report_says_that_nothing_was_replaced_and_why():
    text = str(patch(nn.Sequential(DetachedFactorNorm())))
    assert "nothing was replaced" in text and "gradients" in text

    class Scaler(Norm):
        pass

    text = str(patch(nn.Sequential(Scaler(), Scaler(), nn.Linear(3, 3))))
    assert 'no module has "norm" in its class name' in text and "Scaler (2)" in text and "Linear" not in text
    assert "nothing was replaced" not in str(patch(Norm()))
    assert "Scaler (1)" in str(patch(nn.Sequential(Norm(), Scaler())))  # also beside others


@pytest.mark.parametrize("call", [patch, unpatch])
def test_what_is_no_model_is_refused(call):
    with pytest.raises(TypeError, match=r"patch: model is a Tensor, expected a torch\.nn\.Module"):
        call(torch.ones(3))


@pytest.mark.parametrize("make", [lambda: torch.nn.LayerNorm(8), lambda: torch.nn.RMSNorm(8)], ids=["layer", "rms"])
def test_double_precision_modules_are_replaced(make):
    module = torch.nn.Sequential(make().double())
    x = torch.randn(3, 8, dtype=torch.float64)
    want = module(x)
    report = patch(module)
    assert len(report.replaced) == 1
    torch.testing.assert_close(module(x), want)
    assert "f64" in str(patch(torch.nn.Sequential(make())))


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-10, 10)


class ClippedNorm(torch.nn.RMSNorm):
    def forward(self, x):
        return Clipped.apply(super().forward(x))


class HookedNorm(torch.nn.LayerNorm):
    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda g: g.clamp(-10, 10))
        return y


class CleanedNorm(torch.nn.LayerNorm):
    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda g: g.nan_to_num(0.0))
        return y


@pytest.mark.parametrize("kind", [ClippedNorm, HookedNorm, CleanedNorm])
def test_a_backward_that_changes_its_gradient_is_left(kind):
    report = patch(torch.nn.Sequential(kind(8)))
    assert not report.replaced
    assert "gradients are others" in str(report)
