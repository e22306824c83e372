"""BatchNorm, InstanceNorm and GroupNorm: drop-in modules for torch.nn's, with the same arguments and state_dict keys.

Each class is torch's own with another forward; `patch` puts the same forwards before the classes of a model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ._channel_functional import channel_norm
from ._channels import ChannelOptions

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "freeze_running_stats",
]


def _affine(module: torch.nn.Module) -> tuple[Tensor | None, Tensor | None]:
    try:
        parameters = module._parameters  # getattr of a parameter costs ten times as much
        return parameters["weight"], parameters["bias"]
    except KeyError:  # a parametrized or pruned module
        return module.weight, module.bias  # type: ignore[return-value]


def _running(module: torch.nn.Module) -> tuple[Tensor | None, Tensor | None]:
    try:
        buffers = module._buffers
        return buffers["running_mean"], buffers["running_var"]
    except KeyError:
        return module.running_mean, module.running_var  # type: ignore[return-value]


class BatchNormForward(torch.nn.Module):
    """The forward of torch.nn.BatchNorm1d, 2d and 3d by normkit."""

    num_batches_tracked: Tensor | None
    momentum: float | None
    eps: float
    track_running_stats: bool

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[operator]
        training, tracks = self.training, self.track_running_stats
        momentum = self.momentum
        if training and tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:  # the mean of all batches
                momentum = 1.0 / float(self.num_batches_tracked)
        mean, var = _running(self)
        by_batch = training or (mean is None and var is None)
        if training and not tracks:
            mean = var = None
        o = ChannelOptions("batch_norm", self.eps, by_batch, 0.0 if momentum is None else momentum)
        return channel_norm(o, input, *_affine(self), mean, var)


class InstanceNormForward(torch.nn.Module):
    """What torch.nn.InstanceNorm1d, 2d and 3d call from their forward, by normkit."""

    momentum: float | None
    eps: float
    track_running_stats: bool

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        tracks, momentum = self.track_running_stats, self.momentum
        # torch moves the statistics of a module whose tracking was switched off; of BatchNorm it does not, nor do we.
        running = _running(self) if tracks else (None, None)
        o = ChannelOptions(
            "instance_norm", self.eps, self.training or not tracks, 0.0 if momentum is None else momentum
        )
        return channel_norm(o, input, *_affine(self), *running)


class GroupNormForward(torch.nn.Module):
    """The forward of torch.nn.GroupNorm by normkit."""

    num_groups: int
    eps: float

    def forward(self, input: Tensor) -> Tensor:
        return channel_norm(ChannelOptions("group_norm", self.eps, groups=self.num_groups), input, *_affine(self))


FORWARDS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.BatchNorm1d: BatchNormForward,
    torch.nn.BatchNorm2d: BatchNormForward,
    torch.nn.BatchNorm3d: BatchNormForward,
    torch.nn.InstanceNorm1d: InstanceNormForward,
    torch.nn.InstanceNorm2d: InstanceNormForward,
    torch.nn.InstanceNorm3d: InstanceNormForward,
    torch.nn.GroupNorm: GroupNormForward,
}


class BatchNorm1d(BatchNormForward, torch.nn.BatchNorm1d):
    """torch.nn.BatchNorm1d, computed by normkit. Everything but forward is torch's own."""


class BatchNorm2d(BatchNormForward, torch.nn.BatchNorm2d):
    """torch.nn.BatchNorm2d, computed by normkit. Everything but forward is torch's own."""


class BatchNorm3d(BatchNormForward, torch.nn.BatchNorm3d):
    """torch.nn.BatchNorm3d, computed by normkit. Everything but forward is torch's own."""


class _CheckedInstanceNorm(InstanceNormForward):
    num_features: int

    def forward(self, input: Tensor) -> Tensor:
        """Raise ValueError for another number of channels than num_features, where torch only warns if not affine."""
        self._check_input_dim(input)  # type: ignore[operator]
        dim = input.dim() - self._get_no_batch_dim()  # type: ignore[operator]
        if input.shape[dim] != self.num_features:
            raise ValueError(
                f"instance_norm: input has {input.shape[dim]} channels (dimension {dim} of {list(input.shape)}), "
                f"expected {self.num_features} (num_features)"
            )
        return super().forward(input)  # type: ignore[no-any-return]


class InstanceNorm1d(_CheckedInstanceNorm, torch.nn.InstanceNorm1d):
    """torch.nn.InstanceNorm1d, computed by normkit. A wrong number of channels is always an error."""


class InstanceNorm2d(_CheckedInstanceNorm, torch.nn.InstanceNorm2d):
    """torch.nn.InstanceNorm2d, computed by normkit. A wrong number of channels is always an error."""


class InstanceNorm3d(_CheckedInstanceNorm, torch.nn.InstanceNorm3d):
    """torch.nn.InstanceNorm3d, computed by normkit. A wrong number of channels is always an error."""


class GroupNorm(GroupNormForward, torch.nn.GroupNorm):
    """torch.nn.GroupNorm, computed by normkit. ValueError if num_groups is not positive."""

    def __init__(self, num_groups: int, num_channels: int, *args: Any, **kwargs: Any) -> None:
        if num_groups <= 0:
            raise ValueError(f"GroupNorm: num_groups is {num_groups}, expected 1 or more")
        super().__init__(num_groups, num_channels, *args, **kwargs)


@contextlib.contextmanager
def freeze_running_stats(model: torch.nn.Module) -> Iterator[None]:
    """While this is entered, training leaves the running statistics of model's norms as they are, and their counters.

    torch.nn's BatchNorm, too, and patched modules. For example where a checkpoint runs a forward for the second time:
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False,
                                      context_fn=lambda: (contextlib.nullcontext(), freeze_running_stats(model)))
    """
    frozen = [m for m in model.modules() if m.training and getattr(m, "track_running_stats", False)]
    for module in frozen:
        module.track_running_stats = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in frozen:
            module.track_running_stats = True  # type: ignore[assignment]
