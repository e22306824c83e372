"""What `patch` does with torch's norms over channels: their classes say what they compute, so nothing is to be proven.

Only the exact classes count. All that can change later (eps, momentum, parameters, buffers, modes) is read on every
call, as torch's forward does; where that has been replaced since, it answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from ._options import DTYPES
from ._probe import NotProven
from .channel_modules import FORWARDS

_TORCHS = {cls: cls.forward for cls in FORWARDS}


class ChannelDefinition(NamedTuple):
    """What the report says of a replaced module. Nothing is computed by it."""

    text: str

    def __str__(self) -> str:
        return self.text


def channel_definition(module: torch.nn.Module) -> ChannelDefinition:
    """The definition of a norm over channels. Raises NotProven if it is not just what its class says."""
    cls = type(module)
    if cls not in FORWARDS:
        raise NotProven(
            f"it is a {cls.__name__}: derived from torch's norms over channels, of which only those are known"
        )
    if "forward" in vars(module):
        raise NotProven("its forward is replaced on the instance")
    if cls.forward is not _TORCHS[cls]:
        raise NotProven("the forward of its class is not torch's own")
    for name, t in (*module._parameters.items(), *module._buffers.items()):
        if t is None or name == "num_batches_tracked":
            continue
        if is_lazy(t):
            raise NotProven(f"its {name} is not initialized")
        if t.device.type not in ("cpu", "meta"):
            raise NotProven(f"its {name} is on {t.device}")
        if t.dtype not in DTYPES:
            raise NotProven(f"its {name} is of type {t.dtype}")
    return ChannelDefinition(_describe(module))


def _describe(module: Any) -> str:
    if isinstance(module, torch.nn.GroupNorm):
        return f"group_norm eps={module.eps:g} groups={module.num_groups}"
    kind = "batch_norm" if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) else "instance_norm"
    if not module.track_running_stats:
        return f"{kind} eps={module.eps:g}"
    momentum = "1/batches" if module.momentum is None else f"{module.momentum:g}"
    return f"{kind} eps={module.eps:g} momentum={momentum}"


def is_channel_norm(module: torch.nn.Module) -> bool:
    """True for torch's BatchNorm, InstanceNorm and GroupNorm, and for what is derived from the first two."""
    return type(module) in FORWARDS or isinstance(module, torch.nn.modules.batchnorm._NormBase)


def is_torchs(cls: type[torch.nn.Module]) -> bool:
    """True if the forward of cls (a class of FORWARDS) is the one that torch has given it."""
    return cls.forward is _TORCHS[cls]
