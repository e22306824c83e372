"""What a report says about the machine and the code that was measured."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=BENCH)
    except OSError:
        return "unknown"
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _cache_sizes() -> dict[str, str]:
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind = (index / "level").read_text().strip(), (index / "type").read_text().strip()
        sizes[f"L{level} {kind.lower()}"] = (index / "size").read_text().strip()
    return sizes


def describe() -> dict[str, object]:
    import os

    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "revision": _first_line(["git", "describe", "--always", "--dirty", "--abbrev=12"]),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "caches": _cache_sizes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "compiler": _first_line([os.environ.get("CXX", "c++"), "--version"]),
    }


def normkit_facts() -> dict[str, object]:
    """What the engine says about itself; empty where it says nothing."""
    import normkit

    facts = {"version": normkit.__version__}
    for name in ("target", "cache_bytes"):
        value = getattr(normkit, name, None)
        if callable(value):
            facts[name] = value()
    return facts
