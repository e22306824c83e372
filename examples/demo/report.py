"""The tables of the demo, and its verdict."""

from __future__ import annotations

from statistics import median

from .clock import speedup

LABEL, COLUMN = 40, 13


class Report:
    """Prints line by line and remembers what was not as it should be."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._checks = 0

    def head(self, title: str) -> None:
        print(f"\n{title:<{LABEL}}{'own':>{COLUMN}}{'normkit':>{COLUMN}}   own / normkit, or what is asked")
        print("-" * (LABEL + 2 * COLUMN + 34))

    def section(self, title: str) -> None:
        print(title)

    def remark(self, text: str) -> None:
        print(f"    {text}")

    def line(self, label: str, own: str, ours: str, note: str = "") -> None:
        print(f"  {label:<{LABEL - 2}}{own:>{COLUMN}}{ours:>{COLUMN}}   {note}".rstrip(), flush=True)

    def times(self, label: str, own: list[float], ours: list[float], note: str = "") -> None:
        ratio, width = speedup(own, ours)
        spread = f" ± {width:.2f}" if len(own) > 1 else " (one turn)"
        self.line(label, milliseconds(own), milliseconds(ours), f"{ratio:.2f}{spread}{note}")

    def check(self, label: str, own: str, ours: str, good: bool, rule: str, note: str = "") -> None:
        """A line with a verdict; `rule` says what is asked of normkit."""
        self._checks += 1
        self.line(label, own, ours, f"{rule}: {'yes' if good else 'NO'}{note}")
        if not good:
            values = [f"{name} {value}" for name, value in (("own", own), ("normkit", ours)) if value]
            self.failures.append(", ".join([label, *values]) + f"; asked: {rule}")

    def finish(self) -> int:
        """Prints the verdict and returns the exit status."""
        if not self.failures:
            print(f"\nAll {self._checks} checks hold.")
            return 0
        print(f"\n{len(self.failures)} of {self._checks} checks FAILED:")
        for failure in self.failures:
            print(f"  {failure}")
        return 1


def milliseconds(seconds: list[float]) -> str:
    value = 1e3 * median(seconds)
    return f"{value:.{1 if value >= 10 else 2}f} ms"
