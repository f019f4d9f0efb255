"""What peers do, as events of the recording: who came, has which version, began, delivered, was withdrawn from.

What always holds: everything is dated by the learner's own clock at the moment it was heard; what a peer says of its
speed is taken once a stay, what it says of its owner's hours when it is something else, and not too often. What is
remembered is bounded by those present and by the leases that are open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from learner.provisioning.estimation.recording import Delivered, Installed, Joined, Left, Withdrawn
from learner.rollouts.admission import GrantedLease, JudgedDelivery
from node.learner_role.scheduling.recorder import RunRecorder
from node.learner_role.scheduling.run_state import RunState
from node.runtime.events import EventLog
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


class PeerRecorder:
    """See the module's paragraph. `max_new_tokens` is how long completions are taken to be until one was admitted."""

    def __init__(self, run: RunState, recorder: RunRecorder, events: EventLog, *, max_new_tokens: int) -> None:
        self._run = run
        self._recorder = recorder
        self._events = events
        self._max_new_tokens = max_new_tokens
        self._joined: dict[PeerId, Joined] = {}
        self._installed: dict[PeerId, PolicyVersion] = {}
        self._hours_said_s: dict[PeerId, float] = {}
        self._started_s: dict[LeaseId, float] = {}
        self._shares: dict[PeerId, tuple[float, int]] = {}
        self._dropped = 0

    def joined(self, peer: PeerId, hello: Hello) -> None:
        """It was welcomed. Its owner's hours are what they were until it says so, with its first heartbeat."""
        known = self._recorder.observatory.profile(peer)
        self._joined[peer] = Joined(
            at_s=self._recorder.now_s(),
            peer=peer,
            name=hello.name,
            machine=hello.machine,
            price=self._price(hello.name or peer, hello.price),
            until_s=None if known is None else known.until_s,
        )
        self._recorder.record(self._joined[peer])

    def left(self, peer: PeerId, reason: str) -> None:
        """It is here no more."""
        self._joined.pop(peer, None)
        self._hours_said_s.pop(peer, None)
        self._installed.pop(peer, None)
        self._shares.pop(peer, None)
        self._recorder.record(Left(at_s=self._recorder.now_s(), peer=peer, reason=reason))

    def heard(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        """It, who is here, said how it is."""
        self._heard_speed(peer, heartbeat.tokens_per_s)
        installed = heartbeat.installed
        if installed is None or not self._run.chain.contains(installed):
            return
        if (before := self._installed.get(peer)) is not None and installed <= before:
            return  # who goes back and forth between two would fill the recording, and going back is no news to plans
        self._installed[peer] = installed
        self._recorder.record(Installed(at_s=self._recorder.now_s(), peer=peer, version=installed.version))

    def heard_hours(self, peer: PeerId, left_s: float | None) -> bool:
        """So long does its owner still lend it, 0 for not now, None for always; whether that is news, and written."""
        joined, at_s = self._joined.get(peer), self._recorder.now_s()
        until_s = None if left_s is None else at_s + left_s
        if joined is None or _is_known(joined.until_s, until_s, at_s):
            return False
        if at_s - self._hours_said_s.get(peer, -math.inf) < HOURS_AGAIN_S:
            return False  # it says so again
        self._hours_said_s[peer] = at_s
        self._joined[peer] = replace(joined, at_s=at_s, until_s=until_s)
        self._recorder.record(self._joined[peer])
        return True

    def started(self, lease: LeaseId) -> None:
        """The open lease was begun; the first word counts."""
        self._started_s.setdefault(lease, self._recorder.now_s())

    def withdrawn(self, leases: Sequence[GrantedLease], status: str) -> None:
        """They end without a delivery: 'expired', 'returned', 'recalled' or 'lost'."""
        for granted in leases:
            begun_s = self._started_s.pop(granted.id, None)
            word = "spared" if status == "recalled" and begun_s is None else status
            at_s, rollouts = self._recorder.now_s(), len(granted.lease.seeds)
            self._recorder.record(Withdrawn(at_s=at_s, peer=granted.peer, rollouts=rollouts, status=word))

    def judged(self, granted: GrantedLease, judged: JudgedDelivery, *, dropped: int = 0) -> None:
        """A lease was delivered; with it, so many rollouts were `dropped`, since their group teaches nothing.

        Who never said that it began is taken to have begun when it was leased: no gain. Of episodes every turn is an
        even share, so that a plan reckons in rollouts, whoever happens to end them.
        """
        leased_s = granted.lease.issued_ms / 1000
        behaviour = [version for record in judged.group for version in record.signed.behaviour]
        admitted, tokens = self._share(granted.peer, len(judged.group), judged.tokens)
        self._recorder.record(
            Delivered(
                at_s=self._recorder.now_s(),
                peer=granted.peer,
                admitted=admitted,
                refused=len(granted.lease.seeds) - len(judged.group),
                dropped=self._dropped_of(admitted, dropped),
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
        worth, tokens = part + turns / self._run.episodes.mean_turns, before + tokens
        whole = int(worth)
        self._shares[peer] = (worth - whole, 0 if whole else tokens)
        return whole, tokens if whole else 0

    def _dropped_of(self, admitted: int, dropped: int) -> int:
        """How many of these were dropped; what is more than they are counts with the next."""
        self._dropped += dropped
        told = min(admitted, self._dropped)
        self._dropped -= told
        return told

    def _heard_speed(self, peer: PeerId, tokens_per_s: float) -> None:
        joined = self._joined.get(peer)
        if joined is None or joined.rate > 0 or tokens_per_s == 0:
            return
        length = self._recorder.observatory.tokens_per_rollout or self._max_new_tokens
        rate = min(max(tokens_per_s / length, SLOWEST), FASTEST)
        self._run.worker(peer).speed.prior = rate
        self._joined[peer] = replace(joined, at_s=self._recorder.now_s(), rate=rate)
        self._recorder.record(self._joined[peer])

    def _price(self, name: str, price: Price) -> float:
        """Per hour, as plans compare it. Currencies are never converted: another one is a mistake to be told of."""
        currency = self._recorder.terms.currency
        if price.micros_per_hour and price.currency != currency:
            self._events.emit(
                "trouble",
                text=f"{name} asks its price in {price.currency}, and this swarm reckons in {currency}: plans take one "
                "for the other. Agree on one currency in [price].",
            )
        return price.micros_per_hour / MICROS


def _is_known(known_s: float | None, until_s: float | None, at_s: float) -> bool:
    """Whether hours that end at `until_s` are those that were thought to end at `known_s`."""
    if known_s is None or until_s is None:
        return known_s is until_s
    return max(known_s, until_s) <= at_s or abs(until_s - known_s) <= HOURS_SLACK_S
