"""Channel norms: inputs and options that the engine does not take get torch's own answer, or its error."""

import pytest
import torch
from test_fallback import Logged, same_answer
from torch_helpers import F, close_to_torch, make

C = 4
T = torch.nn.functional
INPUTS = {
    "complex": lambda: torch.randn(3, C, 2, dtype=torch.complex64),
    "integer": lambda: torch.arange(24).reshape(3, C, 2),
    "float8": lambda: torch.ones(3, C, 2).to(torch.float8_e4m3fn),
    "sparse": lambda: torch.ones(3, C, 2).to_sparse(),
    "mkldnn": lambda: torch.ones(3, C, 2, 2).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([make(C, 2), make(C, 3)]),
    "subclass": lambda: make(3, C, 2).as_subclass(Logged),
    "no dims": lambda: torch.tensor(1.0),
    "one dim": lambda: torch.ones(C),
    "nine dims": lambda: make(2, C, *[1] * 6, 3),
    "no channels": lambda: torch.ones(3, 0, 2),
}


def running(dtype=torch.float32, shape=(C,)):
    return torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype)


def same(name, x, args, *rest, **kwargs):
    """args makes the arguments that a call may change."""
    ours, theirs = getattr(F, name), getattr(T, name)
    same_answer(lambda: ours(x, *args(), *rest, **kwargs), lambda: theirs(x, *args(), *rest, **kwargs))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", INPUTS)
def test_unusual_inputs(name, grad):
    torch.manual_seed(0)
    x, w = INPUTS[name](), torch.ones(C, requires_grad=grad)
    for training in (True, False):
        for function in ("batch_norm", "instance_norm"):
            same(function, x, running, w, None, training)
    if name != "nine dims":  # the engine takes these, as other samples of the same rows
        same("group_norm", x, lambda: (2,), w)


X = (3, C, 5)
OPTIONS = {
    "eval without statistics": ("batch_norm", (None, None), {"training": False}),
    "only a mean": ("batch_norm", (torch.zeros(C), None), {"training": True}),
    "only a variance": ("batch_norm", (None, torch.ones(C)), {"training": True}),
    "few statistics": ("batch_norm", running(shape=(3,)), {"training": True}),
    "few weights": ("batch_norm", running(), {"weight": torch.ones(3)}),
    "momentum None": ("batch_norm", running(), {"training": True, "momentum": None}),
    "momentum 2": ("batch_norm", running(), {"training": True, "momentum": 2.0}),
    "momentum -1": ("instance_norm", running(), {"momentum": -1.0}),
    "statistics that require gradients": (
        "batch_norm",
        (torch.zeros(C, requires_grad=True), torch.ones(C)),
        {"training": True},
    ),
    "f64 statistics": ("batch_norm", running(torch.float64), {"training": True}),
    "eps 0 in training": ("batch_norm", (None, None), {"training": True, "eps": 0.0}),
    "negative eps": ("batch_norm", running(), {"eps": -1e-5}),
    "eps None": ("group_norm", (2,), {"eps": None}),
    "negative eps, group_norm": ("group_norm", (2,), {"eps": -1e-5}),
    "indivisible": ("group_norm", (3,), {}),
    "groups 2.0": ("group_norm", (2.0,), {}),
    "weights of another shape": ("group_norm", (2,), {"weight": torch.ones(1, C)}),
    "instance_norm in evaluation without statistics": ("instance_norm", (), {"use_input_stats": False}),
    "a NumPy bias": ("group_norm", (2,), {"bias": torch.ones(C).numpy()}),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_unusual_options(what):
    name, args, kwargs = OPTIONS[what]
    differentiated = what == "statistics that require gradients"

    def own():
        return [t.clone() if isinstance(t, torch.Tensor) and not differentiated else t for t in args]

    for grad in (False, True):
        same(name, make(*X).requires_grad_(grad), own, **kwargs)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["batch_norm", "instance_norm"])
def test_every_combination_of_types_gives_the_type_that_torch_gives_or_works_where_it_fails(name, training):
    types = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    for x_type, w_type, r_type in [(a, b, c) for a in types for b in types for c in types]:
        x, w = make(*X, dtype=x_type), make(C, dtype=w_type)
        ours, theirs = running(r_type), running(r_type)
        try:
            expected = getattr(T, name)(x, *theirs, w, None, training)
        except RuntimeError:
            if {w_type, r_type} <= {x_type, torch.float32}:  # the engine takes these
                assert getattr(F, name)(x, *ours, w, None, training).dtype == x_type
                continue
            with pytest.raises(RuntimeError):
                getattr(F, name)(x, *ours, w, None, training)
        else:
            close_to_torch(getattr(F, name)(x, *ours, w, None, training), expected)
            exact = running(torch.float64)
            getattr(T, name)(x.double(), *exact, None, None, training)
            for a, b, e in zip(ours, theirs, exact, strict=True):
                if {w_type, r_type} <= {x_type, torch.float32}:  # torch's own are less exact for 16-bit inputs
                    narrow = r_type if x_type == torch.float64 else x_type
                    close_to_torch(a.to(narrow), e.to(narrow))
                else:
                    assert torch.equal(a, b)


def test_subclasses_see_torchs_function_and_keep_their_type():
    x = make(*X).as_subclass(Logged)
    for f, g in ((F.group_norm, T.group_norm), (F.batch_norm, T.batch_norm), (F.instance_norm, T.instance_norm)):
        Logged.calls.clear()
        args = (2,) if f is F.group_norm else running()
        assert type(f(x, *args)) is Logged and g in Logged.calls
    mean = running()[0].as_subclass(Logged)
    Logged.calls.clear()
    F.batch_norm(make(*X), mean, torch.ones(C), training=True)
    assert T.batch_norm in Logged.calls
