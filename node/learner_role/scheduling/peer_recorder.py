"""Record what peers do: joining, leaving, installed versions, deliveries, and withdrawn leases.

Invariants:

- Each event has the time of the learner's own clock at which it was received.
- A peer's reported speed is recorded once a presence. Its owner's hours are recorded when they change, and not too
  often.
- The memory is bounded by the peers that are present and the leases that are open.
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
"""Seconds of difference that count as the same end of the hours, for delays of messages and differences of clocks."""

HOURS_AGAIN_S = 30.0
"""Least seconds between two records of one peer's hours. An honest peer reports a change twice a day."""

FASTEST = 1e6
"""Most rollouts per second of one peer. No engine is faster, and a recording holds no more than 1e12."""

SLOWEST = 1e-9
"""Fewest rollouts per second of one peer: one in thirty years. The seconds of a rollout are computed from it, and would
be infinite below 1e-308."""


@dataclass(kw_only=True, eq=False)
class PeerRecorder(Service):
    """Records peers' events. `max_new_tokens`: the assumed tokens of a completion until one was admitted."""

    recorder: RunRecorder
    max_new_tokens: int
    _joined: dict[PeerId, Joined] = field(default_factory=dict)
    _installed: dict[PeerId, PolicyVersion] = field(default_factory=dict)
    _hours_said_s: dict[PeerId, float] = field(default_factory=dict)
    _started_s: dict[LeaseId, float] = field(default_factory=dict)
    _shares: dict[PeerId, tuple[float, int]] = field(default_factory=dict)
    _dropped: int = 0

    def note_joining(self, peer: PeerId, hello: Hello) -> None:
        """Record that a peer was welcomed. Its hours are those known before, until its first heartbeat."""
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
        """Record the speed and the version that a present peer reports."""
        self._note_speed(peer, heartbeat.tokens_per_s)
        installed = heartbeat.installed
        if installed is None or not self.capacity.chain.contains(installed):
            return
        if (before := self._installed.get(peer)) is not None and installed <= before:
            return  # a peer that alternates between two would fill the recording, and plans do not need the way back
        self._installed[peer] = installed
        self.recorder.record(Installed(at_s=self.recorder.now_s(), peer=peer, version=installed.version))

    def note_hours(self, peer: PeerId, left_s: float | None) -> bool:
        """Note for how long its owner still lends a machine, and return whether that is news and was recorded.

        `left_s`: seconds, 0 if it is not lent now, None if always.
        """
        joined, at_s = self._joined.get(peer), self.recorder.now_s()
        until_s = None if left_s is None else at_s + left_s
        if joined is None or _is_known(joined.until_s, until_s, at_s):
            return False
        if at_s - self._hours_said_s.get(peer, -math.inf) < HOURS_AGAIN_S:
            return False  # too soon: the peer will report it again
        self._hours_said_s[peer] = at_s
        self._joined[peer] = replace(joined, at_s=at_s, until_s=until_s)
        self.recorder.record(self._joined[peer])
        return True

    def note_start(self, lease: LeaseId) -> None:
        """Note that an open lease was begun. The first message counts."""
        self._started_s.setdefault(lease, self.recorder.now_s())

    def note_withdrawal(self, leases: Sequence[GrantedLease], status: str) -> None:
        """Record leases that end without a delivery. `status`: 'expired', 'returned', 'recalled' or 'lost'."""
        for granted in leases:
            begun_s = self._started_s.pop(granted.id, None)
            word = "spared" if status == "recalled" and begun_s is None else status
            at_s, rollouts = self.recorder.now_s(), len(granted.lease.seeds)
            self.recorder.record(Withdrawn(at_s=at_s, peer=granted.peer, rollouts=rollouts, status=word))

    def note_delivery(self, granted: GrantedLease, judged: JudgedDelivery, *, dropped: int = 0) -> None:
        """Record that a lease was delivered. `dropped`: rollouts that were dropped with it, because all rewards of
        their group are equal.

        If a peer did not report the start of a lease, the lease counts as begun when it was granted, so silence gains
        nothing. Each turn of an episode counts as an equal share of a rollout, no matter which peer ends the episode,
        because plans count rollouts. Completions that were returned count for the peer that finishes them, except
        their tokens.
        """
        leased_s = granted.lease.issued_ms / 1000
        behaviour = [version for record in judged.group for version in record.signed.behaviour]
        admitted, tokens = self._share(granted.peer, judged.finished, judged.tokens)
        is_taken = judged.returned and judged.group
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
        """Return the whole rollouts that so many turns amount to, and their tokens. The rest counts with the next."""
        part, before = self._shares.get(peer, (0.0, 0))
        share, tokens = part + turns / self.capacity.episodes.mean_turns, before + tokens
        whole = int(share)
        self._shares[peer] = (share - whole, 0 if whole else tokens)
        return whole, tokens if whole else 0

    def _take_dropped(self, admitted: int, dropped: int) -> int:
        """Return how many of `admitted` rollouts were dropped. If more were dropped, the rest counts with the next."""
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
        """Return the price of an hour for plans. Currencies are never converted: another one is a mistake to report."""
        currency = self.recorder.terms.currency
        if price.micros_per_hour and price.currency != currency:
            self.events.trouble(
                f"{name} gives its price in {price.currency}, but this swarm uses {currency}, and plans do not convert "
                "prices. Agree on one currency in [price].",
            )
        return price.micros_per_hour / MICROS


def _is_known(known_s: float | None, until_s: float | None, at_s: float) -> bool:
    """Return whether hours that end at `until_s` are the same as those known to end at `known_s`."""
    if known_s is None or until_s is None:
        return known_s is until_s
    return max(known_s, until_s) <= at_s or abs(until_s - known_s) <= HOURS_SLACK_S
