"""patch(model): let normkit compute the norms of a model that exists already; unpatch(model) undoes it.

A patched module stays the object it was: only its class becomes a subclass of the one it had, whose forward calls
normkit where the module's definition was proven (see _define) and the original forward everywhere else: other types,
other devices, more arguments, torch.func transforms. Parameters, hooks, state_dict keys, optimizers, tied weights and
isinstance checks are untouched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ._define import Definition, define
from ._probe import NotProven
from ._route import route
from .functional import fast, norm
from .modules import LayerNorm, RMSNorm, parameter

__all__ = ["PatchReport", "patch", "unpatch"]

_ATTRIBUTE = "_normkit_definition"


@dataclass
class PatchReport:
    """What `patch` did. Names are those of `model.named_modules()`; a shared module is listed under each of them."""

    replaced: dict[str, str] = field(default_factory=dict)  # name -> definition
    left: dict[str, str] = field(default_factory=dict)  # name -> why

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} norms replaced, {len(self.left)} left"]
        for title, entries in (("replaced", self.replaced), ("left", self.left)):
            groups: dict[str, list[str]] = {}
            for name, text in entries.items():
                groups.setdefault(text, []).append(name or "(the model itself)")
            for text, names in groups.items():
                shown = ", ".join(names[:3]) + (f", ... ({len(names)})" if len(names) > 3 else "")
                lines.append(f"  {title}: {text}\n    {shown}")
        return "\n".join(lines)


def patch(model: torch.nn.Module) -> PatchReport:
    """Replace the forward of every norm in model whose definition can be proven; return what was done and why not.

    Looked at are the modules whose class name contains "norm". Names prove nothing: each module is run on crafted rows
    to find out what it computes (layer_norm, rms_norm or l2_norm; eps and its place; 1 + weight; where 16-bit results
    are rounded). Modules on other devices than the CPU, with a replaced forward, and those that compute something else
    are left. Patching twice is harmless.
    """
    report = PatchReport()
    verdicts: dict[int, Definition | str] = {}
    known: dict[Any, Definition | str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if "norm" not in type(module).__name__.lower() or isinstance(module, (LayerNorm, RMSNorm)):
            continue
        if _ATTRIBUTE in vars(module):
            report.replaced[name] = str(vars(module)[_ATTRIBUTE])
            continue
        if id(module) not in verdicts:
            key = _key(module)
            if key not in known:
                known[key] = _verdict(module)
            verdicts[id(module)] = known[key]
        verdict = verdicts[id(module)]
        (report.left if isinstance(verdict, str) else report.replaced)[name] = str(verdict)
    for module in list(model.modules()):
        definition = verdicts.get(id(module))
        if isinstance(definition, Definition):
            module.__dict__[_ATTRIBUTE] = definition
            module.__class__ = _patched_class(type(module))
    return report


def unpatch(model: torch.nn.Module) -> int:
    """Give every patched module in model its own class back; return how many there were."""
    count = 0
    for module in model.modules():
        if vars(module).pop(_ATTRIBUTE, None) is not None:
            count += 1
            original = _original(type(module))
            if type(module) is _patched_class(original):  # else a class made from it since, whose forward falls back
                module.__class__ = original
    return count


def _verdict(module: torch.nn.Module) -> Definition | str:
    try:
        return define(module)
    except NotProven as reason:
        return str(reason)


_MODULE_STATE = frozenset(vars(torch.nn.Module())) | {"weight", "bias"}


def _key(module: torch.nn.Module) -> Any:
    """Equal for two modules only if they are of one class with the same attributes: then they compute the same."""
    own = {k: v for k, v in vars(module).items() if k not in _MODULE_STATE}
    if not all(isinstance(v, (int, float, str, bool, type(None), torch.Size, tuple)) for v in own.values()):
        return id(module)
    parameters = [(k, p if p is None else (p.shape, p.dtype, p.device)) for k, p in module._parameters.items()]
    return type(module), repr(sorted(own.items())), repr(parameters), len(module._buffers), len(module._modules)


class _Patched(torch.nn.Module):
    """First base of every patched class; the second is the class that the module had."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            y = _by_normkit(self, args[0])
            if y is not None:
                return y
        return super().forward(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The class has no importable name of its own: copying and pickling go by the original class.
        reduced = super().__reduce_ex__(protocol)
        return (_rebuild, (_original(type(self)),), *reduced[2:])


def _by_normkit(module: torch.nn.Module, x: Any) -> Tensor | None:
    """y, or None where the original forward must answer."""
    attributes = module.__dict__
    definition = attributes.get(_ATTRIBUTE)
    if definition is None or not isinstance(x, Tensor):
        return None
    parts = definition.parts
    weight = None if parts.weight is None else parameter(module, parts.weight)
    bias = None if parts.bias is None else parameter(module, parts.bias)
    o = definition.options.get((x.dtype, None if weight is None else weight.dtype))
    if o is None:
        return None
    for name, value in definition.watched:
        if attributes.get(name) != value:
            return None
    if parts.shape_matters and tuple(x.shape[-o.dims :]) != parts.shape:
        return None
    y = fast(o, x, weight, bias)
    if y is None and route(x, weight, bias) != "torch":
        shape = tuple(x.shape[-o.dims :])
        if parts.shape in (None, shape):
            y = norm(o, x, shape, weight, bias)
    return y


def _original(cls: type) -> type[torch.nn.Module]:
    """The class that a patched class, or one derived from it, was made from."""
    original: type[torch.nn.Module] = next(c for c in cls.__mro__ if _Patched in c.__bases__).__bases__[1]
    return original


_classes: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def _patched_class(original: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The subclass of original that calls normkit; one per class, so that type comparisons between modules hold."""
    if original in _classes:
        return _classes[original]
    attributes = {"__module__": original.__module__, "__doc__": original.__doc__}
    return _classes.setdefault(original, type(original.__name__, (_Patched, original), attributes))


def _rebuild(original: type[torch.nn.Module]) -> torch.nn.Module:
    """An empty patched module: copying and unpickling fill in its state."""
    cls = _patched_class(original)
    return cls.__new__(cls)
