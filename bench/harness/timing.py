"""Interleaved timing: every candidate once a round, so that a slow phase of the machine meets all of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

ROUNDS = 7
SLOW_ROUNDS = 3  # for a candidate that takes more than SLOW seconds a call: its median needs less, and time is short
SLOW = 0.05
PAUSE = 2e-3  # between candidates: thread pools spin for about a millisecond after their last call


@dataclass
class Timing:
    seconds: float  # median of the rounds, per call
    spread: float  # half the distance of the quartiles, as a share of the median
    rounds: list[float]


def seconds_of(run: Callable[[], object], times: int) -> float:
    begin = perf_counter()
    for _ in repeat(None, times):
        run()
    return perf_counter() - begin


def _calls_per_sample(run: Callable[[], object], sample: float) -> tuple[int, float]:
    run()  # the first calls fault pages in, start threads and build caches
    run()
    times = 1
    while (elapsed := seconds_of(run, times)) < sample / 8:
        times *= 4
    return max(1, round(times * sample / elapsed)), elapsed / times


def interleave(runs: dict[str, Callable[[], object]], sample: float) -> dict[str, Timing]:
    """Times every run in turns; `sample` is how many seconds one turn should last at least."""
    calls, rounds = {}, {}
    for name, run in runs.items():
        calls[name], per_call = _calls_per_sample(run, sample)
        rounds[name] = SLOW_ROUNDS if per_call > SLOW else ROUNDS
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS):
        for name, run in runs.items():
            if turn >= rounds[name]:
                continue
            sleep(PAUSE)
            run()  # back into the caches after the others, threads awake
            samples[name].append(seconds_of(run, calls[name]) / calls[name])
    return {name: summarize(values) for name, values in samples.items()}


def summarize(values: list[float]) -> Timing:
    ordered, middle = sorted(values), median(values)

    def quantile(q: float) -> float:
        at = q * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

    return Timing(middle, (quantile(0.75) - quantile(0.25)) / 2 / middle, values)


class Disturbance:
    """How much of the machine other processes took while a block ran: `share` of all cores, 0 where it is unknown."""

    def __enter__(self) -> Disturbance:
        self.share, self._begin = 0.0, self._read()
        return self

    def __exit__(self, *exception) -> None:
        wall, own, all_processes = (b - a for a, b in zip(self._begin, self._read(), strict=True))
        self.share = max(0.0, all_processes - own) / max(wall, 1e-9) / (os.cpu_count() or 1)

    @staticmethod
    def _read() -> tuple[float, float, float]:
        t = os.times()
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        except OSError:
            return t.elapsed, 0.0, 0.0
        user, nice, system = (int(f) for f in fields[:3])
        return t.elapsed, t.user + t.system, (user + nice + system) / os.sysconf("SC_CLK_TCK")


def ratio(a: Timing, b: Timing) -> float:
    """a / b: the median over the rounds that both have, which is steadier than the ratio of the medians."""
    return median(x / y for x, y in zip(a.rounds, b.rounds, strict=False))
