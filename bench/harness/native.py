"""Small C++ helpers, compiled when they are needed: the plain copies, and oneDNN's door."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np

BENCH = Path(__file__).resolve().parent.parent
BUILD = BENCH / "results" / "build"


def build(source: Path, flags: list[str], suffix: str = ".so") -> Path:
    """A shared library of one source file, compiled again only when the source or the flags change."""
    compiler = os.environ.get("CXX", "c++")
    key = hashlib.sha256((source.read_text() + compiler + " ".join(flags)).encode()).hexdigest()[:16]
    library = BUILD / f"{source.stem}-{key}{suffix}"
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        part = library.with_suffix(f".{os.getpid()}.part")
        command = [compiler, "-O3", "-shared", "-fPIC", str(source), "-o", str(part), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
        part.rename(library)
    return library


class Copies:
    """The limit: memcpy and a streaming copy of as many bytes as a cell must move."""

    def __init__(self, threads: int):
        self.threads = threads
        self.library = ctypes.CDLL(str(build(BENCH / "cpp" / "copy.cc", ["-std=c++20", "-fopenmp"])))

    def runs(self, floor_bytes: int) -> dict[str, object]:
        half = (floor_bytes + 1) // 2
        source, target = np.ones(half, np.uint8), np.ones(half, np.uint8)
        runs = {}
        for name, function, threads in (
            ("memcpy", "bench_copy_plain", self.threads),
            ("stream", "bench_copy_streaming", self.threads),
            ("memcpy1", "bench_copy_plain", 1),
        ):
            if name == "memcpy1" and (self.threads == 1 or half > 1 << 20):
                continue  # small copies are fastest on one thread
            call = getattr(self.library, function)
            arguments = (
                ctypes.c_void_p(target.ctypes.data),
                ctypes.c_void_p(source.ctypes.data),
                ctypes.c_int64(half),
                ctypes.c_int(threads),
            )
            runs[name] = _Held(call, arguments, (source, target))
        return runs


class _Held:
    """A foreign call with its arguments; keeps the arrays alive."""

    def __init__(self, call, arguments, arrays):
        self.call, self.arguments, self.arrays = call, arguments, arrays

    def __call__(self):
        self.call(*self.arguments)
