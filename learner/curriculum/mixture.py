"""Choose problems from the tasks of a mixture, by weight, in one space of indexes.

A pure core. Weights, bands and orders may change between two starts.

Invariants:

- An index names one task and one problem of it, and never another (`index_at`).
- Each task's share of the prompts converges to its weight.
- `state()` is a plain JSON object. A curriculum that is restored from it continues with exactly the same indexes.
- A state of other tasks, or of the same tasks in another order, raises OtherTask, since its indexes would name other
  problems.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from learner.curriculum.problem_index import index_at, place_of


class OtherTask(ValueError):
    """A state belongs to another mixture. `then`, `now`: fingerprints of its tasks, and of those that are here."""

    def __init__(self, then: Sequence[str], now: Sequence[str]) -> None:
        super().__init__(f"now {_listed(now)}, then {_listed(then)}")
        self.then, self.now = then, now


class Cursor(Protocol):
    """The position in one task, which gives the next problem: `difficulty_levels.LevelCursor` or
    `epochs.PassCursor`."""

    def next_index(self) -> int:
        """Return the index of the next problem to lease."""

    def upcoming(self, count: int) -> list[int]:
        """Return what `next_index` will give, if nothing is observed meanwhile: at least one index, at most `count`."""

    def observe(self, index: int, pass_rate: float) -> None:
        """Record that a group of this problem was admitted with this pass rate, 0 to 1."""

    def expected(self, index: int) -> float | None:
        """Return the best pass rate of this problem, or of problems like it, so far; None while nothing is known.

        It is the best and not the newest, so that a policy that gets worse does not make its problems look harder.
        """

    def alike(self, index: int) -> tuple[int, int]:
        """Return the problem that this index names, as a number that stays the same whenever it comes again, and the
        number of its kind."""

    def state(self) -> dict[str, Any]:
        """Return the whole state as a plain JSON object."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""

    def standing(self) -> dict[str, float]:
        """Return a few numbers for reports."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One task of the mixture. `fingerprint` changes whenever an index of the task may mean another problem."""

    name: str
    fingerprint: str
    weight: float
    cursor: Cursor


@dataclass(kw_only=True)
class Curriculum:
    """A cursor over all tasks of the mixture; its reports are by task.

    `again` holds the problems that were chosen before a restart and leased to no peer. They come before all others.
    """

    parts: Sequence[Part]
    again: list[int] = field(default_factory=list)
    _shares: Shares = field(init=False)

    def __post_init__(self) -> None:
        self._shares = Shares.of([part.weight for part in self.parts])

    def next_index(self) -> int:
        if self.again:
            return self.again.pop(0)
        number = self._shares.draw()
        return index_at(self.parts[number].cursor.next_index(), number, len(self.parts))

    def upcoming(self, count: int) -> list[int]:
        first = self.again[:count]
        return first + self._fresh(count - len(first))

    def _fresh(self, count: int) -> list[int]:
        shares = copy.copy(self._shares)  # draw() replaces the list of credits
        numbers = [shares.draw() for _ in range(count)]
        ahead = {number: iter(self.parts[number].cursor.upcoming(times)) for number, times in Counter(numbers).items()}
        found: list[int] = []
        for number in numbers:
            if (inner := next(ahead[number], None)) is None:  # this cursor looks no further ahead
                break
            found.append(index_at(inner, number, len(self.parts)))
        return found

    def observe(self, index: int, mean_reward: float) -> None:
        """Record that a group of this problem was admitted with this mean reward; 1.0 means all right."""
        inner, number = place_of(index, len(self.parts))
        self.parts[number].cursor.observe(inner, min(max(mean_reward, 0.0), 1.0))

    def expected(self, index: int) -> float | None:
        """Return the best mean reward that groups of this problem have earned; None while nothing is known of it."""
        inner, number = place_of(index, len(self.parts))
        return self.parts[number].cursor.expected(inner)

    def alike(self, index: int) -> tuple[int, int]:
        inner, number = place_of(index, len(self.parts))
        problem, kind = self.parts[number].cursor.alike(inner)
        return index_at(problem, number, len(self.parts)), index_at(kind, number, len(self.parts))

    def state(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        return {
            **({"again": list(self.again)} if self.again else {}),
            "tasks": [part.fingerprint for part in self.parts],
            "credits": list(self._shares.credits),
            "cursors": [part.cursor.state() for part in self.parts],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's state. Raises OtherTask, and then changes nothing."""
        then, now = list(state.get("tasks", ["of an older program"])), [part.fingerprint for part in self.parts]
        if then != now:
            raise OtherTask(then, now)
        self._shares.credits = [float(credit) for credit in state["credits"]]
        for part, kept in zip(self.parts, state["cursors"], strict=True):
            part.cursor.restore(kept)
        self.again = [int(index) for index in state.get("again", ())]

    def standing(self) -> dict[str, dict[str, float]]:
        """Return a few numbers for reports, by the name of the task."""
        return {part.name: part.cursor.standing() for part in self.parts}


def _listed(fingerprints: Sequence[str]) -> str:
    return " and ".join(map(str, fingerprints))


@dataclass(kw_only=True)
class Shares:
    """Choose tasks by weight, as evenly as possible (smooth weighted round robin, as nginx balances servers).

    Invariants:

    - In any n draws in a row, each task is drawn n times its share, give or take the number of tasks. So no task is
      starved and none comes in long runs.
    - There is no randomness, and `credits` is the whole state: when they are restored, exactly the same sequence
      continues.

    `shares` are positive and sum to 1. Weights may change between two runs.
    """

    shares: tuple[float, ...]
    credits: list[float] = field(default_factory=list)
    """The draws that each task is owed; they sum to zero."""

    @classmethod
    def of(cls, weights: Sequence[float]) -> Shares:
        """Return shares in proportion to these weights, which are positive."""
        total = sum(weights)
        return cls(shares=tuple(weight / total for weight in weights), credits=[0.0] * len(weights))

    def draw(self) -> int:
        """Return the number of the task that the next prompt belongs to."""
        owed = [credit + share for credit, share in zip(self.credits, self.shares, strict=True)]
        chosen = owed.index(max(owed))
        owed[chosen] -= 1.0
        self.credits = owed
        return chosen
