"""Distinguish a peer that came back from a second process that runs with a copy of its key.

If a peer greets us while it has a session, there are two possibilities. It lost that session without our noticing
(another network, a power cut), or two processes use its key, because a state directory was copied to another machine.
If each new session ended the previous one, two copies would end each other's sessions for ever.

A process identifies itself by a number that it drew when it started, so the case of the same process is clear. For
another process we wait for messages in the old session: a process that goes on sending there is alive. One message is
not enough: the operating system still sends what a killed process had written, and that may arrive long after the kill.
So a first message makes the new process claim the place a second time, and a message after that decides.

Times are seconds on the caller's clock.

Invariants:

- A peer without a session, the same process again, and a program that sends no number are welcome at once.
- A session is ended in favour of another process only if it was silent for PROVE_HEARTBEATS since that process came.
- A silent session does not delay another process longer than that, no matter when its last message came.
- One late message does not make a process a copy, unless heartbeats are too rare for a second one in that time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from protocol.core.ids import PeerId

CROSSING_S = 1.0
"""Seconds in which messages of the old session prove nothing: they may have been sent before the new process greeted,
and read after that."""

PROVE_HEARTBEATS = 2
"""Heartbeats of silence after which a session is ended for a process that claims its place. Without a claim it has
four."""

LONGEST_RETRY_S = 15.0
"""Longest pause in seconds between two claims. Even with rare heartbeats, a node that lost power must not wait for
minutes."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A peer's current session: the process that it belongs to, and the time of its last message."""

    instance: bytes
    heard_s: float


@dataclass(frozen=True, kw_only=True)
class Welcomed:
    """Only one process uses the key."""


@dataclass(frozen=True, kw_only=True)
class Unsettled:
    """It is not clear yet: the process must come again in `retry_s` seconds."""

    retry_s: float


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Two processes use the key, and the other was here first."""


Judgement = Welcomed | Unsettled | Copied


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """The claim of a process that came at `came_s`. Messages of the old session after `since_s` count against it.

    `since_s` is later than `came_s` if the claim `is_second`.
    """

    instance: bytes
    came_s: float
    since_s: float
    is_second: bool = False


@dataclass(kw_only=True)
class Doubles:
    """Judges greetings of peers that have a session. `heartbeat_s` is the interval of heartbeats in seconds.

    It remembers at most one claim for each peer with a session.
    """

    heartbeat_s: float = 5.0
    _claims: dict[PeerId, _Claim] = field(default_factory=dict)

    @property
    def retry_s(self) -> float:
        """Seconds in which a living peer sends at least one message."""
        return min(self.heartbeat_s + CROSSING_S, LONGEST_RETRY_S)

    def judge(self, peer: PeerId, instance: bytes, standing: Standing | None, now: float) -> Judgement:
        """Judge a greeting of `peer` at time `now`, from the process `instance` (empty: it sent no number).

        `standing` is the peer's current session, if it has one.
        """
        if standing is None or not instance or not standing.instance or instance == standing.instance:
            self.forget(peer)
            return Welcomed()
        claim = self._claims.get(peer)
        if claim is None or claim.instance != instance:
            claim = self._claims[peer] = _Claim(instance=instance, came_s=now, since_s=now)
        if standing.heard_s > claim.since_s + CROSSING_S:
            # One message decides if heartbeats are so rare that a living session may be silent until it is given up.
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
        """Forget the claim of a peer that has no session any more, or whose claim was decided."""
        self._claims.pop(peer, None)
