"""normkit for PyTorch: functional forms, modules, and `patch` for models that exist already.

import normkit.torch
report = normkit.torch.patch(model)    # replaces the norms whose definition it can prove; print(report)
normkit.torch.unpatch(model)
"""

from . import functional
from ._patch import PatchReport, patch, unpatch
from .modules import LayerNorm, RMSNorm

__all__ = ["LayerNorm", "PatchReport", "RMSNorm", "functional", "patch", "unpatch"]
