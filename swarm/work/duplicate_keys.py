"""Tell a peer that came back from a second process that runs with a copy of its key.

A peer that greets us while a line of its own is up has lost that line without our noticing (another network, a power
cut), or there are two of it: a state directory was copied to another machine. If each new line ended the one before,
two copies would throw each other out for ever. A process says who it is by a number that it drew when it started, so
a line that the same process opens again is no riddle. Of another process we wait for words on the old line: whoever
goes on speaking there is alive. One word is not enough, since what a process that was killed had written is still sent
by its system, and may arrive long after it; so it makes the other process claim the place a second time, and a word
after that settles it.

A pure core. Times are seconds on the caller's clock. Invariants:
- A peer without a line, the same process again, and a program that tells no number are welcome at once.
- No line is ended in favour of another process before PROVE_HEARTBEATS have passed, since that came, in which it said
  nothing.
- Nobody waits for longer than that because of a line that says nothing, whenever its last word came.
- Nobody is called a copy for one late word, unless heartbeats are too rare for a second one in that time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from protocol.core.ids import PeerId

CROSSING_S = 1.0
"""What was sent on the old line before the new one greeted may be read after it, and proves nothing."""

PROVE_HEARTBEATS = 2
"""Silence of so many heartbeats, and a line is given up for a process that asks for its place: a line that is not
asked for has four."""

LONGEST_RETRY_S = 15.0
"""Where heartbeats are rare, a node that lost its power must not stand before the door for minutes."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A line that is up: which process it belongs to, and when that last said something."""

    instance: bytes
    heard_s: float


@dataclass(frozen=True, kw_only=True)
class Welcomed:
    """There is one of it."""


@dataclass(frozen=True, kw_only=True)
class Unsettled:
    """Nobody can tell yet: it is to come again in `retry_s` seconds."""

    retry_s: float


@dataclass(frozen=True, kw_only=True)
class Copied:
    """There are two of it, and the other was here first."""


Judgement = Welcomed | Unsettled | Copied


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """Of a process that came at `came_s`; words since `since_s` count, which is later if it `is_second`."""

    instance: bytes
    came_s: float
    since_s: float
    is_second: bool = False


@dataclass(kw_only=True)
class Doubles:
    """See the module's paragraph. `heartbeat_s` is how often a peer that lives says so. Remembered is at most one claim
    for each peer with a line."""

    heartbeat_s: float = 5.0
    _claims: dict[PeerId, _Claim] = field(default_factory=dict)

    @property
    def retry_s(self) -> float:
        """After so long a peer that lives has said something."""
        return min(self.heartbeat_s + CROSSING_S, LONGEST_RETRY_S)

    def judge(self, peer: PeerId, instance: bytes, standing: Standing | None, now: float) -> Judgement:
        """Judge a greeting of `peer` at `now`, as the process `instance` (empty: it does not say), where `standing` is
        its line, if it has one."""
        if standing is None or not instance or not standing.instance or instance == standing.instance:
            self.forget(peer)
            return Welcomed()
        claim = self._claims.get(peer)
        if claim is None or claim.instance != instance:
            claim = self._claims[peer] = _Claim(instance=instance, came_s=now, since_s=now)
        if standing.heard_s > claim.since_s + CROSSING_S:
            # One word settles it where a line that lives may well be silent for as long as it takes to be given up.
            if claim.is_second or self.heartbeat_s >= PROVE_HEARTBEATS * self.retry_s:
                self.forget(peer)
                return Copied()
            self._claims[peer] = replace(claim, since_s=now, is_second=True)
        left_s = max(claim.came_s, standing.heard_s) + PROVE_HEARTBEATS * self.retry_s - now
        if left_s <= 0:
            self.forget(peer)
            return Welcomed()
        return Unsettled(retry_s=min(self.retry_s, left_s))

    def forget(self, peer: PeerId) -> None:
        """The peer has no line any more, or its claim was settled."""
        self._claims.pop(peer, None)
