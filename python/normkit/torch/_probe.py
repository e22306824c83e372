"""A module under examination: run on crafted rows with crafted parameters, the real ones neither read nor touched."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._compose import compose
from ._options import Options
from ._watch import changeable, listening, same, surroundings

_UNKNOWN_WIDTHS = (24, 40)  # tried where the module does not tell the width of its rows
_BIAS_NAMES = ("bias", "beta", "shift")
_MAGNITUDES = (1e-6, 1e-3, 1e3, 1e6, 1e15)  # of weights and biases: clamps of any sense lie between two of them
MOST_BATCH_DIMS = 4  # that a module is asked with


class NotProven(Exception):
    """No definition is proven; the text is the reason, for the report."""


class Parts:
    """The names of a module's weight and bias, and the shape of the dims it normalizes (None: any last dim)."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Raises NotProven if the module cannot be a norm of rows, whatever it computes."""
        if "forward" in vars(module):
            raise NotProven("its forward is replaced on the instance")
        if type(module).forward is not type(module).forward:
            raise NotProven("its forward is made anew at every access, so that changes would go unnoticed")
        if isinstance(module, torch.jit.ScriptModule):
            raise NotProven("it is a TorchScript module")
        if any(True for _ in module.children()):
            raise NotProven("it has submodules")
        if any(True for _ in module.buffers()):
            raise NotProven("it has buffers")
        if any(isinstance(v, Tensor) for v in vars(module).values()):
            raise NotProven("it holds tensors that are not parameters")
        name = changeable(module)
        if name is not None:
            held = type(vars(module)[name]).__name__
            raise NotProven(f"its attribute {name} is a {held}, in which changes would go unnoticed")
        self.parameters = {k: p for k, p in module._parameters.items() if p is not None}
        self.bias = next((k for k in self.parameters if k in _BIAS_NAMES), None)
        weights = [k for k in self.parameters if k != self.bias]
        if len(weights) > 1 or (self.bias is not None and not weights):
            raise NotProven(f"its parameters are {', '.join(self.parameters)}: not one weight and at most one bias")
        self.weight = weights[0] if weights else None
        for name, p in self.parameters.items():
            if torch.nn.parameter.is_lazy(p):
                raise NotProven(f"its {name} is not initialized")
            if p.device.type not in ("cpu", "meta"):
                raise NotProven(f"its {name} is on {p.device}")
            if (p.shape, p.dtype) != (self.parameters[weights[0]].shape, self.dtype):
                raise NotProven("its weight and bias differ in shape or type")
        self.shape = self._shape(module)

    def _shape(self, module: torch.nn.Module) -> tuple[int, ...] | None:
        told = getattr(module, "normalized_shape", None)
        if isinstance(told, (tuple, list)) and told and all(type(n) is int and n > 0 for n in told):
            return tuple(told)
        if self.weight is None or self.parameters[self.weight].numel() == 1:
            return None
        return tuple(self.parameters[self.weight].shape)

    @property
    def weight_shape(self) -> torch.Size | None:
        return None if self.weight is None else self.parameters[self.weight].shape

    @property
    def dtype(self) -> torch.dtype | None:
        return None if self.weight is None else self.parameters[self.weight].dtype


class Case(NamedTuple):
    """One question to a module: rows and parameters. what: why they are special, for the report."""

    what: str
    x: Tensor
    weight: Tensor | None
    bias: Tensor | None


class Probe:
    """The module with parameters of its own, of type w_dtype, ready to be asked with rows of type x_dtype."""

    def __init__(
        self, module: torch.nn.Module, parts: Parts, x_dtype: torch.dtype, w_dtype: torch.dtype | None
    ) -> None:
        self.x_dtype = x_dtype
        self.shapes = [(n,) for n in _UNKNOWN_WIDTHS] if parts.shape is None else [parts.shape]
        self._parts = parts
        self._generator = torch.Generator().manual_seed(20240229)
        self._module = _empty_copy(module)
        self.weight = self._random(parts.weight, w_dtype, 0.3, 1.7)
        self.bias = self._random(parts.bias, w_dtype, -1.0, 1.0)

    def _random(self, name: str | None, dtype: torch.dtype | None, low: float, high: float) -> Tensor | None:
        if name is None:
            return None
        values = torch.rand(self._parts.parameters[name].shape, generator=self._generator, dtype=torch.float64)
        return (values * (high - low) + low).to(dtype)

    @property
    def huge(self) -> float:
        """A size whose square f32 can hold and sum; in f16 one that leaves room for the spread of the rows."""
        return 1e3 if self.x_dtype == torch.float16 else 1e15

    def rows(self, shape: tuple[int, ...], batch: tuple[int, ...], scale: float = 1.0) -> Tensor:
        """Rows with a mean and a size of their own, so that no row can stand for another."""
        x = torch.randn((*batch, *shape), generator=self._generator, dtype=torch.float64)
        size = torch.rand((*batch, *[1] * len(shape)), generator=self._generator, dtype=torch.float64)
        return ((x + 0.4) * (size + 0.5) * scale).to(self.x_dtype)

    def batches(self, shape: tuple[int, ...], elements: int = 0) -> list[tuple[int, ...]]:
        """One to four batch dims, of sizes that differ from the normalized ones; the first of many elements."""
        many = max(7, elements // math.prod(shape))
        a, b, c = [n for n in range(2, 5 + len(shape)) if n not in shape][:3]
        return [(many + (many in shape),), (a, b), (b, 1, c), (c, a, 1, b)]

    def case(self, shape: tuple[int, ...], batch: tuple[int, ...], scale: float = 1.0) -> Case:
        """Rows of one size; without a bias where it would drown them."""
        bias = self.bias if scale == 1.0 or self.bias is None else torch.zeros_like(self.bias)
        what = f"a batch {list(batch)} of rows of size {scale:g}"
        return Case(what, self.rows(shape, batch, scale), self.weight, bias)

    def special_weights(self, shape: tuple[int, ...]) -> Iterator[Case]:
        """Weights and biases of both signs and many sizes: what tells abs(weight), a clamp and the like."""
        usual = self.case(shape, self.batches(shape)[0])
        if usual.weight is None:
            return
        signed = usual.weight.clone()
        signed.view(-1)[::2] *= -1
        for what, weight in (
            ("weights of both signs", signed),
            ("weights of zero", torch.zeros_like(signed)),
        ):
            yield usual._replace(what=what, weight=weight)
        for size in _MAGNITUDES:
            if 10 * size < torch.finfo(self.x_dtype).max:  # room for the spread of rows and weights
                what = f"weights and biases of size {size:g}"
                bias = None if usual.bias is None else usual.bias * size
                yield usual._replace(what=what, weight=signed * size, bias=bias)

    def special_rows(self, shape: tuple[int, ...]) -> Iterator[Case]:
        """Rows beside others that must not touch them: of one large element, inf, NaN, zeros (the last one)."""
        usual = self.case(shape, (6,))
        x = usual.x.clone().view(6, -1)
        x[1] *= 0.01
        x[1, 0] = 10.0
        x[2] = math.nan
        x[3, -1] = math.inf
        x[4, -1] = -math.inf
        x[5] = 0.0
        yield usual._replace(what="rows with one large element, inf, NaN or only zeros", x=x.view(usual.x.shape))

    def ask(self, case: Case, training: bool = False) -> Tensor:
        """The module's answer: a tensor of x's shape and type. Raises NotProven for anything else."""
        given = case.x.clone()
        y = self._call(given, self._parameters(case, False), training)
        if not isinstance(y, Tensor) or y.shape != given.shape:
            raise NotProven("its result is not a tensor of the input's shape")
        if y.dtype != given.dtype:
            raise NotProven(f"for {short(given.dtype)} input it returns {short(y.dtype)}")
        if not torch.equal(given.nan_to_num(), case.x.nan_to_num()):
            raise NotProven("it writes to its input")
        return y

    def ask_gradients(
        self, case: Case, dy: Tensor, of: tuple[bool, bool] = (True, True), training: bool = True
    ) -> list[Tensor]:
        """[y, dx, dweight, dbias] by the module's own forward and backward, without those it has no parameter for.

        of: whether x and whether the parameters require gradients; only theirs are returned.
        """
        with torch.enable_grad():
            x, parameters = case.x.clone().requires_grad_(of[0]), self._parameters(case, of[1])
            y = self._call(x, parameters, training)
            if not y.requires_grad:
                raise NotProven("its result has no gradient" + ("" if all(of) else " if only some of its inputs do"))
            leaves = [t for t in (x, *parameters.values()) if t.requires_grad]
            if _has_other_leaves(y, leaves):
                raise NotProven("its result has gradients by a tensor that is neither its input nor its parameter")
            try:
                grads = torch.autograd.grad(y, leaves, dy, allow_unused=True)
            except Exception as error:  # of a backward of the user's
                raise NotProven(f"its backward fails: {error}") from error
        if any(g is None for g in grads):
            raise NotProven("its result has no gradient by its input or a parameter")
        return [y.detach(), *grads]

    def _parameters(self, case: Case, requires_grad: bool) -> dict[str, torch.nn.Parameter]:
        pairs = ((self._parts.weight, case.weight), (self._parts.bias, case.bias))
        return {
            name: torch.nn.Parameter(value.clone(), requires_grad=requires_grad)
            for name, value in pairs
            if name is not None and value is not None
        }

    def _call(self, x: Tensor, parameters: dict[str, torch.nn.Parameter], training: bool) -> Any:
        self._module.training = training
        self._module._parameters.update(parameters)
        try:
            with warnings.catch_warnings():  # torch's remarks on our crafted mixes of types are not for the user
                warnings.simplefilter("ignore")
                return type(self._module).forward(self._module, x)
        except Exception as error:  # the module is the user's: it may raise anything
            raise NotProven(f"it does not take {short(x.dtype)} rows of shape {list(x.shape)}: {error}") from error

    def side_effect(self, case: Case, training: bool) -> str | None:
        """What a forward leaves behind besides its result, in words; None if nothing. To be asked before all else."""
        self._module.training = training
        parameters = self._parameters(case, False)
        self._module._parameters.update(parameters)
        before = surroundings(self._module)
        with listening() as ears:
            self._call(case.x.clone(), {}, training)
        if any(ear.heard for ear in ears):
            return "it prints"
        if any(p._version for p in parameters.values()):
            return "it changes its parameters"
        return None if same(before, surroundings(self._module)) else "it changes attributes or variables"

    def heeds_autocast(self, case: Case) -> bool:
        """True if the module answers otherwise while autocast is on."""
        plain = self.ask(case)
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                try:
                    y = self._call(case.x.clone(), self._parameters(case, False), training=False)
                except NotProven:
                    return True
            if not isinstance(y, Tensor) or y.dtype != plain.dtype or not torch.equal(y, plain):
                return True
        return False

    def expect(self, o: Options, case: Case) -> Tensor:
        """What o says, in f64."""
        return compose(o, case.x.double(), case.weight, case.bias, None, case.x.dtype, case.x.dtype)[0]

    def expect_gradients(self, o: Options, case: Case, dy: Tensor) -> list[Tensor]:
        """What o says that `ask_gradients` gives, in f64."""
        with torch.enable_grad():
            given = (case.x, case.weight, case.bias)
            leaves = [None if t is None else t.to(torch.float64, copy=True).requires_grad_() for t in given]
            x, weight, bias = leaves
            assert x is not None
            y = compose(o, x, weight, bias, None, case.x.dtype, case.x.dtype)[0]
            grads = torch.autograd.grad(y, [t for t in leaves if t is not None], dy.double())
        return [y.detach(), *grads]


def _has_other_leaves(y: Tensor, leaves: list[Tensor]) -> bool:
    """True if autograd would carry gradients from y to a tensor that is none of leaves."""
    pending, seen = [y.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            leaf = node.variable  # type: ignore[attr-defined]
            if not any(leaf is t for t in leaves):
                return True
        pending += [following for following, _ in node.next_functions]
    return False


def _empty_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A module of the same class and attributes, whose parameters can be replaced without touching the real one's.

    Not by copy.copy: classes may define what that does.
    """
    copied = object.__new__(type(module))
    copied.__dict__.update(vars(module))
    for name in ("_parameters", "_buffers", "_modules"):
        copied.__dict__[name] = dict(vars(module)[name])
    return copied


def short(dtype: torch.dtype) -> str:
    """f32 for torch.float32, bf16 for torch.bfloat16."""
    return str(dtype).replace("torch.", "").replace("bfloat", "bf").replace("float", "f")
