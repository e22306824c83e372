"""patch(model): let normkit compute the norms of a model that exists already; unpatch(model) undoes it.

A patched module stays the object it was: only its class becomes a subclass of the one it had, whose forward calls
normkit where the module's definition was proven (see _define) and the original forward everywhere else: other types,
other devices, more arguments, torch.func transforms. Parameters, hooks, state_dict keys, optimizers, tied weights and
isinstance checks are untouched.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ._define import Definition, define
from ._patch_channels import ChannelDefinition, channel_definition, is_channel_norm, is_torchs
from ._probe import NotProven
from ._route import route
from ._watch import DEFINITION, changeable, own_attributes
from .channel_modules import FORWARDS
from .functional import fast, norm
from .modules import LayerNorm, RMSNorm

__all__ = ["PatchReport", "patch", "unpatch"]

# By these a class says how it is copied and pickled, in a way that names the class that it believes to be.
_COPYING = ("__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__")
# An examination switches torch's threads, the random numbers, Python's warnings and sys.stdout, all of the process.
_one_at_a_time = threading.RLock()
_autocasts = torch.is_autocast_enabled
_NORMKITS = (LayerNorm, RMSNorm, *FORWARDS.values())  # modules, and the forwards of others
Verdict = Definition | ChannelDefinition | str  # or why there is no definition


@dataclass
class PatchReport:
    """What `patch` did. Names are those of `model.named_modules()`; a shared module is listed under each of them."""

    replaced: dict[str, str] = field(default_factory=dict)  # name -> definition
    left: dict[str, str] = field(default_factory=dict)  # name -> why
    unexamined: dict[str, int] = field(default_factory=dict)  # small module without "norm" in its name: class -> count

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} norms replaced, {len(self.left)} left"]
        if not self.replaced:
            lines.append("  nothing was replaced: " + self._hint())
        for title, entries in (("replaced", self.replaced), ("left", self.left)):
            groups: dict[str, list[str]] = {}
            for name, text in entries.items():
                groups.setdefault(text, []).append(name or "(the model itself)")
            for text, names in groups.items():
                shown = ", ".join(names[:3]) + (f", ... ({len(names)})" if len(names) > 3 else "")
                lines.append(f"  {title}: {text}\n    {shown}")
        if self.unexamined:
            others = ", ".join(f"{name} ({count})" for name, count in self.unexamined.items())
            lines.append(f'  not looked at, since "norm" is not in the name of the class: {others}')
        return "\n".join(lines)

    def _hint(self) -> str:
        if self.left:
            return "no norm that was found has a definition that normkit can prove, for the reasons below"
        return 'no module has "norm" in its class name, or it is normkit\'s already'


def patch(model: torch.nn.Module) -> PatchReport:
    """Replace the forward of every norm in model whose definition can be proven; return what was done and why not.

    Looked at are the modules whose class name contains "norm". Names prove nothing: each module is run on crafted rows
    to find out what it computes (layer_norm, rms_norm or l2_norm; eps and its place; 1 + weight; where 16-bit results
    are rounded), with its gradients and what it leaves behind. Modules on other devices than the CPU, with a replaced
    forward, and those that compute or do something else are left. Patching twice is harmless.

    BatchNorm1d, 2d, 3d, InstanceNorm1d, 2d, 3d and GroupNorm of torch.nn are known by their class, nothing derived from
    it: all their attributes may change later. Two faults of torch go: GroupNorm of one value per group gives the bias
    in a batch of one, too, and an InstanceNorm whose track_running_stats was switched off leaves its buffers alone.

    The original forward keeps answering where nothing was proven: other types, more than four batch dims, a module that
    autocast changes while it is on, and a module whose attributes, whose class's forward or numbers and words in its
    class change later. Not noticed are later changes of all else that forward reads, such as globals, closures and
    other methods, and a forward that treats some sizes of a batch differently: not every size can be tried.

    Results of rows are contiguous, where the original may keep permuted strides; those of channels have the memory
    format of the input. Where eps is 0, a row of zeros gives 0, not
    the NaN of most formulas. torch.jit.script of a patched model, or of normkit's modules, is not supported.

    Threads may call this at once: one waits for the other. While a module is examined, torch computes on one thread,
    and Python's warnings are off.
    """
    _check_model("patch", model)
    with _one_at_a_time:
        return _patch(model)


def _patch(model: torch.nn.Module) -> PatchReport:
    report = PatchReport()
    verdicts: dict[int, Verdict] = {}
    known: dict[Any, Verdict] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):  # listed before anything is replaced
        if "norm" not in type(module).__name__.lower():
            _note_unexamined(report, module)
            continue
        if DEFINITION in vars(module):
            report.replaced[name] = str(vars(module)[DEFINITION])
            continue
        if isinstance(module, _NORMKITS):
            continue
        if id(module) not in verdicts:
            key = _key(module)
            if key not in known:
                known[key] = _verdict(module)
            verdicts[id(module)] = _replace(module, known[key])
        verdict = verdicts[id(module)]
        (report.left if isinstance(verdict, str) else report.replaced)[name] = str(verdict)
    return report


def _replace(module: torch.nn.Module, verdict: Verdict) -> Verdict:
    """Patch module by its definition. Returns the definition, or why there is none or its class does not allow it."""
    if isinstance(verdict, str):
        return verdict
    try:
        patched = _patched_class(type(module))
        object.__setattr__(module, "__class__", patched)  # the class's own __setattr__ may know no such attribute
    except Exception as error:  # of the user's: __init_subclass__ or a metaclass may raise anything
        return f"its class does not allow a subclass: {type(error).__name__}: {error}"
    vars(module)[DEFINITION] = verdict
    return verdict


def _check_model(call: str, model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"{call}: model is a {type(model).__name__}, expected a torch.nn.Module")


def _note_unexamined(report: PatchReport, module: torch.nn.Module) -> None:
    """Remember what might be a norm by another name: no submodules, one row of weights and perhaps of biases."""
    parameters = [p for p in module._parameters.values() if p is not None and not is_lazy(p)]
    if not module._modules and parameters and all(p.dim() == 1 for p in parameters):
        name = type(module).__name__
        report.unexamined[name] = report.unexamined.get(name, 0) + 1


def unpatch(model: torch.nn.Module) -> int:
    """Give every patched module in model its own class back; return how many there were."""
    _check_model("unpatch", model)
    with _one_at_a_time:
        return sum(_restore(module) for module in model.modules())


def _restore(module: torch.nn.Module) -> bool:
    """Undo `_replace`; return whether there was something to undo."""
    if vars(module).pop(DEFINITION, None) is None:
        return False
    original = _original(type(module))
    if type(module) is _patched_class(original):  # else a class made from it since, whose forward falls back
        object.__setattr__(module, "__class__", original)
    return True


def _verdict(module: torch.nn.Module) -> Verdict:
    try:
        if is_channel_norm(module):
            return channel_definition(module)
        definition = define(module)
    except NotProven as reason:
        return str(reason)
    except Exception as error:  # of the user's: attributes and classes may do anything when looked at
        return f"it cannot be examined: {type(error).__name__}: {error}"
    for method in _COPYING:
        if getattr(type(module), method, None) is not getattr(torch.nn.Module, method, None):
            return f"its class has a {method} of its own, which copies of a patched module could not follow"
    return definition


def _key(module: torch.nn.Module) -> Any:
    """Equal for two modules only if they are of one class with the same attributes: then they compute the same."""
    if type(module) in FORWARDS or changeable(module) is not None:
        return id(module)
    parameters = [(k, p if p is None else (p.shape, p.dtype, p.device)) for k, p in module._parameters.items()]
    own = sorted(own_attributes(module).items())
    return type(module), repr(own), repr(parameters), len(module._buffers), len(module._modules)


class _Patched(torch.nn.Module):
    """First base of every patched class; the last is the class that the module had."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The class has no importable name of its own: copying and pickling go by the original class.
        reduced = super().__reduce_ex__(protocol)
        return (_rebuild, (_original(type(self)),), *reduced[2:])


class _PatchedChannels(_Patched):
    """A norm over channels: the second base of its class, from FORWARDS, computes it by normkit."""

    _normkit_original: type[torch.nn.Module]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        original = self._normkit_original
        if not is_torchs(original):
            return original.forward(self, *args, **kwargs)
        return super().forward(*args, **kwargs)


class _PatchedRows(_Patched):
    """A norm of rows, by its definition."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            y = _by_normkit(self, args[0])
            if y is not None:
                return y
        return super().forward(*args, **kwargs)


def _by_normkit(module: torch.nn.Module, x: Any) -> Tensor | None:
    """y, or None where the original forward must answer."""
    attributes = module.__dict__
    definition = attributes.get(DEFINITION)
    parameters = attributes["_parameters"]
    if definition is None or not (type(x) is Tensor or isinstance(x, Tensor)):  # the former is several times as fast
        return None
    # Unpacked at once: reading the fields one by one takes three times as long.
    weight_name, bias_name, weight_shape, shape, least, most, any_width, heeds_autocast, watch, options = definition
    if not watch.holds(attributes, parameters):
        return None
    weight = bias = dtype = None
    if weight_name is not None:
        weight = parameters.get(weight_name)
        if weight is None or weight.shape != weight_shape:
            return None
        dtype = weight.dtype
    if bias_name is not None:
        bias = parameters.get(bias_name)
        if bias is None or bias.dtype != dtype or bias.shape != weight_shape:
            return None
    o = options.get((x.dtype, dtype))
    if o is None or not least <= x.dim() <= most or (heeds_autocast and _autocasts("cpu")):
        return None
    if any_width:
        rows = x.shape[-o.dims :]
        if rows != shape if shape is not None else rows[0] == 0:
            return None
    y = fast(o, x, weight, bias)
    if y is None and route(x, weight, bias) != "torch":
        last = tuple(x.shape[-o.dims :])
        if shape in (None, last):
            y = norm(o, x, last, weight, bias)
    return y


def _original(cls: type) -> type[torch.nn.Module]:
    """The class that a patched class, or one derived from it, was made from."""
    return cls._normkit_original  # type: ignore[attr-defined, no-any-return]


_classes: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def _patched_class(original: type[torch.nn.Module]) -> type[torch.nn.Module]:
    """The subclass of original that calls normkit; one per class, so that type comparisons between modules hold."""
    if original in _classes:
        return _classes[original]
    attributes = {"__module__": original.__module__, "__doc__": original.__doc__, "_normkit_original": original}
    first = (_PatchedChannels, FORWARDS[original]) if original in FORWARDS else (_PatchedRows,)
    return _classes.setdefault(original, type(original.__name__, (*first, original), attributes))


def _rebuild(original: type[torch.nn.Module]) -> torch.nn.Module:
    """An empty patched module: copying and unpickling fill in its state."""
    cls = _patched_class(original)
    return cls.__new__(cls)
