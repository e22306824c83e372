"""One process of the benchmark: a list of cells, with a fixed number of threads and a fixed kind of outputs.

Each measured cell is one line of JSON on stdout; what went wrong with a rival is part of it, never silent.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from dataclasses import asdict

import rivals

from . import calls, channels, machine, operands
from .cells import Cell
from .channels import ChannelCell, ChannelOperands
from .native import Copies
from .operands import Operands
from .timing import Disturbance, Timing, interleave, ratio

SAMPLE = {"quick": 2e-3, "full": 5e-3}
# A cell is measured again, at most this often, while other processes take more than this share of the machine.
TRIES, DISTURBED = 2, 0.05


def set_threads(threads: int) -> None:
    """Libraries that take a number get it; the parent has also bound this process to as many cores."""
    if rivals.missing("torch") is None:
        import torch

        torch.set_num_threads(threads)


def cell_of(fields: dict) -> Cell | ChannelCell:
    if "rows" in fields:
        return Cell(**fields)
    return ChannelCell(**fields | {"shape": tuple(fields["shape"])})


def operands_of(cell: Cell | ChannelCell) -> Operands:
    return Operands(cell) if isinstance(cell, Cell) else ChannelOperands(cell)


def prepare_all(cell: Cell, data: Operands, modules: dict, threads: int, given: bool) -> tuple[dict, dict]:
    """({name: Prepared}, {name: why it is left out})."""
    prepared, skipped = {}, {}
    for module in modules.values():
        try:
            prepared[module.NAME] = module.prepare(cell, data, threads, given)
            prepared[module.NAME].run()
        except rivals.Skip as reason:
            skipped[module.NAME] = str(reason)
        except Exception as error:
            prepared.pop(module.NAME, None)
            skipped[module.NAME] = f"failed: {type(error).__name__}: {str(error)[:200]}"
            traceback.print_exc(file=sys.stderr)
    return prepared, skipped


def judge(cell: Cell, data: Operands, prepared: dict, timings: dict[str, Timing], modules: dict) -> dict[str, dict]:
    """Checks every answer, after the timing."""
    ours = {modules[name].NAME for name in rivals.OURS if name in modules}
    entries = {}
    for name, one in prepared.items():
        strict = name in ours
        check = operands.check if isinstance(cell, Cell) else channels.check
        error = check(data, one.results(), strict)
        entries[name] = {
            "seconds": timings[name].seconds,
            "spread": timings[name].spread,
            "rounds": len(timings[name].rounds),
            "outputs_given": one.given,
            "error": min(error, 1e300),
            "correct": error <= 1,
        }
    return entries


def compare(cell: Cell, entries: dict, timings: dict[str, Timing], modules: dict) -> dict[str, float]:
    """{rival: its time / ours}. In forward + backward, rivals behind autograd meet ours behind autograd."""
    times = {}
    for key, module in modules.items():
        if key in rivals.OURS or module.NAME not in entries:
            continue
        ours = "normkit.torch" if cell.backward and module.TORCH_DOOR else "normkit"
        if ours in entries and entries[ours]["correct"]:
            times[module.NAME] = ratio(timings[module.NAME], timings[ours])
    return times


def undisturbed(runs: dict, sample: float) -> tuple[dict[str, Timing], float]:
    """(timings, the share of the machine that others took) of the quietest try."""
    tries = []
    for _ in range(TRIES):
        with Disturbance() as disturbance:
            timings = interleave(runs, sample)
        tries.append((disturbance.share, timings))
        if disturbance.share <= DISTURBED:
            break
    share, timings = min(tries, key=lambda one: one[0])
    return timings, share


def measure(cell: Cell, modules: dict, copies: Copies, threads: int, given: bool, sample: float) -> dict:
    data = operands_of(cell)
    prepared, skipped = prepare_all(cell, data, modules, threads, given)
    copy_runs = copies.runs(cell.floor_bytes)
    gc.collect()
    gc.disable()
    timings, disturbed = undisturbed({**{name: p.run for name, p in prepared.items()}, **copy_runs}, sample)
    gc.enable()
    entries = judge(cell, data, prepared, timings, modules)
    best_copy = min(copy_runs, key=lambda name: timings[name].seconds)
    times = compare(cell, entries, timings, modules)
    ours = {name: entries[name] for name in ("normkit", "normkit.torch") if name in entries}
    return {
        "cell": cell.name,
        **asdict(cell),
        "residual": cell.residual,
        "shape_text": cell.shape_text,
        "threads": threads,
        "outputs": "given" if given else "fresh",
        "floor_bytes": cell.floor_bytes,
        "disturbed": disturbed,
        "copy": best_copy,
        "copy_seconds": timings[best_copy].seconds,
        "entries": entries,
        "skipped": skipped,
        "limit_ratio": {name: ratio(timings[best_copy], timings[name]) for name in ours},
        "times": times,
    }


def main(job: dict) -> None:
    """job: {"cells": [fields of Cell], "threads", "outputs", "size": quick or full, "rivals", "compile_only", ...}."""
    set_threads(job["threads"])
    modules, absent = rivals.load(rivals.OURS + job["rivals"])
    emit({"versions": {m.NAME: m.version() for m in modules.values()}, "absent": absent})
    if "ours_arrays" in modules:
        emit({"normkit": machine.normkit_facts()})
    copies = Copies(job["threads"])
    given = job["outputs"] == "given"
    for fields in job["cells"]:
        cell = cell_of(fields)
        if job["compile_only"]:
            compiled = {key: m for key, m in modules.items() if key == "torch_compile"}
            _, skipped = prepare_all(cell, operands_of(cell), compiled, job["threads"], given)
            emit({"prepared": cell.name, "skipped": skipped})
        else:
            emit(measure(cell, modules, copies, job["threads"], given, SAMPLE[job["size"]]))
    if job["calls"]:
        emit({"calls": calls.measure(modules)})


def emit(record: dict) -> None:
    print(json.dumps(record), flush=True)
