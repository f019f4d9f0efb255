"""The learner's table of rollout nodes: who is here, since when, and who has fallen silent.

A pure core. What always holds: every `Joined` is answered, sooner or later, by exactly one `Lost`, unless the peer is
still here; a peer that joins again is lost first; a peer that sends no sign of life for `silence_s` is lost at the
next tick, and so is at once one whose connection goes. Losing a peer is what releases its leases. Who was here before
the learner restarted is awaited: its silence counts only from when the learner can take what it made, and for as long
as a node may pause between two tries to come back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.core.ids import PeerId, PolicyVersion

HEARTBEATS_MISSED = 4
"""Silence, in heartbeats, after which a peer counts as gone: one may be lost to a pause, four are a frozen machine."""


RETURNS_WITHIN_S = 25.0
"""From when the learner is open on, an awaited peer has so long, or HEARTBEATS_MISSED if that is more. A node that
looks for its learner pauses for 19 s at most, and its greeting and a dial take seconds."""


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """A peer was here before we restarted, and may come back."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Opened:
    """From now on what peers made can be taken."""


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A peer greeted us."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A sign of life; `installed` is the version it generates with, None when it has none yet."""

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
    """Effect: `peer` is no longer here; its leases are to be released. `present_s` is how long it had been here."""

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
    """See the module's paragraph. `silence_s` is how long a peer may be silent, in seconds."""

    silence_s: float
    is_open: bool = False
    members: dict[PeerId, Member] = field(default_factory=dict)

    @property
    def returns_s(self) -> float:
        """How long an awaited peer may stay away once we are open, in seconds."""
        return max(self.silence_s, RETURNS_WITHIN_S)

    def handle(self, event: Event, now: float) -> list[Lost]:
        """Take in one event at time `now` (seconds, monotonic); return who was lost."""
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
                silent = [m for m in self.members.values() if self._is_silent(m, now)]
                return [lost for m in silent for lost in self._remove(m.peer, self._why(m), now)]

    def _is_silent(self, member: Member, now: float) -> bool:
        if member.awaited:
            return self.is_open and now - member.heard > self.returns_s
        return now - member.heard > self.silence_s

    def _why(self, member: Member) -> str:
        if member.awaited:
            return f"not back {self.returns_s:.0f} s after the learner's restart"
        return f"silent for {self.silence_s:.0f} s"

    def _remove(self, peer: PeerId, reason: str, now: float) -> list[Lost]:
        member = self.members.pop(peer, None)
        return [] if member is None else [Lost(peer=peer, reason=reason, present_s=now - member.since)]
