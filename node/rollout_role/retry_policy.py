"""Decide how long a rollout node retries what fails: when to try again, what to tell the learner, when to give up.

A pure core. The first failure of a kind is told at once and costs a short pause. Each further one in a row doubles the
pause, up to LONGEST_PAUSE_S. A failure that concerns one version ends with the next version: that is tried at once, and
the old failure is no longer told. If nothing has worked for `give_up_s`, the node gives up.

A node that gives up ends, although it could go on relaying versions. Its owner lent the machine for generating. A
process that looks alive and earns nothing is found late or never. A process that ended with a reason is found by the
person or the service that started it. The other nodes get versions without it, since it used as much of their bandwidth
as it gave.

Invariants:

- Between two failing tries of one kind there is at least the pause. The exceptions: a version arrived or came into
  service, or a restarted engine had to prove what it has loaded.
- A node gives up only after LEAST_TIMES failures of one kind in a row, or one that is never tried again, and only if
  neither a batch was generated nor that kind worked for `give_up_s`.
- While the machine is not lent, no time counts, and the node does not give up.
- At most one trouble of each kind is told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from node.config.swarm_config import GIVE_UP_S
from node.runtime import formatting as words
from protocol.core.ids import PolicyVersion
from protocol.core.visible import one_line
from protocol.trouble import MAX_TROUBLE_CHARS, Trouble, TroubleKind

LEAST_TIMES = 3
"""Failures in a row before a node may give up. Two may have one cause that passes, such as a full disk."""

FIRST_PAUSE_S = {
    TroubleKind.FETCH: 5.0,
    TroubleKind.INSTALL: 5.0,
    TroubleKind.LEASE: 1.0,
    TroubleKind.ENGINE: 1.0,
}
"""Seconds of pause after the first failure. Loading a version reads all of its weights. A lease that is refused costs
next to nothing, and the next one may have another prompt. Fetching has pauses of its own (`swarm.versions.follower`),
and is only told here."""

LONGEST_PAUSE_S = 300.0
"""Longest pause in seconds. With five minutes, a node whose owner has repaired the engine is at work soon, and a broken
one costs the learner a dozen rows an hour."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Something failed, with `version` if it concerns one.

    `is_final`: it is not tried again with this version. `may_pass`: this node cannot change whether it lasts, so it is
    told and retried more slowly, but the node never gives up because of it.
    """

    kind: TroubleKind
    reason: str
    version: PolicyVersion | None = None
    is_final: bool = False
    may_pass: bool = False


@dataclass(frozen=True, kw_only=True)
class Worked:
    """Something of this kind worked: the next version is in service and proven, or a batch was generated.

    A version that was in service before, and is proven again, does not count: the next one may still fail."""

    kind: TroubleKind


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """A version is complete here, and is installed next."""

    version: PolicyVersion


@dataclass(frozen=True, kw_only=True)
class Lent:
    """The machine is lent from now on, or no longer."""

    is_lent: bool


Event = Failed | Worked | Arrived | Lent


@dataclass(kw_only=True)
class _Row:
    """Failures of one kind in a row, the first at `since_s`. `doublings` counts those of the pause.

    `is_over`: they concern a version that is no longer tried. They count, and are not told.
    """

    since_s: float
    last: Failed
    times: int = 0
    doublings: int = 0
    again_s: float = -math.inf
    is_over: bool = False


@dataclass(kw_only=True)
class RetryPolicy:
    """The failures of a node, and its decisions about them. Times are seconds of any steady clock."""

    give_up_s: float = GIVE_UP_S
    _rows: dict[TroubleKind, _Row] = field(default_factory=dict)
    _worked_s: float = -math.inf
    _is_lent: bool = True

    def handle(self, event: Event, now_s: float) -> bool:
        """Note what happened, and return whether `troubles` has changed."""
        before = self.troubles
        match event:
            case Failed():
                self._fail(event, now_s)
            case Worked(kind=TroubleKind.INSTALL):
                self._rows.pop(TroubleKind.INSTALL, None)
                self._begin_anew(TroubleKind.LEASE, TroubleKind.ENGINE)
            case Worked():
                self._worked_s = now_s
                for kind in (TroubleKind.LEASE, TroubleKind.ENGINE):
                    self._rows.pop(kind, None)
            case Arrived(version=version):
                self._rows.pop(TroubleKind.FETCH, None)
                if (row := self._rows.get(TroubleKind.INSTALL)) is not None and row.last.version != version:
                    self._begin_anew(TroubleKind.INSTALL)
            case Lent(is_lent=is_lent):
                self._is_lent = is_lent
                for row in self._rows.values():
                    row.since_s = now_s  # failures before the rest prove nothing about the machine as it is now
        return self.troubles != before

    @property
    def troubles(self) -> list[Trouble]:
        """Return the troubles to tell the learner, at most one of each kind."""
        return [
            Trouble(kind, row.times, row.last.reason, row.last.version)
            for kind, row in self._rows.items()
            if not row.is_over
        ]

    def fails(self, *kinds: TroubleKind) -> bool:
        """Return whether one of these kinds failed when it was last tried."""
        return any(kind in self._rows for kind in kinds)

    def again_s(self, *kinds: TroubleKind) -> float:
        """Return the time at which these kinds may be tried again; -inf if none of them fails."""
        return max((self._rows[kind].again_s for kind in kinds if kind in self._rows), default=-math.inf)

    @property
    def ends_s(self) -> float:
        """Return the time at which the node gives up if nothing happens before; inf if it does not."""
        return min((self._ends_s(row) for row in self._rows.values()), default=math.inf)

    def verdict(self, now_s: float) -> str | None:
        """Return why the node gives up now, and what its owner can do; None if it does not."""
        ended = [kind for kind, row in self._rows.items() if self._ends_s(row) <= now_s]
        if not ended:
            return None
        row = self._rows[ended[0]]
        tried = f"{row.times} attempts" if row.times > 1 else "one attempt, because another would fail as well"
        return (
            f"{GAVE_UP[ended[0]].format(duration=words.duration(now_s - row.since_s))} ({tried}). "
            f"The last reason: {row.last.reason.rstrip('.')}. {ADVICE[ended[0]]}"
        )

    def _fail(self, event: Failed, now_s: float) -> None:
        reason = one_line(event.reason, MAX_TROUBLE_CHARS) or "no reason given"
        told = replace(event, reason=reason)
        row = self._rows.setdefault(event.kind, _Row(since_s=now_s, last=told))
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S[event.kind] * 2.0**row.doublings)
        row.last, row.is_over, row.again_s = told, False, now_s + pause_s
        row.times += 1
        row.doublings = min(row.doublings + 1, MOST_DOUBLINGS)

    def _begin_anew(self, *kinds: TroubleKind) -> None:
        """Try these kinds without a pause, because there is another version."""
        for kind in kinds:
            if (row := self._rows.get(kind)) is not None:
                row.doublings, row.again_s, row.is_over = 0, -math.inf, True

    def _ends_s(self, row: _Row) -> float:
        is_enough = row.times >= LEAST_TIMES or row.last.is_final
        if not self._is_lent or row.is_over or row.last.may_pass or not is_enough:
            return math.inf
        ends_s = max(row.since_s, self._worked_s) + self.give_up_s
        # The node never gives up in the middle of a try, which may work.
        return ends_s if row.last.is_final or ends_s < row.again_s else math.inf


MOST_DOUBLINGS = 20
"""Most doublings of the pause. It is LONGEST_PAUSE_S for every kind by then, and a power of two that grew for years
would overflow."""

GAVE_UP = {
    TroubleKind.INSTALL: "This node has given up: no version could be installed for {duration}",
    TroubleKind.LEASE: "This node has given up: it could use none of its leases for {duration}",
    TroubleKind.ENGINE: "This node has given up: its engine did not get through a batch for {duration}",
}

MEND = (
    "Tell the swarm's operator. Try another engine ([engine] kind), or newer libraries in its environment ([engine] "
    "python), and start the node again."
)

ADVICE = {
    TroubleKind.INSTALL: MEND,
    TroubleKind.LEASE: MEND,
    TroubleKind.ENGINE: "The engine's last output is in events.jsonl. Free memory, or lower [engine] batch_rollouts, "
    "then start the node again.",
}
