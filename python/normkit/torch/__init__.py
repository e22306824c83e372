"""normkit for PyTorch: functional forms, modules, and `patch` for models that exist already.

import normkit.torch
report = normkit.torch.patch(model)    # replaces the norms whose definition it can prove; print(report)
normkit.torch.unpatch(model)
"""

from . import functional
from ._patch import PatchReport, patch, unpatch
from .channel_modules import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    freeze_running_stats,
)
from .modules import LayerNorm, RMSNorm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "PatchReport",
    "RMSNorm",
    "freeze_running_stats",
    "functional",
    "patch",
    "unpatch",
]
