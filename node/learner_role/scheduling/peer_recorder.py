"""What peers do, as events of the recording: who came, has which version, began, delivered, was withdrawn from.

What always holds: everything is dated by the learner's own clock at the moment it was heard; what a peer says of its
speed is taken once a stay, what it says of its owner's hours when it is something else, and not too often. What is
remembered is bounded by those present and by the leases that are open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from learner.provisioning.estimation.recording import Delivered, Installed, Joined, Left, Withdrawn
from learner.rollouts.admission import GrantedLease, JudgedDelivery
from node.learner_role.scheduling.run_recording import RunRecorder
from node.learner_role.shared.context import Service
from protocol.accounting.claims import MICROS, Price
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.work import Heartbeat, Hello

HOURS_SLACK_S = 60.0
"""Hours end when they were said to, but for the time that words take to come, and for clocks."""

HOURS_AGAIN_S = 30.0
"""At most so often is written, and planned with, what one peer says of its hours: an honest one says it twice a day."""

FASTEST = 1e6
"""Rollouts per second of one peer: what claims more is no engine, and a recording takes no more than 1e12."""

SLOWEST = 1e-9
"""The same at least: a rollout in thirty years. What one takes is reckoned with, and is infinite below 1e-308."""


@dataclass(kw_only=True, eq=False)
class PeerRecorder(Service):
    """See the module's paragraph. `max_new_tokens` is how long completions are taken to be until one was admitted."""

    recorder: RunRecorder
    max_new_tokens: int
    _joined: dict[PeerId, Joined] = field(default_factory=dict)
    _installed: dict[PeerId, PolicyVersion] = field(default_factory=dict)
    _hours_said_s: dict[PeerId, float] = field(default_factory=dict)
    _started_s: dict[LeaseId, float] = field(default_factory=dict)
    _shares: dict[PeerId, tuple[float, int]] = field(default_factory=dict)
    _dropped: int = 0

    def note_joining(self, peer: PeerId, hello: Hello) -> None:
        """It was welcomed. Its owner's hours are what they were until it says so, with its first heartbeat."""
        known = self.recorder.observatory.profile(peer)
        self._joined[peer] = Joined(
            at_s=self.recorder.now_s(),
            peer=peer,
            name=hello.name,
            machine=hello.machine,
            price=self._price(hello.name or peer, hello.price),
            until_s=None if known is None else known.until_s,
        )
        self.recorder.record(self._joined[peer])

    def note_leaving(self, peer: PeerId, reason: str) -> None:
        self._joined.pop(peer, None)
        self._hours_said_s.pop(peer, None)
        self._installed.pop(peer, None)
        self._shares.pop(peer, None)
        self.recorder.record(Left(at_s=self.recorder.now_s(), peer=peer, reason=reason))

    def note_heartbeat(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        """It, who is here, said how it is."""
        self._note_speed(peer, heartbeat.tokens_per_s)
        installed = heartbeat.installed
        if installed is None or not self.capacity.chain.contains(installed):
            return
        if (before := self._installed.get(peer)) is not None and installed <= before:
            return  # who goes back and forth between two would fill the recording, and going back is no news to plans
        self._installed[peer] = installed
        self.recorder.record(Installed(at_s=self.recorder.now_s(), peer=peer, version=installed.version))

    def note_hours(self, peer: PeerId, left_s: float | None) -> bool:
        """So long does its owner still lend it, 0 for not now, None for always; whether that is news, and written."""
        joined, at_s = self._joined.get(peer), self.recorder.now_s()
        until_s = None if left_s is None else at_s + left_s
        if joined is None or _is_known(joined.until_s, until_s, at_s):
            return False
        if at_s - self._hours_said_s.get(peer, -math.inf) < HOURS_AGAIN_S:
            return False  # it says so again
        self._hours_said_s[peer] = at_s
        self._joined[peer] = replace(joined, at_s=at_s, until_s=until_s)
        self.recorder.record(self._joined[peer])
        return True

    def note_start(self, lease: LeaseId) -> None:
        """The open lease was begun; the first word counts."""
        self._started_s.setdefault(lease, self.recorder.now_s())

    def note_withdrawal(self, leases: Sequence[GrantedLease], status: str) -> None:
        """They end without a delivery: 'expired', 'returned', 'recalled' or 'lost'."""
        for granted in leases:
            begun_s = self._started_s.pop(granted.id, None)
            word = "spared" if status == "recalled" and begun_s is None else status
            at_s, rollouts = self.recorder.now_s(), len(granted.lease.seeds)
            self.recorder.record(Withdrawn(at_s=at_s, peer=granted.peer, rollouts=rollouts, status=word))

    def note_delivery(self, granted: GrantedLease, judged: JudgedDelivery, *, dropped: int = 0) -> None:
        """A lease was delivered; with it, so many rollouts were `dropped`, since their group teaches nothing.

        Who never said that it began is taken to have begun when it was leased: no gain. Of episodes every turn is an
        even share, so that a plan reckons in rollouts, whoever happens to end them; parts that were handed back count
        for whoever ends them, but for their tokens.
        """
        leased_s = granted.lease.issued_ms / 1000
        behaviour = [version for record in judged.group for version in record.signed.behaviour]
        admitted, tokens = self._share(granted.peer, judged.finished, judged.tokens)
        is_taken = judged.handed_back and judged.group
        self.recorder.record(
            Delivered(
                at_s=self.recorder.now_s(),
                peer=granted.peer,
                admitted=admitted,
                refused=0 if is_taken else len(granted.lease.seeds) - len(judged.group),
                dropped=self._take_dropped(admitted, dropped),
                tokens=tokens,
                version=min(behaviour, default=granted.lease.minimum).version,
                leased_s=leased_s,
                started_s=self._started_s.pop(granted.id, leased_s),
            )
        )

    def _share(self, peer: PeerId, turns: int, tokens: int) -> tuple[int, int]:
        """The rollouts that so many turns are worth, and their tokens; what is less than a whole one counts with the
        peer's next."""
        part, before = self._shares.get(peer, (0.0, 0))
        worth, tokens = part + turns / self.capacity.episodes.mean_turns, before + tokens
        whole = int(worth)
        self._shares[peer] = (worth - whole, 0 if whole else tokens)
        return whole, tokens if whole else 0

    def _take_dropped(self, admitted: int, dropped: int) -> int:
        """How many of these were dropped; what is more than they are counts with the next."""
        self._dropped += dropped
        told = min(admitted, self._dropped)
        self._dropped -= told
        return told

    def _note_speed(self, peer: PeerId, tokens_per_s: float) -> None:
        joined = self._joined.get(peer)
        if joined is None or joined.rate > 0 or tokens_per_s == 0:
            return
        length = self.recorder.observatory.tokens_per_rollout or self.max_new_tokens
        rate = min(max(tokens_per_s / length, SLOWEST), FASTEST)
        self.scheduler.worker(peer).speed.prior = rate
        self._joined[peer] = replace(joined, at_s=self.recorder.now_s(), rate=rate)
        self.recorder.record(self._joined[peer])

    def _price(self, name: str, price: Price) -> float:
        """Per hour, as plans compare it. Currencies are never converted: another one is a mistake to be told of."""
        currency = self.recorder.terms.currency
        if price.micros_per_hour and price.currency != currency:
            self.events.trouble(
                f"{name} asks its price in {price.currency}, and this swarm reckons in {currency}: plans take one "
                "for the other. Agree on one currency in [price].",
            )
        return price.micros_per_hour / MICROS


def _is_known(known_s: float | None, until_s: float | None, at_s: float) -> bool:
    """Whether hours that end at `until_s` are those that were thought to end at `known_s`."""
    if known_s is None or until_s is None:
        return known_s is until_s
    return max(known_s, until_s) <= at_s or abs(until_s - known_s) <= HOURS_SLACK_S
