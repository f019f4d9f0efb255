"""Keep the learner's table of rollout nodes: which are present, since when, and which have timed out.

Losing a peer releases its leases. After a restart, the learner awaits the peers that were present before. Their timeout
begins when the learner can accept deliveries again, and is as long as a node may pause between two tries to come back.

Invariants:

- Every `Joined` is followed by exactly one `Lost`, unless the peer is still present.
- A peer that joins again is lost first.
- A peer without a heartbeat for `timeout_s` is lost at the next tick.
- A peer whose connection ends is lost at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.core.ids import PeerId, PolicyVersion

HEARTBEATS_MISSED = 4
"""Timeout in heartbeats. One may be missing because of a pause; four mean that the machine is frozen."""


RETURNS_WITHIN_S = 25.0
"""Seconds that an awaited peer has after the learner has opened, or HEARTBEATS_MISSED if that is longer. A node that
looks for its learner pauses for 19 s at most, and its greeting and a dial take seconds."""


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """A peer was present before the learner restarted, and may come back."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The learner can accept deliveries from now on."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A peer greeted the learner."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A heartbeat; `installed` is the peer's active version, None if it has none yet."""

    peer: PeerId
    installed: PolicyVersion | None


@dataclass(frozen=True, kw_only=True)
class Gone:
    """The peer's connection ended, or it said goodbye."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time has passed."""


Event = Awaited | Opened | Joined | Heard | Gone | Tick


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Effect: `peer` is no longer present, so release its leases. It was present for `present_s` seconds."""

    peer: PeerId
    reason: str
    present_s: float


@dataclass(kw_only=True)
class Member:
    """One peer that is present. Times are seconds on the caller's clock."""

    peer: PeerId
    since: float
    heard: float
    installed: PolicyVersion | None = None
    awaited: bool = False


@dataclass(kw_only=True)
class Membership:
    """The table of present and awaited peers. `timeout_s` is the timeout in seconds."""

    timeout_s: float
    is_open: bool = False
    members: dict[PeerId, Member] = field(default_factory=dict)

    @property
    def returns_s(self) -> float:
        """Seconds that an awaited peer may stay away after the learner has opened."""
        return max(self.timeout_s, RETURNS_WITHIN_S)

    def handle(self, event: Event, now: float) -> list[Lost]:
        """Handle one event at time `now` (seconds, monotonic). Return the lost peers."""
        match event:
            case Awaited(peer=peer):
                self.members.setdefault(peer, Member(peer=peer, since=now, heard=now, awaited=True))
                return []
            case Opened():
                for awaited in self.members.values():
                    if awaited.awaited and not self.is_open:
                        awaited.heard = now
                self.is_open = True
                return []
            case Joined(peer=peer):
                replaced = self._remove(peer, "joined again", now)
                self.members[peer] = Member(peer=peer, since=now, heard=now)
                return replaced
            case Heard(peer=peer, installed=installed):
                if member := self.members.get(peer):
                    member.heard, member.installed = now, installed
                return []
            case Gone(peer=peer, reason=reason):
                return self._remove(peer, reason, now)
            case Tick():
                overdue = [m for m in self.members.values() if self._is_overdue(m, now)]
                return [lost for m in overdue for lost in self._remove(m.peer, self._why(m), now)]

    def _is_overdue(self, member: Member, now: float) -> bool:
        if member.awaited:
            return self.is_open and now - member.heard > self.returns_s
        return now - member.heard > self.timeout_s

    def _why(self, member: Member) -> str:
        if member.awaited:
            return f"it did not return within {self.returns_s:.0f} s after the learner's restart"
        return f"no heartbeat for {self.timeout_s:.0f} s"

    def _remove(self, peer: PeerId, reason: str, now: float) -> list[Lost]:
        member = self.members.pop(peer, None)
        return [] if member is None else [Lost(peer=peer, reason=reason, present_s=now - member.since)]
