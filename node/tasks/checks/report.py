"""Hold the results of the checks of a task, as values and as text.

Invariants:

- A result holds, has faults, or was left out for a reason. Only faults make a report fail.
- The text names the promise, so an author can read it without the documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MAX_FAULTS = 3
"""Maximum faults of one check to report. The others are usually the same mistake at other indexes."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long calls of one kind took, in seconds; zeros if there was none."""

    count: int = 0
    median_s: float = 0.0
    longest_s: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Return the timing of calls that took these seconds."""
        if not seconds:
            return cls()
        return cls(count=len(seconds), median_s=median(seconds), longest_s=max(seconds))

    def __str__(self) -> str:
        return f"{_seconds(self.median_s)} (median), {_seconds(self.longest_s)} (longest), for {self.count} calls"


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one check. `promise`: what a task promises. `faults`: where this task breaks the promise.

    `left_out`: why the check was not made; "" if it was.
    """

    name: str
    promise: str
    faults: tuple[str, ...] = ()
    left_out: str = ""

    @property
    def outcome(self) -> str:
        """One word: "holds", "fails" or "left out"."""
        return "fails" if self.faults else "left out" if self.left_out else "holds"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The results of `check_task`. `problem`, `reward`: how long the task takes for one."""

    task: str
    fingerprint: str
    indexes: int
    results: tuple[Result, ...]
    problem: Timing
    reward: Timing
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check has found a fault."""
        return not self.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """All faults, each a sentence that begins with the name of its check."""
        return tuple(f"{one.name}: {fault}" for one in self.results for fault in one.faults)

    def require(self) -> None:
        """Raise AssertionError, with all faults, unless the task has passed."""
        if not self.passed:
            raise AssertionError("\n".join([f"task {self.task!r} breaks promises:", *self.faults]))

    def __str__(self) -> str:
        lines = [f"Task {self.task}: {self.indexes} problems, fingerprint {self.fingerprint}"]
        for one in self.results:
            lines.append(f"{one.outcome:>8}  {one.name}: {one.left_out or f'{one.promise}.'}")
            lines += [f"{'':>8}  - {fault}" for fault in one.faults]
        lines += [f"A problem takes {self.problem}.", f"A reward takes {self.reward}.", *self.notes]
        failed = sum(one.outcome == "fails" for one in self.results)
        made = sum(one.outcome != "left out" for one in self.results)
        lines.append(f"{failed} of {made} checks failed." if failed else f"All {made} checks passed.")
        return "\n".join(lines)
