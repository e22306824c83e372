"""The table and the geometric means, from the records of the workers."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, log

SHORT = {"forward": "fwd", "forward+backward": "fwd+bwd"}
OPS = {
    "layer_norm": "layer",
    "rms_norm": "rms",
    "llama_rms_norm": "llama",
    "batch_norm": "batch",
    "batch_norm_eval": "bn eval",
    "instance_norm": "instance",
    "group_norm": "group",
}
TORCH_FAMILY = ("torch", "compile")  # "the best of torch eager and compiled"


def geomean(values: Iterable[float]) -> float:
    values = list(values)
    return exp(sum(map(log, values)) / len(values)) if values else float("nan")


def our_door(cell: dict) -> str:
    """Which of our entries a line of the table shows: behind autograd for forward + backward, if torch is there."""
    return "normkit.torch" if cell["direction"] != "forward" and "normkit.torch" in cell["entries"] else "normkit"


def best_rival(cell: dict, names: Iterable[str] | None = None) -> tuple[str, float] | None:
    """(name, its time / ours) of the fastest rival with a right answer."""
    right = [n for n in cell["times"] if cell["entries"][n]["correct"] and (names is None or n in names)]
    times = {n: cell["times"][n] for n in right}
    return min(times.items(), key=lambda item: item[1]) if times else None


def _label(cell: dict) -> str:
    op = OPS[cell["op"]] + ("+res" if cell["residual"] else "")
    return f"{op:<9} {SHORT[cell['direction']]:<8}{cell['dtype']:<5}{cell['shape_text']:<14} t{cell['threads']}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(cells: list[dict], rivals: list[str]) -> str:
    """One line a cell: our time, the limit ratio, times the best rival, and every rival's time / ours.

    A rival whose answer is wrong has a "!" and is never the best.
    """
    lines = [f"{'':<40}{'ours us':>10}{'limit':>7}{'x best':>8} {'':<8}" + "".join(f"{r:>9}" for r in rivals)]
    for cell in cells:
        ours = cell["entries"].get(our_door(cell))
        if ours is None:
            lines.append(f"{_label(cell):<40}  ours failed: {cell['skipped'].get(our_door(cell), '')}")
            continue
        best = best_rival(cell)
        name, factor = best if best else ("", None)
        limit = cell["limit_ratio"].get(our_door(cell))
        line = f"{_label(cell):<40}{ours['seconds'] * 1e6:>10.1f}{limit:>7.2f}{_times(factor):>8} {name:<8}"
        wrong = [n for n, e in cell["entries"].items() if not e["correct"]]
        line += "".join(f"{_times(cell['times'].get(r)) + '!' * (r in wrong):>9}" for r in rivals)
        ours_wrong = [n for n in wrong if n.startswith("normkit")]
        line += f"  WRONG ANSWER: {', '.join(ours_wrong)}" if ours_wrong else ""
        # Other processes ran meanwhile: the ratios are as good as the interleaving, the times are not.
        lines.append(line + (f"  (disturbed {cell['disturbed']:.0%})" if cell["disturbed"] > 0.05 else ""))
    return "\n".join(lines)


def means(cells: list[dict]) -> list[dict]:
    """Geometric means by direction, and of all: limit ratio, times the best rival, times the best of torch."""
    rows = []
    groups = {"forward": ["forward"], "forward+backward": ["forward+backward"], "all": list(SHORT)}
    for title, directions in groups.items():
        some = [c for c in cells if c["direction"] in directions]
        best = [b[1] for b in map(best_rival, some) if b]
        torch = [b[1] for b in (best_rival(c, TORCH_FAMILY) for c in some) if b]
        limit = [c["limit_ratio"][our_door(c)] for c in some if our_door(c) in c["limit_ratio"]]
        if limit:
            rows.append(
                {
                    "cells": title,
                    "count": len(limit),
                    "limit_ratio": geomean(limit),
                    "times_best_rival": geomean(best) if best else None,
                    "behind": sum(b < 1 for b in best),
                    "times_best_torch": geomean(torch) if torch else None,
                }
            )
    return rows


def means_text(rows: list[dict]) -> str:
    lines = [
        f"{'geometric means':<20}{'cells':>7}{'limit':>8}{'x best rival':>14}{'x best torch':>14}{'behind in':>11}"
    ]
    for r in rows:
        lines.append(
            f"{r['cells']:<20}{r['count']:>7}{r['limit_ratio']:>8.2f}{_times(r['times_best_rival']):>14}"
            f"{_times(r['times_best_torch']):>14}{r['behind']:>11}"
        )
    return "\n".join(lines)


def calls_text(calls: dict[str, dict[str, float]]) -> str:
    lines = ["one call on 1 x 64 f32, microseconds"]
    lines += [
        f"  {name:<42}{c['seconds'] * 1e6:>7.2f}" for name, c in sorted(calls.items(), key=lambda i: i[1]["seconds"])
    ]
    return "\n".join(lines)


def left_out(cells: list[dict], absent: dict[str, str]) -> str:
    """Every rival that is missing, as a whole or in some cells, with the reason."""
    lines = [f"absent: {name} ({reason})" for name, reason in absent.items()]
    lines += [
        f"! wrong answer: {name} in {cell['cell']}, error {entry['error']:.1f} times what is allowed"
        for cell in cells
        for name, entry in cell["entries"].items()
        if not entry["correct"]
    ]
    reasons: dict[tuple[str, str], int] = {}
    for cell in cells:
        for name, reason in cell["skipped"].items():
            reasons[name, reason] = reasons.get((name, reason), 0) + 1
    lines += [f"not in {count} cells: {name} ({reason})" for (name, reason), count in sorted(reasons.items())]
    return "\n".join(lines)
