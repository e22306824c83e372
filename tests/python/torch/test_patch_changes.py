"""Modules that change after they were patched: what they compute is always what their own forward would."""

import copy
import io
import sys

import normkit.torch
import pytest
import torch
from normkit.torch import patch, unpatch
from torch import nn
from torch.nn.utils import parametrize, prune
from torch_helpers import close_to_torch, make

WIDTH = 32


class Norm(nn.Module):
    """A norm whose forward looks at everything that can be changed."""

    scale = 1.0

    def __init__(self, bias=False):
        super().__init__()
        self.variance_epsilon = 1e-6
        self.power = 2
        self.mode = "multiply"
        self.function = torch.rsqrt
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.register_parameter("bias", nn.Parameter(torch.randn(WIDTH)) if bias else None)

    def forward(self, x):
        y = x * self.function(x.pow(self.power).mean(-1, keepdim=True) + self.variance_epsilon)
        y = y * self.scale * getattr(self, "gain", 1.0)
        if self.weight is not None:
            y = y * self.weight if self.mode == "multiply" else y + self.weight
        return y if self.bias is None else y + self.bias


def new_bias(module):
    module.bias = nn.Parameter(torch.randn(module.weight.shape))


CHANGES = {
    "eps": lambda m: setattr(m, "variance_epsilon", 0.5),
    "another number": lambda m: setattr(m, "power", 4),
    "a word": lambda m: setattr(m, "mode", "add"),
    "a function": lambda m: setattr(m, "function", torch.sqrt),
    "a new attribute that hides the class's": lambda m: setattr(m, "scale", 3.0),
    "a tensor in place of a number": lambda m: setattr(m, "variance_epsilon", torch.tensor(0.5)),
    "a parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.full((WIDTH,), 3.0))),
    "a parameter of one element": lambda m: setattr(m, "weight", nn.Parameter(torch.tensor([3.0]))),
    "a parameter of another type": lambda m: setattr(m, "weight", nn.Parameter(torch.rand(WIDTH).double())),
    "no parameter": lambda m: setattr(m, "weight", None),
    "values": lambda m: m.weight.data.fill_(-2.0),
    "a bias": new_bias,
    "a buffer": lambda m: m.register_buffer("gain", torch.tensor(2.0)),
    "pruning": lambda m: prune.random_unstructured(m, "weight", 0.5),
    "around the attributes": lambda m: vars(m).update(variance_epsilon=0.5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_counts(name):
    module, x = Norm(), make(4, WIDTH)
    assert patch(module).replaced
    before = module(x)
    torch.manual_seed(0)
    CHANGES[name](module)
    changed = module(x)
    expected = Norm.forward(module, x)
    close_to_torch(changed, expected)
    assert not torch.allclose(changed, before.to(changed.dtype), rtol=1e-3)
    dy = make(4, WIDTH, seed=1, dtype=changed.dtype)
    given = x.clone().requires_grad_()
    gradients = (torch.autograd.grad(f(given), given, dy)[0] for f in (module, lambda x: Norm.forward(module, x)))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_a_bias_may_go_or_get_another_shape_or_type():
    x = make(4, WIDTH)
    for bias in (None, torch.ones(1), torch.ones(WIDTH, dtype=torch.float64), torch.ones(4, WIDTH)):
        module = Norm(bias=True)
        assert patch(module).replaced
        module.bias = None if bias is None else nn.Parameter(bias)
        close_to_torch(module(x), Norm.forward(module, x))


@pytest.mark.parametrize("make_module", [nn.LayerNorm, nn.RMSNorm])
def test_torchs_own_modules_follow_their_attributes(make_module):
    x = make(4, WIDTH)
    for change in ({"eps": 0.5}, {"normalized_shape": (4, WIDTH)}, {"weight": None}):
        module = make_module(WIDTH)
        assert patch(module).replaced
        for name, value in change.items():
            setattr(module, name, value)
        try:
            expected = make_module.forward(module, x)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                module(x)
        else:
            close_to_torch(module(x), expected)


def engine_answers(module, x, monkeypatch):
    """Whether normkit computes this module's result, and not its original forward."""
    with monkeypatch.context() as m:
        m.setattr(normkit.torch._patch, "fast", lambda o, x, weight, bias: torch.full_like(x, 7.0))
        return bool((module(x) == 7.0).all())


def test_what_no_forward_reads_does_not_undo_the_replacement(monkeypatch):
    module, x = Norm(), make(4, WIDTH)
    patch(module)
    assert engine_answers(module, x, monkeypatch)
    module.eval()
    module.requires_grad_(False)
    module.weight = nn.Parameter(torch.ones(WIDTH))
    module.register_forward_hook(lambda *_: None)
    module.load_state_dict(copy.deepcopy(module.state_dict()), assign=True)
    module.bfloat16().float()
    assert engine_answers(module, x, monkeypatch)
    assert engine_answers(copy.deepcopy(module), x, monkeypatch)
    torch.compile(module, backend="eager")  # leaves a mark on the module
    assert engine_answers(module, x, monkeypatch)
    module.variance_epsilon = 0.5
    assert not engine_answers(module, x, monkeypatch)
    module.variance_epsilon = 1e-6
    assert engine_answers(module, x, monkeypatch)


def test_a_changed_module_can_be_proven_again():
    module, x = nn.LayerNorm(WIDTH), make(4, WIDTH)
    patch(module)
    module.eps = 0.5
    unpatch(module)
    assert "eps=0.5" in patch(module).replaced[""]
    close_to_torch(module(x), nn.LayerNorm.forward(module, x))


def test_compiled_modules_follow_their_attributes():
    torch._dynamo.reset()
    module, x = Norm(), make(4, WIDTH)
    patch(module)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    close_to_torch(compiled(x), Norm.forward(module, x))
    module.variance_epsilon = 0.5
    close_to_torch(compiled(x), Norm.forward(module, x))
    module.weight = None
    close_to_torch(compiled(x), Norm.forward(module, x))


def test_parametrized_weights_follow():
    class Twice(nn.Module):
        def forward(self, w):
            return 2 * w

    module, x = Norm(), make(4, WIDTH)
    patch(module)
    expected = 2 * module(x)
    parametrize.register_parametrization(module, "weight", Twice())
    close_to_torch(module(x), expected)


def scaled(self, x):
    return 2 * Norm.forward(self, x)


def new_class():
    """A class of its own for one test, which may change it; importable for pickle."""

    class ChangingNorm(Norm):
        gain_of_class = 1.0

        def forward(self, x):
            return super().forward(x) * self.gain_of_class

    ChangingNorm.__qualname__ = "ChangingNorm"
    return ChangingNorm


def test_a_forward_that_is_replaced_on_the_class_is_called():
    cls, x = new_class(), make(4, WIDTH)
    module, original = cls(), cls.forward
    patch(module)
    expected = module(x)
    copied = copy.deepcopy(module)
    cls.forward = scaled
    for m in (module, copied, copy.deepcopy(module)):
        torch.testing.assert_close(m(x), 2 * expected)
    cls.forward = original
    assert torch.equal(module(x), expected)


def test_a_forward_that_a_base_class_gets_later_is_called():
    cls, x = new_class(), make(4, WIDTH)
    derived = type("DerivedNorm", (cls,), {})
    module = derived()
    patch(module)
    expected = module(x)
    cls.forward = scaled
    torch.testing.assert_close(module(x), 2 * expected)


@pytest.mark.parametrize("when", ["before saving", "never"])
def test_saved_modules_know_whether_their_forward_was_replaced(when, monkeypatch):
    cls, x = new_class(), make(4, WIDTH)
    monkeypatch.setattr(sys.modules[__name__], "ChangingNorm", cls, raising=False)
    module, original = cls(), cls.forward
    original.__qualname__ = "a name under which there is nothing"
    patch(module)
    expected = module(x)
    if when == "before saving":
        cls.forward = scaled
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert engine_answers(loaded, x, monkeypatch) == (when == "never")
    torch.testing.assert_close(loaded(x), expected if when == "never" else 2 * expected)


def test_numbers_of_the_class_count():
    cls, x = new_class(), make(4, WIDTH)
    module = cls()
    patch(module)
    expected = module(x)
    cls.gain_of_class = 3.0
    torch.testing.assert_close(module(x), 3 * expected)
    del cls.gain_of_class
    with pytest.raises(AttributeError, match="gain_of_class"):
        module(x)


def test_a_forward_made_anew_at_every_access_is_left():
    class Anew:
        def __get__(self, instance, owner):
            return Norm.forward.__get__(instance) if instance is not None else lambda self, x: Norm.forward(self, x)

    module = type("AnewNorm", (Norm,), {"forward": Anew()})()
    assert "anew" in patch(module).left[""]


def test_compiled_modules_notice_a_forward_that_is_replaced():
    torch._dynamo.reset()
    cls, x = new_class(), make(4, WIDTH)
    module = cls()
    patch(module)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    expected = compiled(x)
    cls.gain_of_class = 3.0
    torch.testing.assert_close(compiled(x), 3 * expected)
    cls.forward = scaled
    torch.testing.assert_close(compiled(x), 2 * expected)
