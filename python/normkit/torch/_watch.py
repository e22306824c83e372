"""What a module computes may depend on more than its input: its attributes, and state that its forward changes.

`Watch` notices, at the cost of a few comparisons a call, that a module is no longer the one that was examined.
`surroundings` lists what its methods can name, so that two lists tell whether a call has changed any of it.
`listening` tells whether a call prints.
"""

from __future__ import annotations

import contextlib
import enum
import inspect
import numbers
import sys
import threading
import types
from collections import deque
from collections.abc import Iterator
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
_PLAIN_VALUES = (bool, int, float, str)


def own_attributes(module: torch.nn.Module) -> dict[str, Any]:
    """The attributes that are not of torch.nn.Module itself: what the module's class added."""
    return {k: v for k, v in vars(module).items() if k not in _NOT_WATCHED}


def changeable(module: torch.nn.Module) -> str | None:
    """The name of an attribute that can change without being replaced, such as a list; None if there is none."""
    return next((k for k, v in own_attributes(module).items() if not _fixed(v)), None)


def _fixed(value: Any) -> bool:
    return all(map(_fixed, value)) if isinstance(value, tuple) else isinstance(value, _FIXED)


def _classes(module: torch.nn.Module) -> list[type]:
    """The classes that say what module does, without torch.nn.Module and its bases."""
    return [c for c in type(module).__mro__ if c not in torch.nn.Module.__mro__]


def _class_values(module: torch.nn.Module) -> dict[str, Any]:
    """The numbers and words among the class attributes: what a forward may read in place of an attribute."""
    names = {name for c in _classes(module) for name in vars(c) if not name.startswith("__")}
    found = {name: getattr(type(module), name) for name in names}
    return {name: value for name, value in found.items() if type(value) in _PLAIN_VALUES}


class Watch:
    """The state in which a module was examined. Every attribute counts but `training` and torch's own.

    Of its class count forward and the attributes that are numbers or words; others would cost too much on every call.
    """

    __slots__ = ("_class", "_class_values", "_count", "_forward", "_own", "_parameters", "_unused")

    def __init__(self, module: torch.nn.Module) -> None:
        self._class = type(module)
        self._forward: Any = type(module).forward
        self._class_values = tuple(_class_values(module).items())
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
        cls = self._class
        if cls.forward is not self._forward:
            return False
        for name in self._unused:
            if parameters.get(name) is not None:
                return False
        for name, value in self._class_values:
            now = getattr(cls, name, self)  # self: nothing equals it
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        for name, value in self._own:
            now = attributes.get(name, self)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        return True

    def _has_others(self, attributes: dict[str, Any]) -> bool:
        """True if there is an attribute that was not there, other than a mark that torch leaves."""
        known = {name for name, _ in self._own}
        return any(name not in known and name not in _NOT_WATCHED for name in attributes)

    def __deepcopy__(self, memo: Any) -> Watch:
        return self  # it never changes

    def __getstate__(self) -> dict[str, Any]:
        # A function is pickled by a name, which a decorated or generated forward may lack.
        unchanged = self._class.forward is self._forward
        return {name: getattr(self, name) for name in self.__slots__} | {"_forward": unchanged}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._forward = self._class.forward if state["_forward"] else None


def surroundings(module: torch.nn.Module) -> list[Any]:
    """The values, and those within containers, of the module, its classes and the variables that its methods name."""
    classes = _classes(module)
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


class _Ear:
    """A text stream that swallows and notices what one thread writes, and hands all else on to the stream behind it."""

    def __init__(self, stream: Any) -> None:
        self.heard = False
        self._stream, self._thread = stream, threading.get_ident()

    def stop(self) -> None:
        """Hand everything on from now on: another thread may have kept this as the stream to go back to."""
        self._thread = 0

    def write(self, text: str) -> Any:
        if threading.get_ident() == self._thread:
            self.heard = True
        elif self._stream is not None:  # without a console it is None
            return self._stream.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def listening() -> Iterator[tuple[_Ear, _Ear]]:
    """Listen to what this thread prints, for `heard` to tell; not to be entered by two threads at once."""
    behind = sys.stdout, sys.stderr
    ears = sys.stdout, sys.stderr = _Ear(behind[0]), _Ear(behind[1])
    try:
        yield ears
    finally:
        for ear in ears:
            ear.stop()
        if sys.stdout is ears[0]:  # else another thread has put its own there since
            sys.stdout = behind[0]
        if sys.stderr is ears[1]:
            sys.stderr = behind[1]
