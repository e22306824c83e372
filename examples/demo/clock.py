"""Measuring: both models in turns, and the time that passes inside their norms."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor, nn


class Times(NamedTuple):
    """Medians, in seconds."""

    whole: float
    norms: float


class NormClock:
    """Adds up the time between the entry and the exit of each norm of a model, forward and backward.

    The clock hangs on hooks, the same for both models. Backward, a norm begins when the gradient of its output is
    complete and ends when that of its input is.
    """

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self.seconds = 0.0
        self._began = 0.0
        self._handles: list[Any] = []
        for name in names:
            norm = model.get_submodule(name)
            self._handles += [norm.register_forward_pre_hook(self._enter), norm.register_forward_hook(self._leave)]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].requires_grad:
            inputs[0].register_hook(self._stop)
        self._start()

    def _leave(self, norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._stop()
        if output.requires_grad:
            output.register_hook(self._start)

    def _start(self, gradient: Tensor | None = None) -> None:
        self._began = perf_counter()

    def _stop(self, gradient: Tensor | None = None) -> None:
        self.seconds += perf_counter() - self._began


class Samples:
    """Whole time and time in the norms of one model, call by call."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self._clock = NormClock(model, names)
        self._samples: list[Times] = []

    def time(self, run: Callable[[], Any]) -> Any:
        self._clock.seconds, began = 0.0, perf_counter()
        result = run()
        self._samples.append(Times(perf_counter() - began, self._clock.seconds))
        return result

    def finish(self, skip: int = 0) -> Times:
        """The medians without the first `skip` calls, which warm up; takes the clock off the model."""
        self._clock.remove()
        return Times(*(statistics.median(column) for column in zip(*self._samples[skip:], strict=True)))


def alternate(
    models: tuple[nn.Module, nn.Module], names: list[str], run: Callable[[nn.Module], Any], seconds: float
) -> tuple[Times, Times]:
    """Times run(model) on both in turns (own, ours, own, ours, ...) for about `seconds`: 3 to 15 times each."""
    samples = [Samples(model, names) for model in models]
    until = perf_counter() + seconds
    for turn in range(1 + 15):
        if turn > 3 and perf_counter() > until:
            break
        for model, sample in zip(models, samples, strict=True):
            sample.time(lambda model=model: run(model))
    own, ours = (sample.finish(skip=1) for sample in samples)
    return own, ours
