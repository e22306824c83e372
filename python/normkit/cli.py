"""The command `normkit`: `normkit info` says what this build runs on this machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import time

import numpy as np

import normkit

_MB = 1 << 20


def copy_bandwidth(size: int, seconds: float = 0.2) -> float:
    """Bytes per second, read and written, of NumPy copies of `size` bytes on one thread: the best within `seconds`.

    A copy that does not fit in the cache is a streaming one: the C library's memcpy writes past the cache then.
    """
    # 256 bytes apart within a page: some processors copy ten times slower where the two places in a page nearly agree.
    memory = np.ones(2 * size + 2 * 4096, np.uint8)
    begin = -memory.ctypes.data % 4096
    source, target = memory[begin:][:size], memory[begin + size + 256 :][:size]
    repeat = max(1, 4 * _MB // size)  # so that the clock's own cost does not count
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        for _ in range(repeat):
            np.copyto(target, source)
        best = min(best, (time.perf_counter() - start) / repeat)
    return 2 * size / best


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def info() -> str:
    """The text of `normkit info`."""
    cache = normkit.cache_bytes()
    sizes = {
        "in L2": 128 << 10,
        "in cache": max(cache // 4, _MB),
        "streaming": min(max(4 * cache, 64 * _MB), 512 * _MB),
    }
    lines = {
        "normkit": normkit.__version__,
        "instruction set": f"{normkit.target()} (this machine can run {', '.join(normkit.targets())})",
        "threads": f"{normkit.available_cpus()} (processors of this process)",
        "cache": f"{cache / _MB:.0f} MB (last level)",
    }
    for name, size in sizes.items():
        what = f"{size / _MB:.3g} MB to {size / _MB:.3g} MB"
        lines[f"copy {name}"] = f"{copy_bandwidth(size) / 1e9:.1f} GB/s read and written, one thread ({what})"
    for package in ("numpy", "torch", "jax"):
        lines[package] = _version(package)
    return "\n".join(f"{name:<16}{value}" for name, value in lines.items())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="normkit", description="Normalization layers for the CPU.")
    parser.add_argument("--version", action="version", version=f"normkit {normkit.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("info", help="version, instruction set, threads, cache and measured copy bandwidth")
    parser.parse_args(arguments)
    print(info())
    return 0
