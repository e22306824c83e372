"""Which path a call takes: the extension module directly, the registered operator, or torch's own operator.

direct   plain dense CPU tensors of types that the engine takes, nobody watching: one call into normkit._core
op       somebody traces or intercepts (torch.compile, torch.export, fake tensors, dispatch modes, meta tensors)
torch    everything that the engine does not take: other devices, layouts and types, tensor subclasses, torch.func
         transforms, forward-mode differentiation, torch.jit.trace
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._options import DTYPES

# Private names of torch are read once, here, each with what to do when a version of torch lacks it.
_is_dynamo = getattr(torch.compiler, "is_dynamo_compiling", None) or torch.compiler.is_compiling
_is_compiling = getattr(torch.compiler, "is_compiling", _is_dynamo)
_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_tracing = torch._C._get_tracing_state
_grad_enabled = torch.is_grad_enabled


def _transforms_by_stack() -> bool:
    return not _is_dynamo() and torch._C._functorch.peek_interpreter_stack() is not None


_transforms = getattr(torch._C, "_are_functorch_transforms_active", _transforms_by_stack)

PLAIN = frozenset((Tensor, torch.nn.Parameter))
# The answers of `gate`: something is out of the ordinary; call the engine; call it and record for autograd.
SLOW, DIRECT, RECORD = 0, 1, 2
# What the extension module raises for an input that it does not take. The slow path then decides what that means.
REFUSALS = (TypeError, ValueError, RuntimeError, BufferError)


def _traced_types() -> set[type]:
    """Tensor subclasses that stand for a plain tensor while torch traces: the registered operator knows them."""
    types: set[type] = set()
    try:
        from torch._subclasses.fake_tensor import FakeTensor
        from torch._subclasses.functional_tensor import FunctionalTensor

        types.update((FakeTensor, FunctionalTensor))
    except ImportError:
        pass
    return types


_TRACED = _traced_types()


def _ordinary_keys() -> set[int]:
    """The dispatch keys of plain CPU tensors: ordinary, negated view, and made in inference mode.

    A wrapper that carries the type Tensor and the device of what it wraps (vmap, functionalization) has other keys.
    """
    kinds = [torch.empty(0), torch._neg_view(torch.empty(0))]
    with torch.inference_mode():
        kinds += [torch.empty(0), torch._neg_view(torch.empty(0))]
    return {torch._C._dispatch_keys(t).raw_repr() for t in kinds}


_ORDINARY = _ordinary_keys()


def ordinary(t: Tensor) -> bool:
    """True if t is a plain dense CPU tensor with memory of its own, whatever its element type."""
    return torch._C._dispatch_keys(t).raw_repr() in _ORDINARY


def gate(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> int:
    """SLOW, DIRECT or RECORD: the cheapest checks that together exclude that a direct call would bypass somebody.

    What they let through and the engine does not take (devices, layouts, types, wrappers without memory) makes the
    extension raise; a pending negation (the imaginary part of a conjugate) it resolves.
    """
    if (
        type(x) is not Tensor
        or _is_dynamo()
        or _dispatch_modes()
        or _transforms()
        or forward_ad._current_level >= 0
        or _tracing() is not None
        or (weight is not None and type(weight) not in PLAIN)
        or (bias is not None and type(bias) not in PLAIN)
    ):
        return SLOW
    if not _grad_enabled():
        return DIRECT
    if x.requires_grad or (weight is not None and weight.requires_grad) or (bias is not None and bias.requires_grad):
        return RECORD
    return DIRECT


def is_tracing() -> bool:
    """True while torch records operators instead of running them, or hands them to a mode: tensors may be fake."""
    return bool(_is_dynamo() or _is_compiling() or _transforms() or _dispatch_modes() or _tracing() is not None)


def route(x: Tensor, *others: Tensor | None) -> str:
    """One of "direct", "op" or "torch" (see the module) for x and the other operands."""
    tensors = [x, *(t for t in others if t is not None)]
    if not all(isinstance(t, Tensor) for t in tensors):
        return "torch"  # torch names the argument; or it knows the type by __torch_function__
    kinds = {type(t) for t in tensors}
    if not kinds <= PLAIN and not kinds <= PLAIN | _TRACED:
        return "torch"
    if _transforms() or forward_ad._current_level >= 0 or not all(_takes(t, x) for t in tensors):
        return "torch"
    if _is_dynamo():
        return "op"
    if _tracing() is not None:
        return "torch"
    if not kinds <= PLAIN or _dispatch_modes() or _is_compiling() or x.device.type == "meta":
        return "op"
    return "direct" if all(ordinary(t) for t in tensors) else "torch"


def _takes(t: Tensor, x: Tensor) -> bool:
    """True if the engine takes t beside x: a dense CPU (or meta) tensor of at most 8 dims, of x's type or f32."""
    return (
        t.device.type in ("cpu", "meta")
        and t.device == x.device
        and t.layout == torch.strided
        and not t.is_nested
        and t.dtype in DTYPES
        and t.dim() <= 8
        and t.dtype in (x.dtype, torch.float32)
    )
