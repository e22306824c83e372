"""Shows that something long is alive: on a terminal one line that changes, elsewhere a line every 20 seconds."""

from __future__ import annotations

import sys
import threading
from time import perf_counter
from types import TracebackType


class Progress:
    """`with Progress("Loading"):` shows the message and the seconds so far while the block runs.

    With `final` the line stays, with the time it took; otherwise a terminal forgets it.
    """

    def __init__(self, message: str, final: bool = False) -> None:
        self._message, self._final = message, final
        self._terminal = sys.stdout.isatty()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> None:
        self._began = perf_counter()
        if not self._terminal:
            print(f"{self._message} ...", flush=True)
        self._thread.start()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if self._terminal:
            print("\r\033[K", end="", flush=True)
        if self._final and error is None:
            seconds = f"{perf_counter() - self._began:.0f} s"
            print(f"{self._message} ({seconds})" if self._terminal else f"  done after {seconds}", flush=True)

    def _show(self) -> None:
        while not self._done.wait(0.2 if self._terminal else 20):
            seconds = f"{perf_counter() - self._began:.0f} s"
            text = f"\r\033[K{self._message} ... {seconds}" if self._terminal else f"  {seconds}\n"
            print(text, end="", flush=True)
