"""Follow a run through its events: what it does now, and what a terminal would show of it.

A pure core: it is fed events and the time.

Invariants:

- It stays bounded however long the run is.
- The state of an earlier start, which the same log tells of, is not that of the program that runs. What was learned
  and noticed before stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from node.commands.page.event_tail import Logged
from node.reports.model.report import Role
from node.ui.live_view import ViewState
from node.ui.view_updates import apply

MOST_PEERS = 4096
"""Peers that are remembered. With more, those that have left are forgotten."""


class State(Enum):
    """The state of a run in one word, as the badge shows it."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting for nodes"
    RESTING = "resting"
    ALARM = "ALARM"
    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(kw_only=True, eq=False)
class LiveRun:
    """What the events of one program tell. `view` is what a terminal would show."""

    view: ViewState
    began_at: float = 0.0
    """When the program began, in seconds since 1970."""
    is_over: bool = False
    """Whether the program has ended."""
    _first_at: float | None = None
    _has_begun: bool = False

    def __post_init__(self) -> None:
        self._staleness = self.view.staleness

    def take(self, logged: Iterable[Logged]) -> None:
        """Take the next events."""
        for one in logged:
            if self._first_at is None:
                self._first_at = one.at
            if not self._has_begun and one.at >= self.began_at:
                self._begin()
            self.view.now_s = max(0.0, one.at - self._first_at)
            apply(self.view, one.event, one.fields)
            if one.event == "peer_joined" and len(self.view.peers) > MOST_PEERS:
                self.view.peers = {peer.peer: peer for peer in self.view.present}

    def tick(self, now: float) -> None:
        """Move the clock, for rates. `now` is in seconds since 1970."""
        if not self._has_begun and now >= self.began_at:
            self._begin()
        if self._first_at is not None:
            self.view.tick(max(self.view.now_s, now - self._first_at))

    def _begin(self) -> None:
        """Forget what holds for one start alone."""
        before = self.view
        self._has_begun = True
        self.view = ViewState(
            role=before.role,
            title=before.title,
            step=before.step,
            steps=before.steps,
            batch=before.batch,
            staleness=self._staleness,
            newest=before.newest,
            rewards=before.rewards,
            entropies=before.entropies,
            greedy=before.greedy,
            sampled=before.sampled,
            pass_at=before.pass_at,
            notices=before.notices,
            now_s=before.now_s,
        )

    def clock_of(self, at_s: float) -> float:
        """Return a time of the view, such as a notice's, in seconds since 1970."""
        return at_s + (self._first_at or 0.0)

    @property
    def state(self) -> State:
        """Return the state of the run."""
        view = self.view
        if view.activity == "finished":
            return State.FINISHED
        if self.is_over:
            return State.STOPPED
        if view.alarms or view.nobody_works:
            return State.ALARM
        if view.role is Role.ROLLOUT:
            return State.RESTING if view.resting or view.draining else State.RUNNING
        if not view.is_open:
            return State.STARTING
        return State.WAITING if view.activity == "waiting for nodes" else State.RUNNING
