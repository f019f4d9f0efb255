"""What a page tells beside the figures of a report: what happened when, as values.

What always holds: sizes do not grow with a run. Time is cut into at most BINS stretches, stays that lie closer together
than a line is wide are one, and only so many peers have a history of their own. All times are seconds since the run
began; who was here is known of every peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.work import Rule

BINS = 96
"""Stretches of a timeline: an hour and a half of a run of six days each, and 9 pixels of the widest plot."""

MIN_BIN_S = 1.0
"""Less would say of a run of a minute when which delivery came, not how many do."""

FINEST = 400
"""A gap of at most this part of the whole time is not drawn: two pixels of the widest plot."""

PEERS_TOLD = 200
"""Peers with a history, and a page, of their own: 22 kB each, 4.5 MB in all. The others have their row in the table."""

EVIDENCE_KEPT = 3
"""Of each peer and rule, the newest: enough to see what goes wrong. All of them are in the ledger."""

DETAIL_CHARS = 400
"""Of what was said of a record. A verdict says less; only a ledger that somebody wrote into has more."""

RECEIVERS_KEPT = 10
"""Of those to whom a peer relayed, who had most."""

Span = tuple[float, float]
"""From when to when, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Records that came in one stretch of time, of `width_s` from `at_s` on, by whether they were admitted."""

    at_s: float
    width_s: float
    admitted: int
    refused: int

    @property
    def admitted_per_min(self) -> float:
        return 60 * self.admitted / self.width_s

    @property
    def refused_per_min(self) -> float:
        return 60 * self.refused / self.width_s


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A record that was refused: which, made with which version and how old that was, and what was said of it.

    `version` and `lag` are None where they are not known: a volunteer's own books lack them.
    """

    lease: LeaseId
    index: int
    at_s: float
    detail: str
    version: PolicyVersion | None = None
    lag: int | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """What one receiver signed to have had of a peer, as credited: bytes, of so many versions."""

    receiver: PeerId
    num_bytes: int
    versions: int


@dataclass(frozen=True, kw_only=True)
class PeerHistory:
    """One peer's timeline, the newest evidence of each rule that refused something, and to whom it relayed most."""

    judged: tuple[Judged, ...] = ()
    evidence: Mapping[Rule, tuple[Evidence, ...]] = field(default_factory=dict)
    given: tuple[Given, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepLag:
    """The lag of what one step was trained on: the mean, and the largest."""

    mean: float
    largest: int


@dataclass(frozen=True, kw_only=True)
class History:
    """`spans`: when each peer was here, and `stays` how often it came; `peers`: at most PEERS_TOLD of them;
    `judged`: of all peers together; `lags` by step.
    """

    spans: Mapping[PeerId, tuple[Span, ...]] = field(default_factory=dict)
    stays: Mapping[PeerId, int] = field(default_factory=dict)
    peers: Mapping[PeerId, PeerHistory] = field(default_factory=dict)
    judged: tuple[Judged, ...] = ()
    lags: Mapping[int, StepLag] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bins:
    """`wall_s` seconds, cut into at most BINS stretches of the same width, the last of what is left."""

    wall_s: float

    @property
    def width_s(self) -> float:
        return max(MIN_BIN_S, self.wall_s / BINS)

    @property
    def number(self) -> int:
        return max(1, min(BINS, -int(-self.wall_s // self.width_s)))

    def of(self, at_s: float) -> int:
        """The stretch that `at_s` falls into."""
        return self.clamped(int(at_s / self.width_s))

    def clamped(self, stretch: int) -> int:
        """`stretch`; what lies outside of the time counts for the first or the last: clocks may have been set."""
        return min(max(stretch, 0), self.number - 1)

    def filled(self, counts: Iterable[tuple[int, int, int]]) -> tuple[Judged, ...]:
        """All stretches; `counts` says of some how many records were admitted and refused."""
        admitted, refused = [0] * self.number, [0] * self.number
        for stretch, num_admitted, num_refused in counts:
            admitted[self.clamped(stretch)] += num_admitted
            refused[self.clamped(stretch)] += num_refused
        return tuple(
            Judged(at_s=at * self.width_s, width_s=self._width_of(at), admitted=admitted[at], refused=refused[at])
            for at in range(self.number)
        )

    def _width_of(self, at: int) -> float:
        last = self.wall_s - at * self.width_s if at == self.number - 1 else self.width_s
        return min(max(last, MIN_BIN_S / 10), self.width_s)


def joined(spans: Iterable[Span], *, gap_s: float) -> tuple[Span, ...]:
    """`spans` in order, those that overlap or lie at most `gap_s` apart as one."""
    found: list[Span] = []
    for began_s, ended_s in sorted(spans):
        if found and began_s - found[-1][1] <= gap_s:
            found[-1] = (found[-1][0], max(found[-1][1], ended_s))
        else:
            found.append((began_s, ended_s))
    return tuple(found)


def told_of(peers: Sequence[tuple[PeerId, int]], limit: int = PEERS_TOLD) -> list[PeerId]:
    """Whose history is told: of `peers`, with how many records each is blamed for, in the order of a report.

    Half of the room is for those who are blamed most, which an operator looks for; the rest is for whoever comes first.
    """
    blamed = sorted((one for one in peers if one[1]), key=lambda one: -one[1])[: limit // 2]
    chosen = {peer for peer, _ in blamed}
    others = [peer for peer, _ in peers if peer not in chosen][: limit - len(chosen)]
    chosen.update(others)
    return [peer for peer, _ in peers if peer in chosen]
