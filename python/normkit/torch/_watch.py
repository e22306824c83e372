"""What a module computes may depend on more than its input: its attributes, and state that its forward changes.

`Watch` notices, at the cost of a few comparisons a call, that a module is no longer the one that was examined.
`surroundings` lists what its methods can name, so that two lists tell whether a call has changed any of it.
"""

from __future__ import annotations

import enum
import inspect
import numbers
import types
from collections import deque
from typing import Any

import torch

_MODULE_STATE = frozenset(vars(torch.nn.Module()))
_FIXED = (  # values that cannot change while they are the same object
    *(numbers.Number, str, bytes, type(None), type, enum.Enum, torch.dtype, torch.device, torch.layout),
    *(types.FunctionType, types.BuiltinFunctionType),
)
DEFINITION = "_normkit_definition"  # the attribute of a patched module
# Marks of torch.compile on a module, which no forward reads.
_NOT_WATCHED = _MODULE_STATE | {DEFINITION, "_is_torch_compile", "_compiled_call_impl"}
_CONTAINERS = (list, dict, set, deque)


def own_attributes(module: torch.nn.Module) -> dict[str, Any]:
    """The attributes that are not of torch.nn.Module itself: what the module's class added."""
    return {k: v for k, v in vars(module).items() if k not in _NOT_WATCHED}


def changeable(module: torch.nn.Module) -> str | None:
    """The name of an attribute that can change without being replaced, such as a list; None if there is none."""
    return next((k for k, v in own_attributes(module).items() if not _fixed(v)), None)


def _fixed(value: Any) -> bool:
    return all(map(_fixed, value)) if isinstance(value, tuple) else isinstance(value, _FIXED)


class Watch:
    """The state in which a module was examined. Every attribute counts but `training` and torch's own."""

    __slots__ = ("_count", "_own", "_parameters", "_unused")

    def __init__(self, module: torch.nn.Module) -> None:
        self._own = tuple(own_attributes(module).items())
        self._count = len(vars(module)) + 1  # with the definition, which patch adds
        self._parameters = len(module._parameters)
        self._unused = tuple(k for k, p in module._parameters.items() if p is None)

    def holds(self, attributes: dict[str, Any], parameters: dict[str, Any]) -> bool:
        """True if the module with these attributes is still what was examined, but for the parameters in use."""
        if len(attributes) != self._count and self._has_others(attributes):
            return False
        if len(parameters) != self._parameters or attributes["_buffers"] or attributes["_modules"]:
            return False
        for name in self._unused:
            if parameters.get(name) is not None:
                return False
        for name, value in self._own:
            now = attributes.get(name, self)  # self: nothing equals it
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        return True

    def _has_others(self, attributes: dict[str, Any]) -> bool:
        """True if there is an attribute that was not there, other than a mark that torch leaves."""
        known = {name for name, _ in self._own}
        return any(name not in known and name not in _NOT_WATCHED for name in attributes)


def surroundings(module: torch.nn.Module) -> list[Any]:
    """The values, and those within containers, of the module, its classes and the variables that its methods name."""
    classes = [c for c in type(module).__mro__ if c not in torch.nn.Module.__mro__]
    namespaces: list[Any] = [vars(module), *map(vars, classes)]
    for method in [f for c in classes for f in vars(c).values() if isinstance(f, types.FunctionType)]:
        variables = inspect.getclosurevars(method)
        namespaces += [variables.nonlocals, variables.globals]
    values: list[Any] = []
    for namespace in namespaces:
        for name, value in namespace.items():
            values += (name, value)
            if isinstance(value, _CONTAINERS):
                values += [*value, *(value.values() if isinstance(value, dict) else ())]
    return values


def same(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(a is b for a, b in zip(before, after, strict=True))
