"""The tables of the demo, and its verdict."""

from __future__ import annotations

LABEL, COLUMN, RULE = 40, 12, 104


class Report:
    """Prints line by line and remembers what was not as it should be."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._checks = 0

    def head(self, title: str) -> None:
        print(f"\n{title:<{LABEL}}{'own':>{COLUMN}}{'normkit':>{COLUMN}}\n{'-' * RULE}")

    def section(self, title: str) -> None:
        print(title)

    def remark(self, text: str) -> None:
        print(f"    {text}")

    def line(self, label: str, own: str, ours: str, note: str = "") -> None:
        print(f"  {label:<{LABEL - 2}}{own:>{COLUMN}}{ours:>{COLUMN}}   {note}".rstrip(), flush=True)

    def times(self, label: str, own: float, ours: float, note: str = "") -> None:
        faster = f"{own / ours:.1f} x as fast" if own > 1.2 * ours else f"{own / ours:.2f} x as fast"
        self.line(label, milliseconds(own), milliseconds(ours), "; ".join(filter(None, (faster, note))))

    def check(self, label: str, own: str, ours: str, good: bool, rule: str) -> None:
        """A line with a verdict; `rule` says what is asked of normkit."""
        self._checks += 1
        self.line(label, own, ours, f"{rule}: {'yes' if good else 'NO'}")
        if not good:
            self.failures.append(f"{label}: {rule}: NO ({own} {ours})")

    def finish(self) -> int:
        """Prints the verdict and returns the exit status."""
        if not self.failures:
            print(f"\nAll {self._checks} checks hold.")
            return 0
        print(f"\n{len(self.failures)} of {self._checks} checks FAILED:")
        for failure in self.failures:
            print(f"  {failure}")
        return 1


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.{1 if seconds >= 0.01 else 2}f} ms"
