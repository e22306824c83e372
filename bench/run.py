#!/usr/bin/env python3
"""The benchmark: ours and every rival, in turns, on the same inputs, answers checked. `make bench` runs it.

    python bench/run.py                    the quick grid, 1 and all threads: a table, bench/results/latest.json
    python bench/run.py --full             the whole grid
    python bench/run.py --filter REGEX     only cells whose name matches, e.g. 'rms_norm/forward/bf16'
    python bench/run.py --list             the names of the cells ("cl": channels last in memory)

limit    time of the fastest plain copy of as many bytes as must move / our time (1.0 is the limit)
x best   time of the fastest rival with a right answer / our time; then the same for each rival (! wrong answer)

Ours is normkit's array functions. In forward + backward it is normkit.torch behind autograd against the rivals that are
behind autograd too, and the array functions against the others; the first two columns show normkit.torch.

How outputs are made: by default everybody writes into given memory; who cannot be given any allocates it from a heap
that keeps its pages ("outputs fresh" in the JSON), so that page faults do not count. --fresh measures a few cells with
new outputs for all, ours too, on the default heap, where page faults do count.

torch.compile is slow to compile the first time; --compile-only does only that (it is cached).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH))

from harness import cells, channels, machine, plot, report  # noqa: E402
from rivals import RIVALS  # noqa: E402

RESULTS = BENCH / "results"
# The heap keeps what was freed instead of giving it back to the system, and asks for huge pages.
KEEP_PAGES = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=9000000000000:glibc.malloc.hugetlb=1"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the whole grid (default: a quick one)")
    parser.add_argument("--quick", action="store_true", help="the quick grid (the default)")
    parser.add_argument("--fresh", action="store_true", help="fresh outputs for all, in a few cells")
    parser.add_argument("--filter", default="", help="only cells whose name matches this regular expression")
    parser.add_argument("--threads", default="", help="list of thread counts (default: 1 and all cores)")
    parser.add_argument("--rivals", default="", help=f"list of rivals (default: all: {','.join(RIVALS)})")
    parser.add_argument("--json", type=Path, help="where to write (default: bench/results/latest[-full][-fresh].json)")
    parser.add_argument("--no-calls", action="store_true", help="do not measure what one call from Python costs")
    parser.add_argument("--compile-only", action="store_true", help="fill torch.compile's cache, measure nothing")
    parser.add_argument("--list", action="store_true", help="print the names of the cells")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(filter(None, options.rivals.split(","))) - set(RIVALS)
    if unknown:
        parser.error(f"unknown rivals {', '.join(sorted(unknown))}; there are {', '.join(RIVALS)}")
    return options


def select(options: argparse.Namespace) -> list[cells.Cell | channels.ChannelCell]:
    if options.fresh:
        grid = cells.fresh_grid()
    elif options.full:
        grid = cells.full_grid() + channels.full_grid()
    else:
        grid = cells.quick_grid() + channels.quick_grid()
    return [c for c in grid if re.search(options.filter, c.name)]


def run_worker(job: dict) -> list[dict]:
    """Runs cells in a process of their own, bound to as many cores as it has threads; prints progress."""
    environment = os.environ | {
        "OMP_NUM_THREADS": str(job["threads"]),
        "JAX_PLATFORMS": "cpu",
        "NPROC": str(job["threads"]),  # the size of XLA's pool
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TORCHINDUCTOR_CACHE_DIR": str(RESULTS / "build" / "inductor"),
        "HF_HUB_OFFLINE": "1",
    }
    if job["outputs"] == "given":
        environment["GLIBC_TUNABLES"] = KEEP_PAGES
    command = [sys.executable, str(BENCH / "run.py"), "--worker", json.dumps(job)]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    records = []
    for line in worker.stdout:
        if not line.startswith("{"):
            print(line, end="", file=sys.stderr)
            continue
        records.append(json.loads(line))
        done = records[-1].get("cell") or records[-1].get("prepared")
        if done:
            print(f"  {job['outputs']} outputs, {job['threads']} threads: {done}", file=sys.stderr, flush=True)
    if worker.wait() != 0:
        raise SystemExit(f"bench: the worker ended with status {worker.returncode}")
    return records


def measure(options: argparse.Namespace, chosen: list[cells.Cell | channels.ChannelCell]) -> dict:
    cores = len(os.sched_getaffinity(0))
    threads = [int(t) for t in options.threads.split(",")] if options.threads else sorted({1, cores})
    rivals = options.rivals.split(",") if options.rivals else RIVALS
    outputs = "fresh" if options.fresh else "given"
    run = {"machine": machine.describe(), "outputs": outputs, "versions": {}, "absent": {}, "cells": [], "calls": {}}
    for count in threads:
        job = {
            "cells": [asdict(c) for c in chosen],
            "threads": count,
            "outputs": outputs,
            "size": "full" if options.full else "quick",
            "rivals": rivals,
            "compile_only": options.compile_only,
            "calls": count == 1 and not options.no_calls and not options.compile_only,
        }
        for record in run_worker(job):
            if "cell" in record:
                run["cells"].append(record)
            elif "prepared" not in record:
                for key, value in record.items():
                    run.setdefault(key, {}).update(value)
    return run


def show(run: dict) -> None:
    rivals = [n for n in run["versions"] if not n.startswith("normkit")]
    m = run["machine"]
    print(f"\n{m['cpu']}, {m['cores']} cores, {m['compiler']}, revision {m['revision']}, outputs {run['outputs']}")
    print(", ".join(f"{name} {version}" for name, version in run["versions"].items()) + "\n")
    print(report.table(run["cells"], rivals) + "\n")
    run["means"] = report.means(run["cells"])
    print(report.means_text(run["means"]) + "\n")
    if run["calls"]:
        print(report.calls_text(run["calls"]) + "\n")
    print(report.left_out(run["cells"], run["absent"]))


def main() -> int:
    options = parse()
    if options.worker:
        job = json.loads(options.worker)
        # The last cores: the first one handles most interrupts.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-job["threads"] :])
        from harness import worker

        worker.main(job)
        return 0
    chosen = select(options)
    if options.list or not chosen:
        print("\n".join(c.name for c in chosen) or "bench: no cell matches")
        return 0 if chosen else 2
    if not options.compile_only and importlib.util.find_spec("normkit") is None:
        print("bench: this Python has no normkit; `make bench` builds and installs it into .venv", file=sys.stderr)
        return 2
    run = measure(options, chosen)
    if options.compile_only:
        return 0
    show(run)
    RESULTS.mkdir(exist_ok=True)
    latest = f"latest{'-full' if options.full else ''}{'-fresh' if options.fresh else ''}.json"
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    paths = [options.json] if options.json else [RESULTS / latest, RESULTS / f"{stamp}.json"]
    for path in paths:
        path.write_text(json.dumps(run, indent=1))
    plot.write(run, paths[0].with_suffix(".svg"))
    print(f"\nwritten: {', '.join(str(p) for p in paths)}, {paths[0].with_suffix('.svg')}")
    return verdict(run)


def verdict(run: dict) -> int:
    """1 when one of our answers is wrong or missing."""
    faults = []
    for cell in run["cells"]:
        ours = {name: e for name, e in cell["entries"].items() if name.startswith("normkit")}
        faults += [f"{cell['cell']}: {name} is wrong" for name, e in ours.items() if not e["correct"]]
        faults += [] if ours else [f"{cell['cell']}: ours is missing"]
    for fault in faults:
        print(f"bench: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
