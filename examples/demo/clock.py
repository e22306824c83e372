"""Measuring: both models in turns, and the time that passes inside their norms."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor, nn


class Times(NamedTuple):
    """Seconds, call by call."""

    whole: list[float]
    norms: list[float]


class Speedup(NamedTuple):
    """own / ours, turn by turn."""

    ratio: float  # the median
    spread: float  # half the width of the middle half of all turns


def speedup(own: list[float], ours: list[float]) -> Speedup:
    ratios = [a / b for a, b in zip(own, ours, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return Speedup(middle, (high - low) / 2)


class NormClock:
    """Adds up the time between the entry and the exit of each norm of a model, forward and backward.

    The clock hangs on hooks, the same for both models. Backward, a norm begins when the gradient of its output is
    complete and ends when that of its input is: the addition of what arrives from the residual stream is part of it.
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
        self._times = Times([], [])

    def time(self, run: Callable[[], Any]) -> Any:
        self._clock.seconds, began = 0.0, perf_counter()
        result = run()
        self._times.whole.append(perf_counter() - began)
        self._times.norms.append(self._clock.seconds)
        return result

    def finish(self, skip: int = 0) -> Times:
        """What was measured, without the first `skip` calls, which warm up; takes the clock off the model."""
        self._clock.remove()
        return Times(*(column[skip:] for column in self._times))


def alternate(
    models: tuple[nn.Module, nn.Module],
    names: list[str],
    run: Callable[[nn.Module], Any],
    seconds: float,
    warm: bool = False,
) -> tuple[Times, Times]:
    """Times run(model) on both in turns (own, ours, own, ...): as many turns as fit into `seconds`, 1 to 15.

    One more turn comes first, which is not counted, unless the models are `warm`.
    """
    samples = [Samples(model, names) for model in models]
    skip = 0 if warm else 1
    until = perf_counter() + seconds
    for turn in range(skip + 15):
        began = perf_counter()
        for model, sample in zip(models, samples, strict=True):
            sample.time(lambda model=model: run(model))
        if turn >= skip and perf_counter() + (perf_counter() - began) > until:
            break
    own, ours = (sample.finish(skip) for sample in samples)
    return own, ours
