"""Choose problems of a finite task, pass after pass, by the pass rate of every problem.

A pure core. A problem is given at most once in a pass. The pass rate of its last group decides when it comes again:

- Inside the band (`low` to `high`, ends excluded), it comes again in the next pass.
- At or above `high` (by default: all right), it sits out 1, 3, 7, then 15 passes, since the policy will still solve it
  soon after.
- At or below `low`, it sits out 1, then 3 passes, since a policy that learns may come to solve it.

Groups outside the band teach nothing, or not enough. With `easy_first`, the order of a pass follows the pass rates that
were known when it began: the highest first, and problems without one in the middle.

Invariants:

- A pass gives at least one problem, however many sit out.
- An index, number * size + problem, is given once.
- `state()` is a plain JSON object of at most STATE_CHARS characters. A cursor that is restored from it continues with
  exactly the same indexes.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRACKED = 1 << 18
"""Problems whose pass rates are remembered, at 6 bytes each; more groups than most runs ever train on. In a longer
task, the first TRACKED problems are remembered, and each of the others comes once in every pass."""

STATE_CHARS = 8 * TRACKED + 4096
"""Characters of a state at most: base64 of 6 bytes a problem, if they cannot be compressed at all, and the JSON around
it."""

MOST_RIGHT, MOST_WRONG = 16, 4
"""Passes from one visit of a problem to the next, at most. A policy can forget what it learned, and can come to solve
what was out of reach."""

UNKNOWN = 255
STEPS = 254
"""Pass rates are remembered in 254ths, so that any group of up to 254 rollouts gives rates that can be told apart."""

MIDDLE = STEPS // 2

SCAN = 4096
"""Places of a pass that are searched at once for the next problem that does not sit out."""

Bytes = NDArray[np.uint8]


@dataclass(kw_only=True)
class PassCursor:
    """The position in one finite task: the current pass, its order, and the pass rate of each problem.

    Args:
        size: number of problems, at least 1.
        seed: determines the order of each pass.
        low, high: the band of pass rates; a rate at or beyond an end is outside.
        priors: pass rates measured before the run, [size] in [0, 1], NaN where there is none. Problems whose rate is
            outside the band sit out the first pass.
    """

    size: int
    seed: str
    low: float = 0.0
    high: float = 1.0
    easy_first: bool = False
    priors: Sequence[float] | None = None
    number: int = 0
    place: int = 0
    given: int = 0
    _gave: bool = False
    _rates: Bytes = field(init=False)
    _best: Bytes = field(init=False)
    _streaks: Bytes = field(init=False)
    _due: NDArray[np.uint16] = field(init=False)
    _ranks: Bytes = field(init=False)
    _order: NDArray[np.int64] = field(init=False)
    _newest: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """The shuffled order that was made last, by its pass. To shuffle a million problems takes a tenth of a second."""

    def __post_init__(self) -> None:
        tracked = min(self.size, TRACKED)
        self._rates = np.full(tracked, UNKNOWN, np.uint8)
        self._streaks = np.zeros(tracked, np.uint8)
        self._due = np.zeros(tracked, np.uint16)
        if self.priors is not None:
            priors = np.asarray(self.priors, np.float64)[:tracked]
            known = np.isfinite(priors)
            self._rates[known] = np.rint(priors[known].clip(0, 1) * STEPS)
            self._due[known & ((priors <= self.low) | (priors >= self.high))] = 1
        self._ranks, self._best = self._rates.copy(), self._rates.copy()
        self._order = self._ordered()

    def next_index(self) -> int:
        while not (found := self._next_places(1)):
            self._begin_pass()
        problem = int(self._order[found[0]])
        self.place, self._gave = found[0] + 1, True
        self.given += 1
        return self.number * self.size + problem

    def upcoming(self, count: int) -> list[int]:
        """Return the next indexes, if nothing is observed meanwhile: at least one, at most `count`. For a long task,
        return no more than are left of this pass, since it takes a while to order the next one."""
        ahead = copy.copy(self)  # next_index replaces the fields of a pass, and changes none in place
        found: list[int] = []
        while True:
            places = ahead._next_places(count - len(found))
            found += [ahead.number * self.size + int(problem) for problem in ahead._order[places]]
            if len(found) == count or (found and self.size > SCAN):
                return found
            ahead._gave = ahead._gave or bool(places)
            ahead._begin_pass()

    def observe(self, index: int, pass_rate: float) -> None:
        """Record the pass rate of a finished group, and decide in which pass its problem comes again."""
        number, problem = divmod(index, self.size)
        if problem >= len(self._rates):
            return
        rate = min(max(pass_rate, 0.0), 1.0)
        before = int(self._rates[problem])
        now = self._rates[problem] = round(rate * STEPS)
        best = int(self._best[problem])
        self._best[problem] = now if best == UNKNOWN else max(best, now)
        if self.low < rate < self.high:
            self._streaks[problem] = 0
            return
        is_right = rate >= self.high
        was_right = before != UNKNOWN and before >= self.high * STEPS
        streak = min(int(self._streaks[problem]), 15) + 1 if is_right == was_right else 1
        self._streaks[problem] = streak
        most = MOST_RIGHT if is_right else MOST_WRONG
        self._due[problem] = min(number + min(1 << streak, most), np.iinfo(np.uint16).max)

    def expected(self, index: int) -> float | None:
        """Return the highest pass rate of this problem so far, measured in this run or before it; None while there is
        none."""
        problem = index % self.size
        if problem >= len(self._best) or self._best[problem] == UNKNOWN:
            return None
        return int(self._best[problem]) / STEPS

    def alike(self, index: int) -> tuple[int, int]:
        """Return the problem's number, the same in every pass, and 0, since all problems are of one kind."""
        return index % self.size, 0

    def state(self) -> dict[str, Any]:
        """Return the whole state, for a checkpoint."""
        return {
            "size": self.size,
            "number": self.number,
            "place": self.place,
            "given": self.given,
            "gave": self._gave,
            "rates": _packed(self._rates),
            "best": _packed(self._best),
            "streaks": _packed(self._streaks),
            "due": _packed(self._due.astype("<u2").view(np.uint8)),
            "ranks": _packed(self._ranks) if self.easy_first else "",
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the same task. Raises ValueError for a damaged one."""
        tracked = len(self._rates)
        self._rates, self._streaks = _unpacked(state["rates"], tracked), _unpacked(state["streaks"], tracked)
        # A state from before `best` existed has the newest rates only.
        self._best = _unpacked(state.get("best", state["rates"]), tracked)
        self._due = _unpacked(state["due"], 2 * tracked).view("<u2").astype(np.uint16)
        self._ranks = _unpacked(state["ranks"], tracked) if state["ranks"] else self._rates.copy()
        self.number, self.place = int(state["number"]), int(state["place"])
        self.given, self._gave = int(state["given"]), bool(state["gave"])
        self._order = self._ordered()

    def standing(self) -> dict[str, float]:
        """Return the numbers for reports: groups given, passes, problems with a known rate, and how many of these are
        all right and all wrong."""
        known = self._rates[self._rates != UNKNOWN]
        return {
            "given": self.given,
            "passes": self.number,
            "known": len(known),
            "all_right": int((known == STEPS).sum()),
            "all_wrong": int((known == 0).sum()),
            "rate": round(float(known.mean()) / STEPS, 4) if len(known) else 0.0,
        }

    def _next_places(self, count: int) -> list[int]:
        """Return the next places of this pass whose problems do not sit out, at most `count`."""
        found: list[int] = []
        for first in range(self.place, self.size, SCAN):
            some = self._order[first : first + SCAN]
            comes = np.ones(len(some), np.bool_)
            tracked = some < len(self._due)
            comes[tracked] = self._due[some[tracked]] <= self.number
            found += [first + int(place) for place in np.flatnonzero(comes)[: count - len(found)]]
            if len(found) == count:
                break
        return found

    def _begin_pass(self) -> None:
        """Begin the next pass. If this one gave nothing, begin the first one in which a problem comes again."""
        soonest = self.number + 1
        if not self._gave and self.size == len(self._due):
            soonest = max(soonest, int(self._due.min()))
        self.number, self.place, self._gave = soonest, 0, False
        self._ranks = self._rates.copy()
        self._order = self._ordered()

    def _ordered(self) -> NDArray[np.int64]:
        """Return the problems in the order of this pass: shuffled, then sorted with the easiest first if `easy_first`
        is set."""
        if (order := self._newest.get(self.number)) is None:
            order = self._shuffled()
            self._newest.clear()
            self._newest[self.number] = order
        if not self.easy_first:
            return order
        ranks = np.full(self.size, MIDDLE, np.uint8)
        ranks[: len(self._ranks)] = np.where(self._ranks == UNKNOWN, MIDDLE, self._ranks)
        return order[np.argsort(STEPS - ranks[order], kind="stable")]

    def _shuffled(self) -> NDArray[np.int64]:
        words = np.frombuffer(hashlib.blake2b(f"{self.seed}/{self.number}".encode(), digest_size=32).digest(), "<u4")
        # RandomState and not Generator: NumPy promises that its stream never changes (NEP 19).
        return np.random.RandomState(words).permutation(self.size)


def _packed(values: Bytes) -> str:
    return base64.b64encode(zlib.compress(values.tobytes(), 1)).decode("ascii")


def _unpacked(text: str, count: int) -> Bytes:
    """Return the `count` bytes that `_packed` made this text from. Raises ValueError if the text is damaged."""
    unzip = zlib.decompressobj()
    try:
        raw = unzip.decompress(base64.b64decode(text, validate=True), count + 1)
    except zlib.error as error:
        raise ValueError(f"packed values are damaged: {error}") from error
    if len(raw) != count:
        raise ValueError(f"{len(raw)} packed values where {count} were expected")
    return np.frombuffer(raw, np.uint8).copy()
