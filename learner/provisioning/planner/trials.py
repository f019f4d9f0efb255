"""Track active peers: since when each is active, when it starts to supply, and which trials failed.

Pure. If no present peer has delivered anything, that is no peer's fault (all may still be loading their first version),
and no other could take its place. Then no trial goes on, and none has failed.

Invariants:

- Only present peers are active.
- A trial begins when its peer has started, and ends with its first admitted rollout or after `trial_s`.
- After a failed trial, the peer is left alone for TRIED_AGAIN_S, even if it leaves and comes back.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from learner.provisioning.model.machine_selection import PLAN_STANDS_S, Candidate
from learner.provisioning.planner.constants import KEPT_REVIEWS, KEPT_STARTS, TRIAL_REVIEWS, TRIED_AGAIN_S


@dataclass(kw_only=True)
class _Turn:
    """A peer is active since `since_s`, takes `start_s` to start, and supplies from `supplies_s`."""

    since_s: float
    start_s: float
    supplies_s: float


class TrialTracker:
    """The active peers and their trials. It is bounded by the peers that are present, and by those that were tried
    within an hour. Times are those of one clock."""

    def __init__(self, review_s: float) -> None:
        self._review_s = review_s
        self._turns: dict[str, _Turn] = {}
        self.failed_s: dict[str, float] = {}
        """Peers whose trial ended without an admitted rollout, and when; at most TRIED_AGAIN_S ago."""
        self.released_s: dict[str, float] = {}
        """Peers that were deactivated although they worked, and when; at most PLAN_STANDS_S ago."""
        self._nobody_s = -math.inf
        """When last no present peer had delivered anything."""

    @property
    def active(self) -> frozenset[str]:
        """The names of the active peers."""
        return frozenset(self._turns)

    def follow(self, now_s: float, candidates: Iterable[Candidate]) -> int:
        """Forget peers that left, and record which start sooner than expected. Return how many active ones left."""
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
        """Activate a peer."""
        self._turns[one.name] = _Turn(since_s=now_s, start_s=one.start_s, supplies_s=now_s + one.start_s)

    def release(self, name: str, now_s: float) -> None:
        """Deactivate a peer, since others are cheaper."""
        del self._turns[name]
        self.released_s[name] = now_s

    def end_trials(
        self, now_s: float, candidates: Sequence[Candidate], unproven: Collection[str], *, train_s: float
    ) -> list[tuple[str, float]]:
        """Deactivate peers whose trial is over without a delivery. Return their names, and for how long they were
        active."""
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
        """Return how long a peer has, once started, to deliver something. It includes a training step, since no more is
        leased before a batch is taken if enough is under way; a version's broadcast; and more than one rollout."""
        return TRIAL_REVIEWS * self._review_s + train_s + one.broadcast_s + 2 * one.generation_s

    def supplies(self, name: str, now_s: float) -> bool:
        """Return whether the peer is active and has started."""
        turn = self._turns.get(name)
        return turn is not None and now_s >= turn.supplies_s

    def may_end(self, one: Candidate, now_s: float) -> bool:
        """Return whether its start has paid off by now."""
        turn = self._turns[one.name]
        return now_s >= turn.since_s + max(KEPT_REVIEWS * self._review_s, KEPT_STARTS * turn.start_s)
