"""Whose turn it is: who is on, since when, from when they supply, and whose trial came to nothing.

Pure. What always holds: only who is present is on; a trial begins when its peer has started, and ends with its first
admitted rollout or after `trial_s`, and then that peer is left alone for TRIED_AGAIN_S, also if it goes and comes back.
Where nobody present has delivered anything, it is no peer's fault (all of them may still be loading their first
version) and nobody could take its place: no trial goes on then, and none has failed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from learner.provisioning.model.machine_selection import PLAN_STANDS_S, Candidate
from learner.provisioning.planner.constants import STAYS_REVIEWS, STAYS_STARTS, TRIAL_REVIEWS, TRIED_AGAIN_S


@dataclass(kw_only=True)
class _Turn:
    """Somebody is on since `since_s`, starting in `start_s`, and supplies from `supplies_s`."""

    since_s: float
    start_s: float
    supplies_s: float


class TrialTracker:
    """Bounded by who is present, and by who was tried within an hour. Times are those of one clock."""

    def __init__(self, review_s: float) -> None:
        self._review_s = review_s
        self._turns: dict[str, _Turn] = {}
        self.failed_s: dict[str, float] = {}
        """Whose trial ended without an admitted rollout, when; not longer than TRIED_AGAIN_S ago."""
        self.released_s: dict[str, float] = {}
        """Who was switched off although it worked, when; not longer than PLAN_STANDS_S ago."""
        self._nobody_s = -math.inf
        """When last nobody present had delivered anything."""

    @property
    def on(self) -> frozenset[str]:
        """Their names."""
        return frozenset(self._turns)

    def follow(self, now_s: float, candidates: Iterable[Candidate]) -> int:
        """Forget who left, and note who starts sooner than it was thought to. Returns how many of those on left."""
        present = {one.name: one for one in candidates}
        left = self._turns.keys() - present.keys()
        for name in left:
            del self._turns[name]
        for name, turn in self._turns.items():
            turn.supplies_s = min(turn.supplies_s, now_s + present[name].start_s)
        self.released_s = {
            name: at_s for name, at_s in self.released_s.items() if name in present and now_s - at_s < PLAN_STANDS_S
        }
        return len(left)

    def begin(self, one: Candidate, now_s: float) -> None:
        """It is on from now on."""
        self._turns[one.name] = _Turn(since_s=now_s, start_s=one.start_s, supplies_s=now_s + one.start_s)

    def release(self, name: str, now_s: float) -> None:
        """It is off, others being cheaper."""
        del self._turns[name]
        self.released_s[name] = now_s

    def end_trials(
        self, now_s: float, candidates: Sequence[Candidate], unproven: Collection[str], *, train_s: float
    ) -> list[tuple[str, float]]:
        """Who promised and delivered nothing is off. Returns their names, and for how long they were on."""
        if candidates and all(one.name in unproven for one in candidates):
            self._nobody_s = now_s
            self.failed_s.clear()
            return []
        ended = []
        for one in candidates:
            turn = self._turns.get(one.name)
            if one.name not in unproven:
                self.failed_s.pop(one.name, None)
            elif turn and now_s - max(turn.supplies_s, self._nobody_s) >= self.trial_s(one, train_s=train_s):
                del self._turns[one.name]
                self.failed_s[one.name] = now_s
                ended.append((one.name, now_s - turn.since_s))
        self.failed_s = {name: at_s for name, at_s in self.failed_s.items() if now_s - at_s < TRIED_AGAIN_S}
        return ended

    def trial_s(self, one: Candidate, *, train_s: float) -> float:
        """How long it has, once started, to deliver something: a training step, since when enough is under way nothing
        is leased before a batch is taken; a version's journey; and more than one rollout."""
        return TRIAL_REVIEWS * self._review_s + train_s + one.broadcast_s + 2 * one.generation_s

    def supplies(self, name: str, now_s: float) -> bool:
        """Whether it is on, and has started."""
        turn = self._turns.get(name)
        return turn is not None and now_s >= turn.supplies_s

    def may_end(self, one: Candidate, now_s: float) -> bool:
        """Whether its start was worth it by now."""
        turn = self._turns[one.name]
        return now_s >= turn.since_s + max(STAYS_REVIEWS * self._review_s, STAYS_STARTS * turn.start_s)
