"""Track open leases: their peers, what they say, the versions they are made with, and their seeds.

A pure core. `learner.scheduling.lease_scheduler` decides how many are granted, and to which peers.

Invariants:

- A lease is bound to one peer and granted once; what it asks for fits one delivery.
- Seeds follow from the learner's secret and the lease's id (HMAC-SHA256), so nobody can guess them before the lease.
- A peer that has lost an open lease is granted that same lease again, with the same seeds.
- A lease granted to others in place of a withdrawn one has a new id and new seeds.
- The rest of a returned lease keeps its seeds, so that nobody draws again by returning a lease.
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
"""Bytes of a record besides its tokens and log probabilities: envelope, at most 64 spans, claims. As the protocol
allows."""

GRANT_BYTES = MAX_WORK_BYTES - 4 * KIB
"""Bytes of leases in one grant: a frame, less what surrounds the leases."""


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt of a task: its index there and its token ids."""

    task: str
    index: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LeaseTerms:
    """The content that all leases of this run share. `stop_ids` end a completion; `deadline_s` is in seconds;
    `routing` is the policy's, if leases ask for experts.

    Raises LocalProtocolError if a delivery might not fit into a frame.
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
    """The leases of one grant: their number and size."""

    leases: int = 0
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.leases >= MAX_LEASES_PER_GRANT

    def takes(self, prompt: Prompt, size: int) -> bool:
        """Count a lease of `size` completions, and return whether there was room. The first one always has room."""
        self.size_bytes += lease_bytes(len(prompt.tokens), size) + OVERHEAD_BYTES
        self.leases += 1
        return self.leases == 1 or (self.leases <= MAX_LEASES_PER_GRANT and self.size_bytes <= GRANT_BYTES)


@dataclass(kw_only=True)
class Leasing:
    """All open leases.

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
    """Rollouts leased and not yet judged, expired, returned or recalled, by the training step of the version that makes
    them. While that is unknown, the oldest version that may make them is counted. Later turns are not included: their
    episodes are counted by their group's oldest tokens (`learner.rollouts.episodes`)."""
    recalled: dict[LeaseId, GrantedLease] = field(default_factory=dict)
    """Open leases that are no longer counted on."""
    arrived: dict[LeaseId, int] = field(default_factory=dict)
    """When the first delivery came (ms), for leases with a delivery that waits to be judged or is being judged."""
    _by_peer: Counter[PeerId] = field(default_factory=Counter)
    _started: dict[LeaseId, PolicyVersion] = field(default_factory=dict)

    @property
    def open_rollouts(self) -> int:
        """Rollouts leased and not yet judged, expired, returned or recalled."""
        return self.by_version.total()

    def pending(self, peer: PeerId) -> int:
        """Return `peer`'s rollouts that are leased and not yet judged, expired or returned, recalled ones included."""
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
        """Make and remember a lease for `peer`.

        Args:
            peer: the peer that will generate.
            prompt: what the completions continue.
            minimum: oldest version that may be used.
            now_ms: the time of the grant.
            size: number of completions, at most a whole group, which is the default.
            place: the episodes that it continues, one for each completion.
            seeds: for each completion the seed of an earlier lease, or None for a new seed.
            start: number of tokens that each completion has already; the prompt ends with them.
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
        """Add a lease, for example one that was open before a restart, and the version with which it was begun."""
        self.open[granted.id] = granted
        if started is not None:
            self._started[granted.id] = max(started, granted.lease.minimum)
        self._count(granted, len(granted.lease.seeds))

    def grant_again(self, granted: GrantedLease) -> None:
        """Grant an open lease again to its peer, which has lost it. Id, prompt and seeds stay; the peer reports again
        with which version it begins.
        """
        self._count(granted, -len(granted.lease.seeds))
        self._started.pop(granted.id, None)
        self.recalled.pop(granted.id, None)
        self._count(granted, len(granted.lease.seeds))

    def started(self, lease: LeaseId, peer: PeerId, version: PolicyVersion) -> bool:
        """Note that the peer generates `lease` with `version`. Return whether this is its first report about it.

        A version older than the lease asks for will be rejected; until then the version asked for is counted. A lease
        that was recalled is counted on again.
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
        """Return the open lease of that id, if it is `peer`'s."""
        granted = self.open.get(lease)
        return granted if granted is not None and granted.peer == peer else None

    def begun(self, leases: Iterable[LeaseId] | None = None) -> dict[LeaseId, PolicyVersion]:
        """Return the versions with which `leases`, or all leases, were begun; without those that are not begun."""
        if leases is None:
            return dict(self._started)
        return {lease: self._started[lease] for lease in leases if lease in self._started}

    def made_with(self, granted: GrantedLease, installed: PolicyVersion | None) -> PolicyVersion | None:
        """Return the version that makes an open lease. If it is not begun, return the version that a peer with
        `installed` would begin it with now; None if `installed` is unknown, too.
        """
        if (begun := self._started.get(granted.id)) is not None or installed is None:
            return begun
        return max(installed, granted.lease.minimum)

    def recall(self, lease: LeaseId) -> None:
        """Stop counting on an open lease, because it is of no use any more.

        It stays open, because its delivery may be on the way, and not every peer knows what a recall is.
        """
        granted = self.open[lease]
        self._count(granted, -len(granted.lease.seeds))
        self.recalled[lease] = granted
        self._count(granted, len(granted.lease.seeds))

    def renew(self, now_ms: int) -> None:
        """Give all open leases their whole time again from now on, because until now nobody could deliver."""
        for lease, granted in self.open.items():
            whole_ms = granted.lease.deadline_ms - granted.lease.issued_ms
            self.open[lease] = renewed = replace(granted, until_ms=now_ms + whole_ms)
            if lease in self.recalled:
                self.recalled[lease] = renewed

    def arrives(self, lease: LeaseId, peer: PeerId, now_ms: int) -> None:
        """Note that a delivery of `peer` waits to be judged. If the lease is open and its own, it does not expire
        meanwhile; its first delivery decides whether it is in time."""
        if self.lookup(lease, peer) is not None:
            self.arrived.setdefault(lease, now_ms)

    def take(self, lease: LeaseId, peer: PeerId) -> GrantedLease | None:
        """Return the lease that `peer` delivered, if it is that peer's and open.

        From now on it can neither expire nor be withdrawn. It keeps its room until `close`, because the records are
        about to wait in the buffer.
        """
        granted = self.lookup(lease, peer)
        if granted is not None:
            self.judging[lease] = self.open.pop(lease)
        return granted

    def close(self, lease: LeaseId) -> None:
        """Forget a lease whose delivery was judged."""
        if (granted := self.judging.pop(lease, None)) is not None:
            self._forget(granted)

    def release(self, peer: PeerId) -> list[GrantedLease]:
        """Withdraw the leases of a peer that is gone, and return them. Leases with a delivery stay, which is judged as
        if the peer were here."""
        return self._withdraw([lease for lease, granted in self.open.items() if granted.peer == peer])

    def return_leases(self, peer: PeerId, leases: list[LeaseId]) -> list[GrantedLease]:
        """Withdraw those of `leases` that are open, `peer`'s, and without a delivery; return them."""
        return self._withdraw([lease for lease in leases if self.lookup(lease, peer) is not None])

    def expire(self, now_ms: int, grace_ms: int) -> list[GrantedLease]:
        """Withdraw leases whose deadline passed more than `grace_ms` ago and that have no delivery; return them."""
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
    """Add to a count, and delete keys whose count is zero."""
    counts[key] += number
    if not counts[key]:
        del counts[key]


def seed_of(secret: bytes, lease: LeaseId, index: int) -> int:
    """Return the sampling seed of completion `index` of a lease: 64 bits of HMAC-SHA256(secret, lease || index)."""
    return int.from_bytes(hmac.digest(secret, lease + index.to_bytes(4, "big"), "sha256")[:8], "big")


def delivery_bytes(group_size: int, max_new_tokens: int, routing: Routing | None = None) -> int:
    """Return the most bytes that the delivery of a group can have: 4 for each token id and 4 for each log probability,
    experts if they are asked for, and what surrounds them."""
    token_bytes = 8 if routing is None else 8 + routing.token_bytes
    return group_size * (token_bytes * max_new_tokens + RECORD_OVERHEAD_BYTES)


def own_lease(raw: bytes, swarm: SwarmId) -> Lease:
    """Return the lease in an envelope that the learner kept. Not verified: the key that signed it may be replaced."""
    envelope = read_envelope(raw, kind=Kind.LEASE, swarm=swarm, limit=MAX_LEASE_BYTES)
    lease: Lease = decode(Lease, envelope.payload, MAX_LEASE_BYTES)
    return lease
