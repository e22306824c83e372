"""A module under examination: run on crafted rows with crafted parameters, the real ones neither read nor touched."""

from __future__ import annotations

import copy
import math
import warnings

import torch
from torch import Tensor

from ._compose import compose
from ._options import Options

_UNKNOWN_WIDTHS = (24, 40)  # tried where the module does not tell the width of its rows
_BIAS_NAMES = ("bias", "beta", "shift")


class NotProven(Exception):
    """No definition is proven; the text is the reason, for the report."""


class Parts:
    """The names of a module's weight and bias, and the shape of the dims it normalizes (None: any last dim)."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Raises NotProven if the module cannot be a norm of rows, whatever it computes."""
        if "forward" in vars(module):
            raise NotProven("its forward is replaced on the instance")
        if isinstance(module, torch.jit.ScriptModule):
            raise NotProven("it is a TorchScript module")
        if any(True for _ in module.children()):
            raise NotProven("it has submodules")
        if any(True for _ in module.buffers()):
            raise NotProven("it has buffers")
        if any(isinstance(v, Tensor) for v in vars(module).values()):
            raise NotProven("it holds tensors that are not parameters")
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
            if p.shape != self.parameters[weights[0]].shape:
                raise NotProven("its weight and bias differ in shape")
        self.shape = self._shape(module)
        # Where the engine cannot see from the weight that x has other last dims than the module was made for.
        self.shape_matters = self.shape is not None and (not weights or self.parameters[weights[0]].numel() == 1)

    def _shape(self, module: torch.nn.Module) -> tuple[int, ...] | None:
        told = getattr(module, "normalized_shape", None)
        if isinstance(told, (tuple, list)) and told and all(type(n) is int and n > 0 for n in told):
            return tuple(told)
        if self.weight is None or self.parameters[self.weight].numel() == 1:
            return None
        return tuple(self.parameters[self.weight].shape)

    @property
    def dtype(self) -> torch.dtype | None:
        return None if self.weight is None else self.parameters[self.weight].dtype


class Probe:
    """The module with parameters of its own, of type w_dtype, ready to be asked with rows of type x_dtype."""

    def __init__(
        self, module: torch.nn.Module, parts: Parts, x_dtype: torch.dtype, w_dtype: torch.dtype | None
    ) -> None:
        self.x_dtype = x_dtype
        self.shapes = [(n,) for n in _UNKNOWN_WIDTHS] if parts.shape is None else [parts.shape]
        self._parts = parts
        self._generator = torch.Generator().manual_seed(20240229)
        self._module = copy.copy(module)
        self._module._parameters = dict(module._parameters)
        self.weight = self._random(parts.weight, w_dtype, 0.3, 1.7)
        self.bias = self._random(parts.bias, w_dtype, -1.0, 1.0)

    def _random(self, name: str | None, dtype: torch.dtype | None, low: float, high: float) -> Tensor | None:
        if name is None:
            return None
        values = torch.rand(self._parts.parameters[name].shape, generator=self._generator, dtype=torch.float64)
        return (values * (high - low) + low).to(dtype)

    def rows(self, shape: tuple[int, ...], batch: tuple[int, ...], scale: float = 1.0) -> Tensor:
        """Rows with a mean and a size of their own, so that no row can stand for another."""
        x = torch.randn((*batch, *shape), generator=self._generator, dtype=torch.float64)
        size = torch.rand((*batch, *[1] * len(shape)), generator=self._generator, dtype=torch.float64)
        return ((x + 0.4) * (size + 0.5) * scale).to(self.x_dtype)

    def batches(self, shape: tuple[int, ...], elements: int = 0) -> list[tuple[int, ...]]:
        """One, two and three batch dims, of sizes that differ from the normalized ones; the first of many elements."""
        many = max(7, elements // math.prod(shape))
        a, b, c = [n for n in (2, 3, 4, 5, 6, 7) if n not in shape][:3]
        return [(many + (many in shape),), (a, b), (b, 1, c)]

    def ask(self, x: Tensor, with_bias: bool = True, training: bool = False) -> Tensor:
        """The module's answer: a tensor of x's shape and type. Raises NotProven for anything else."""
        module, given = self._module, x.clone()
        module.training = training
        for name, value in ((self._parts.weight, self.weight), (self._parts.bias, self.bias)):
            if name is not None and value is not None:
                value = value if with_bias or name == self._parts.weight else torch.zeros_like(value)
                module._parameters[name] = torch.nn.Parameter(value.clone(), requires_grad=False)
        try:
            with warnings.catch_warnings():  # torch's remarks on our crafted mixes of types are not for the user
                warnings.simplefilter("ignore")
                y = type(module).forward(module, given)
        except Exception as error:  # the module is the user's: it may raise anything
            raise NotProven(f"it does not take {short(x.dtype)} rows of shape {list(x.shape)}: {error}") from error
        if not isinstance(y, Tensor) or y.shape != x.shape:
            raise NotProven("its result is not a tensor of the input's shape")
        if y.dtype != x.dtype:
            raise NotProven(f"for {short(x.dtype)} input it returns {short(y.dtype)}")
        if not torch.equal(given, x):
            raise NotProven("it writes to its input")
        return y

    def expect(self, o: Options, x: Tensor, with_bias: bool = True) -> Tensor:
        """What o says, in f64."""
        return compose(o, x.double(), self.weight, self.bias if with_bias else None, None, x.dtype, x.dtype)[0]


def short(dtype: torch.dtype) -> str:
    """f32 for torch.float32, bf16 for torch.bfloat16."""
    return str(dtype).replace("torch.", "").replace("bfloat", "bf").replace("float", "f")
