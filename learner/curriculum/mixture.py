"""A curriculum: cursors over the tasks of a mixture, drawn from by weight, in one space of indexes.

A pure core. What always holds: an index names one task and one problem of it for ever (`index_at`); each task's
share of the prompts converges to its weight; `state()` is a plain JSON object, and a curriculum that is given it goes
on with the very same indexes; a state of other tasks, or of the same in another order, is refused, since its indexes
would name other problems. Weights, bands and orders may change between two starts.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from learner.curriculum.problem_index import index_at, place_of


class OtherTask(ValueError):
    """A state that belongs to another mixture. The message says what is different."""


class Cursor(Protocol):
    """Which problem of one task is next; `difficulty_levels.LevelCursor` and `epochs.PassCursor` are such."""

    def next_index(self) -> int:
        """The index of the next problem to lease."""

    def upcoming(self, count: int) -> list[int]:
        """What `next_index` will give, if nothing is observed meanwhile: at least one, at most `count`."""

    def observe(self, index: int, pass_rate: float) -> None:
        """A group of that problem was admitted with this pass rate, 0 to 1."""

    def expected(self, index: int) -> float | None:
        """The best pass rate that was seen of that problem, or of such as it is; None while nothing is known.

        The best and not the newest, so that a policy that falls does not make its problems harder.
        """

    def alike(self, index: int) -> tuple[int, int]:
        """Which problem that index names, the same number whenever it comes, and a number of what is like it."""

    def state(self) -> dict[str, Any]:
        """All of it as a plain JSON object."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from it."""

    def standing(self) -> dict[str, float]:
        """A few figures to be told."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One task of the mixture. `fingerprint` changes whenever an index of it may mean another problem."""

    name: str
    fingerprint: str
    weight: float
    cursor: Cursor


@dataclass(kw_only=True)
class Curriculum:
    """See the module's paragraph. Itself a cursor, over all tasks; what is told of it is told by task. `again` comes
    before all else: what was drawn before a restart and leased to nobody."""

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
        shares = copy.copy(self._shares)  # a draw replaces its credits
        numbers = [shares.draw() for _ in range(count)]
        ahead = {number: iter(self.parts[number].cursor.upcoming(times)) for number, times in Counter(numbers).items()}
        found: list[int] = []
        for number in numbers:
            if (inner := next(ahead[number], None)) is None:  # its cursor does not look so far
                break
            found.append(index_at(inner, number, len(self.parts)))
        return found

    def observe(self, index: int, mean_reward: float) -> None:
        """A group of that problem was admitted with this mean reward, 1.0 being all right."""
        inner, number = place_of(index, len(self.parts))
        self.parts[number].cursor.observe(inner, min(max(mean_reward, 0.0), 1.0))

    def expected(self, index: int) -> float | None:
        """The mean reward that a group of that problem has been known to earn; None while nothing is known of it."""
        inner, number = place_of(index, len(self.parts))
        return self.parts[number].cursor.expected(inner)

    def alike(self, index: int) -> tuple[int, int]:
        inner, number = place_of(index, len(self.parts))
        problem, kind = self.parts[number].cursor.alike(inner)
        return index_at(problem, number, len(self.parts)), index_at(kind, number, len(self.parts))

    def state(self) -> dict[str, Any]:
        """All of it, for a checkpoint."""
        return {
            **({"again": list(self.again)} if self.again else {}),
            "tasks": [part.fingerprint for part in self.parts],
            "credits": list(self._shares.credits),
            "cursors": [part.cursor.state() for part in self.parts],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state. Raises OtherTask, and leaves all as it was."""
        then, now = list(state.get("tasks", ["of an older program"])), [part.fingerprint for part in self.parts]
        if then != now:
            raise OtherTask(f"now {_listed(now)}, then {_listed(then)}")
        self._shares.credits = [float(credit) for credit in state["credits"]]
        for part, kept in zip(self.parts, state["cursors"], strict=True):
            part.cursor.restore(kept)
        self.again = [int(index) for index in state.get("again", ())]

    def standing(self) -> dict[str, dict[str, float]]:
        """Of each task a few figures to be told, by its name."""
        return {part.name: part.cursor.standing() for part in self.parts}


def _listed(fingerprints: Sequence[str]) -> str:
    return " and ".join(map(str, fingerprints))


@dataclass(kw_only=True)
class Shares:
    """Draws among tasks by weight, as even as draws can be (smooth weighted round robin, as nginx balances servers).

    Invariants: after n draws each task was drawn within as many of its n-fold share as there are tasks, from whatever
    point on one counts, so no task is starved and none comes in runs. There is no randomness, and `state()` is all
    there is: a restored one goes on with the very same sequence.

    `shares` are positive and sum to 1; weights may change between two runs.
    """

    shares: tuple[float, ...]
    credits: list[float] = field(default_factory=list)
    """What each is owed, in draws; they sum to zero."""

    @classmethod
    def of(cls, weights: Sequence[float]) -> Shares:
        """By these weights, which are positive."""
        total = sum(weights)
        return cls(shares=tuple(weight / total for weight in weights), credits=[0.0] * len(weights))

    def draw(self) -> int:
        """The number of the task that the next prompt is of."""
        owed = [credit + share for credit, share in zip(self.credits, self.shares, strict=True)]
        chosen = owed.index(max(owed))
        owed[chosen] -= 1.0
        self.credits = owed
        return chosen
