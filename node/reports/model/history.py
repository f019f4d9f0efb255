"""Hold what happened when in a run, as values for the page.

All times are seconds since the run began.

Invariants:

- Sizes do not grow with a run: time is cut into at most BINS stretches, presences that are closer together than the
  width of a line are joined, and only PEERS_TOLD peers have a history of their own.
- The presence of every peer is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.work import Rule

BINS = 96
"""Stretches of a timeline: an hour and a half of a run of six days each, and 9 pixels of the widest plot."""

MIN_BIN_S = 1.0
"""Seconds. Shorter stretches would show single deliveries in a run of a minute, not how many there are."""

FINEST = 400
"""A gap of at most 1 / FINEST of the whole time is not drawn: two pixels of the widest plot."""

PEERS_TOLD = 200
"""Peers with a history and a page of their own: 22 kB each, 4.5 MB in all. The others have only a row in the table."""

EVIDENCE_KEPT = 3
"""Newest records that are kept of each peer and rule: enough to see what goes wrong. The ledger has all of them."""

DETAIL_CHARS = 400
"""Characters kept of a verdict's detail. Verdicts are shorter; only a ledger that was edited has longer details."""

RECEIVERS_KEPT = 10
"""Receivers that are kept of each relaying peer: those that received most from it."""

Span = tuple[float, float]
"""Beginning and end, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Records that came in one stretch of `width_s` seconds from `at_s` on, by whether they were admitted."""

    at_s: float
    width_s: float
    admitted: int
    rejected: int

    @property
    def admitted_per_min(self) -> float:
        return 60 * self.admitted / self.width_s

    @property
    def rejected_per_min(self) -> float:
        return 60 * self.rejected / self.width_s


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A rejected record: which one, its behaviour version and lag, and the verdict's detail.

    `version` and `lag` are None if they are not known: a volunteer's own receipts lack them.
    """

    lease: LeaseId
    index: int
    at_s: float
    detail: str
    version: PolicyVersion | None = None
    lag: int | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """The bytes that one receiver signed to have received from a peer, as credited, and the number of versions."""

    receiver: PeerId
    num_bytes: int
    versions: int


@dataclass(frozen=True, kw_only=True)
class PeerHistory:
    """One peer's timeline, the newest evidence of each rule that rejected records, and its main receivers."""

    judged: tuple[Judged, ...] = ()
    evidence: Mapping[Rule, tuple[Evidence, ...]] = field(default_factory=dict)
    given: tuple[Given, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepLag:
    """The lag of the rollouts of one training step: the mean, and the largest."""

    mean: float
    largest: int


@dataclass(frozen=True, kw_only=True)
class History:
    """`spans`: when each peer was present; `presences`: how often it came; `peers`: at most PEERS_TOLD of them;
    `judged`: records of all peers together; `lags`: by step.
    """

    spans: Mapping[PeerId, tuple[Span, ...]] = field(default_factory=dict)
    presences: Mapping[PeerId, int] = field(default_factory=dict)
    peers: Mapping[PeerId, PeerHistory] = field(default_factory=dict)
    judged: tuple[Judged, ...] = ()
    lags: Mapping[int, StepLag] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bins:
    """`wall_s` seconds, cut into at most BINS stretches of the same width; the last one may be shorter."""

    wall_s: float

    @property
    def width_s(self) -> float:
        return max(MIN_BIN_S, self.wall_s / BINS)

    @property
    def number(self) -> int:
        return max(1, min(BINS, -int(-self.wall_s // self.width_s)))

    def of(self, at_s: float) -> int:
        """Return the stretch that `at_s` falls into."""
        return self.clamped(int(at_s / self.width_s))

    def clamped(self, stretch: int) -> int:
        """Return `stretch`, moved to the first or last one if it lies outside, as after a clock was set."""
        return min(max(stretch, 0), self.number - 1)

    def filled(self, counts: Iterable[tuple[int, int, int]]) -> tuple[Judged, ...]:
        """Return all stretches; `counts` has (stretch, admitted, rejected) records of some of them."""
        admitted, rejected = [0] * self.number, [0] * self.number
        for stretch, num_admitted, num_rejected in counts:
            admitted[self.clamped(stretch)] += num_admitted
            rejected[self.clamped(stretch)] += num_rejected
        return tuple(
            Judged(at_s=at * self.width_s, width_s=self._width_of(at), admitted=admitted[at], rejected=rejected[at])
            for at in range(self.number)
        )

    def _width_of(self, at: int) -> float:
        last = self.wall_s - at * self.width_s if at == self.number - 1 else self.width_s
        return min(max(last, MIN_BIN_S / 10), self.width_s)


def joined(spans: Iterable[Span], *, gap_s: float) -> tuple[Span, ...]:
    """Return `spans` in order; those that overlap or are at most `gap_s` apart become one."""
    found: list[Span] = []
    for began_s, ended_s in sorted(spans):
        if found and began_s - found[-1][1] <= gap_s:
            found[-1] = (found[-1][0], max(found[-1][1], ended_s))
        else:
            found.append((began_s, ended_s))
    return tuple(found)


def peers_with_history(peers: Sequence[tuple[PeerId, int]], limit: int = PEERS_TOLD) -> list[PeerId]:
    """Return the peers that get a history, in the order of `peers`, which gives the number of blamed records of each.

    Half of the room is for the most blamed peers, which an operator looks for; the rest goes to the first ones.
    """
    blamed = sorted((one for one in peers if one[1]), key=lambda one: -one[1])[: limit // 2]
    chosen = {peer for peer, _ in blamed}
    others = [peer for peer, _ in peers if peer not in chosen][: limit - len(chosen)]
    chosen.update(others)
    return [peer for peer, _ in peers if peer in chosen]
