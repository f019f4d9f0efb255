"""Leases that are open: whose they are, what they say, where their seeds come from.

A pure core; how many, and for whom, is `learner.scheduling.lease_scheduler`'s. What always holds: a lease is bound to
one peer and handed out once; what it asks for fits one delivery; seeds follow from the learner's secret and the lease's
id (HMAC-SHA256), so nobody can guess them before the lease; a peer that has lost an open lease is granted that very
lease again, with the same seeds, and what is issued to others instead of one that was withdrawn has a new id and new
seeds; but what is left of one that was handed back keeps its seeds, so that nobody draws again by handing back.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from learner.rollouts.admission import EpisodeSlots, GrantedLease
from protocol.core.codec import decode, pack_tokens
from protocol.core.envelope import OVERHEAD_BYTES, Kind, read_envelope
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, SwarmId
from protocol.core.limits import KIB, MAX_LEASES_PER_GRANT, MAX_WORK_BYTES
from protocol.experts import Routing
from protocol.work import EXPERTS, MAX_LEASE_BYTES, Lease, Sampler, lease_bytes

RECORD_OVERHEAD_BYTES = 8 * KIB
"""A record beside its tokens and logprobs: envelope, at most 64 spans, claims. The protocol's own allowance."""

GRANT_BYTES = MAX_WORK_BYTES - 4 * KIB
"""Leases in one grant: a frame, less what surrounds them."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of a task: its index there and its token ids."""

    task: str
    index: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LeaseTerms:
    """What every lease of this run says. Times in seconds; `stop_ids` end a completion. `routing`: that of a policy
    whose experts leases ask for.

    LocalProtocolError when its delivery might not fit a frame.
    """

    group_size: int
    temperature: float
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    deadline_s: float
    routing: Routing | None = None

    def __post_init__(self) -> None:
        if delivery_bytes(self.group_size, self.max_new_tokens, self.routing) > MAX_WORK_BYTES:
            raise LocalProtocolError(
                f"{self.group_size} completions of {self.max_new_tokens} tokens may not fit a delivery"
            )


@dataclass(kw_only=True, slots=True)
class Frame:
    """The leases of one grant, by number and size."""

    leases: int = 0
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.leases >= MAX_LEASES_PER_GRANT

    def takes(self, prompt: Prompt, size: int) -> bool:
        """Whether there was room for one of `size` completions; one has room in any case."""
        self.size_bytes += lease_bytes(len(prompt.tokens), size) + OVERHEAD_BYTES
        self.leases += 1
        return self.leases == 1 or (self.leases <= MAX_LEASES_PER_GRANT and self.size_bytes <= GRANT_BYTES)


@dataclass(kw_only=True)
class Leasing:
    """See the module's paragraph.

    Args:
        terms: what a lease says.
        secret: 32 bytes that only the learner knows.
        new_id: gives fresh 16-byte lease ids.
    """

    terms: LeaseTerms
    secret: bytes
    new_id: Callable[[], bytes]
    open: dict[LeaseId, GrantedLease] = field(default_factory=dict)
    judging: dict[LeaseId, GrantedLease] = field(default_factory=dict)
    by_version: Counter[int] = field(default_factory=Counter)
    """Rollouts leased and not yet judged, expired, returned or recalled, by the training step of the version they are
    made with, or may be made with while that is not known. Later turns are not among them: their episodes are counted
    by their group's oldest tokens (`learner.rollouts.episodes`)."""
    recalled: dict[LeaseId, GrantedLease] = field(default_factory=dict)
    """Open leases that are not counted on any more."""
    arrived: dict[LeaseId, int] = field(default_factory=dict)
    """When the first delivery came of those of which one waits to be judged, or is."""
    _by_peer: Counter[PeerId] = field(default_factory=Counter)
    _started: dict[LeaseId, PolicyVersion] = field(default_factory=dict)

    @property
    def open_rollouts(self) -> int:
        """Rollouts leased and not yet judged, expired, returned or recalled."""
        return self.by_version.total()

    def pending(self, peer: PeerId) -> int:
        """Those of them, and of what was recalled, that are `peer`'s."""
        return self._by_peer[peer]

    def grant(
        self,
        peer: PeerId,
        prompt: Prompt,
        minimum: PolicyVersion,
        now_ms: int,
        *,
        size: int | None = None,
        place: EpisodeSlots | None = None,
        seeds: Sequence[int | None] = (),
        start: int = 0,
    ) -> GrantedLease:
        """Make and remember a lease for `peer`, of `size` completions: at most a whole group, which is the default.

        `place`: it goes on with these episodes, one for each completion. `seeds`: those of completions that another was
        leased before, None for a new one. `start`: tokens of each that are made, and that the prompt ends with.
        """
        lease_id = LeaseId(self.new_id())
        known = dict(enumerate(seeds))
        drawn = (known.get(index) for index in range(size or self.terms.group_size))
        lease = Lease(
            id=lease_id,
            peer=peer,
            task=prompt.task,
            prompt=pack_tokens(prompt.tokens),
            seeds=[seed_of(self.secret, lease_id, i) if seed is None else seed for i, seed in enumerate(drawn)],
            sampler=Sampler(temperature=self.terms.temperature),
            stop_ids=sorted(self.terms.stop_ids),
            max_new_tokens=self.terms.max_new_tokens - start,
            minimum=minimum,
            issued_ms=now_ms,
            deadline_ms=now_ms + round(self.terms.deadline_s * 1000),
            start=start,
            ext={} if self.terms.routing is None else {EXPERTS: b""},
        )
        granted = GrantedLease(lease=lease, prompt_index=prompt.index, place=place)
        self.recover(granted)
        return granted

    def recover(self, granted: GrantedLease, started: PolicyVersion | None = None) -> None:
        """Take up a lease, for example one that was open before a restart, and with which version it was begun."""
        self.open[granted.id] = granted
        if started is not None:
            self._started[granted.id] = max(started, granted.lease.minimum)
        self._count(granted, len(granted.lease.seeds))

    def grant_again(self, granted: GrantedLease) -> None:
        """An open lease goes to its peer once more, which has lost it: id, prompt and seeds stay, and whoever begins it
        now says anew with what.
        """
        self._count(granted, -len(granted.lease.seeds))
        self._started.pop(granted.id, None)
        self.recalled.pop(granted.id, None)
        self._count(granted, len(granted.lease.seeds))

    def started(self, lease: LeaseId, peer: PeerId, version: PolicyVersion) -> bool:
        """The peer says that it generates `lease` with `version`; whether that is the first word on it.

        A version older than the lease asks for will be refused; until then it counts as what was asked for. What was
        recalled before is counted on again.
        """
        granted = self.lookup(lease, peer)
        if granted is None or lease in self._started:
            return False
        self._count(granted, -len(granted.lease.seeds))
        self.recalled.pop(lease, None)
        self._started[lease] = max(version, granted.lease.minimum)
        self._count(granted, len(granted.lease.seeds))
        return True

    def lookup(self, lease: LeaseId, peer: PeerId) -> GrantedLease | None:
        """The open lease of that id, if it is `peer`'s."""
        granted = self.open.get(lease)
        return granted if granted is not None and granted.peer == peer else None

    def begun(self, leases: Iterable[LeaseId] | None = None) -> dict[LeaseId, PolicyVersion]:
        """With which version those of `leases` were begun that were, or all of them."""
        if leases is None:
            return dict(self._started)
        return {lease: self._started[lease] for lease in leases if lease in self._started}

    def made_with(self, granted: GrantedLease, installed: PolicyVersion | None) -> PolicyVersion | None:
        """The version that makes an open lease; while that was not said, the one that would if it were begun now by a
        peer with `installed`. None: that is not known either.
        """
        if (begun := self._started.get(granted.id)) is not None or installed is None:
            return begun
        return max(installed, granted.lease.minimum)

    def recall(self, lease: LeaseId) -> None:
        """An open lease is of no use any more: it is not counted on from here on.

        It stays open, since its delivery may be on the way, and not every peer knows what a recall is.
        """
        granted = self.open[lease]
        self._count(granted, -len(granted.lease.seeds))
        self.recalled[lease] = granted
        self._count(granted, len(granted.lease.seeds))

    def renew(self, now_ms: int) -> None:
        """Until now nobody could deliver: what is open has as much time again as it was given at first."""
        for lease, granted in self.open.items():
            whole_ms = granted.lease.deadline_ms - granted.lease.issued_ms
            self.open[lease] = renewed = replace(granted, until_ms=now_ms + whole_ms)
            if lease in self.recalled:
                self.recalled[lease] = renewed

    def arrives(self, lease: LeaseId, peer: PeerId, now_ms: int) -> None:
        """A delivery of `peer`'s waits to be judged: if it is of an open lease of its own, that does not expire
        meanwhile, and is in time or late by when the first came."""
        if self.lookup(lease, peer) is not None:
            self.arrived.setdefault(lease, now_ms)

    def take(self, lease: LeaseId, peer: PeerId) -> GrantedLease | None:
        """The lease was delivered by `peer`; return it if it is that peer's and open.

        From here on it can neither expire nor be withdrawn, and still takes its room until `close`: what is being
        judged is about to wait in the buffer.
        """
        granted = self.lookup(lease, peer)
        if granted is not None:
            self.judging[lease] = self.open.pop(lease)
        return granted

    def close(self, lease: LeaseId) -> None:
        """The delivery was judged."""
        if (granted := self.judging.pop(lease, None)) is not None:
            self._forget(granted)

    def release(self, peer: PeerId) -> list[GrantedLease]:
        """Withdraw the leases of a peer that is gone; return them. Those of which something has arrived stay: that is
        judged as if the peer were here."""
        return self._withdraw([lease for lease, granted in self.open.items() if granted.peer == peer])

    def give_back(self, peer: PeerId, leases: list[LeaseId]) -> list[GrantedLease]:
        """Withdraw those of `leases` that are `peer`'s and open, and of which nothing has arrived; return them."""
        return self._withdraw([lease for lease in leases if self.lookup(lease, peer) is not None])

    def expire(self, now_ms: int, grace_ms: int) -> list[GrantedLease]:
        """Withdraw leases whose deadline passed more than `grace_ms` ago, and of which nothing has arrived; return
        them."""
        late = [i for i, granted in self.open.items() if now_ms > granted.deadline_ms + grace_ms]
        return self._withdraw(late)

    def _withdraw(self, leases: list[LeaseId]) -> list[GrantedLease]:
        withdrawn = [self.open.pop(lease) for lease in leases if lease not in self.arrived]
        for granted in withdrawn:
            self._forget(granted)
        return withdrawn

    def _forget(self, granted: GrantedLease) -> None:
        self._count(granted, -len(granted.lease.seeds))
        self._started.pop(granted.id, None)
        self.recalled.pop(granted.id, None)
        self.arrived.pop(granted.id, None)

    def _count(self, granted: GrantedLease, rollouts: int) -> None:
        if granted.id not in self.recalled and granted.place is None:
            _add(self.by_version, self._started.get(granted.id, granted.lease.minimum).version, rollouts)
        _add(self._by_peer, granted.peer, rollouts)


K = TypeVar("K", int, PeerId)


def _add(counts: Counter[K], key: K, number: int) -> None:
    """Count, and keep no key whose count is zero."""
    counts[key] += number
    if not counts[key]:
        del counts[key]


def seed_of(secret: bytes, lease: LeaseId, index: int) -> int:
    """The sampling seed of completion `index` of a lease: 64 bits of HMAC-SHA256(secret, lease || index)."""
    return int.from_bytes(hmac.digest(secret, lease + index.to_bytes(4, "big"), "sha256")[:8], "big")


def delivery_bytes(group_size: int, max_new_tokens: int, routing: Routing | None = None) -> int:
    """At most so many bytes has the delivery of a group: token ids and logprobs at 4 bytes each, experts where they are
    asked for, and what surrounds."""
    token_bytes = 8 if routing is None else 8 + routing.token_bytes
    return group_size * (token_bytes * max_new_tokens + RECORD_OVERHEAD_BYTES)


def own_lease(raw: bytes, swarm: SwarmId) -> Lease:
    """The lease in an envelope that we kept ourselves. Not verified: the key that signed it may have been replaced."""
    envelope = read_envelope(raw, kind=Kind.LEASE, swarm=swarm, limit=MAX_LEASE_BYTES)
    lease: Lease = decode(Lease, envelope.payload, MAX_LEASE_BYTES)
    return lease
