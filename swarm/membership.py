"""The learner's table of rollout nodes: who is here, since when, and who has fallen silent.

A pure core. What always holds: every `Joined` is answered, sooner or later, by exactly one `Lost`, unless the peer is
still here; a peer that joins again is lost first; a peer that sends no sign of life for `silence_s` is lost at the
next tick, and so is at once one whose connection goes. Losing a peer is what releases its leases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ids import PeerId, PolicyVersion

HEARTBEATS_MISSED = 4
"""Silence, in heartbeats, after which a peer counts as gone: one may be lost to a pause, four are a frozen machine."""


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


Event = Joined | Heard | Gone | Tick


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


@dataclass(kw_only=True)
class Membership:
    """See the module's paragraph. `silence_s` is how long a peer may be silent, in seconds."""

    silence_s: float
    members: dict[PeerId, Member] = field(default_factory=dict)

    def handle(self, event: Event, now: float) -> list[Lost]:
        """Take in one event at time `now` (seconds, monotonic); return who was lost."""
        match event:
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
                silent = [m.peer for m in self.members.values() if now - m.heard > self.silence_s]
                return [
                    lost for peer in silent for lost in self._remove(peer, f"silent for {self.silence_s:.0f} s", now)
                ]

    def _remove(self, peer: PeerId, reason: str, now: float) -> list[Lost]:
        member = self.members.pop(peer, None)
        return [] if member is None else [Lost(peer=peer, reason=reason, present_s=now - member.since)]
