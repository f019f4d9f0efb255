"""Detect selective delivery: choose groups to regenerate, collect the evidence, and ban peers.

The trio thread never waits for the disk.

Invariants:

- Leases that were recalled, and turns of episodes, are not checked, because no peer chose them.
- Each peer has only a few groups waiting, so that it cannot crowd out others. Delivered groups never crowd out withheld
  ones.
- A result is on disk before anything follows from it.
- The consequence is a ban, or nothing.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import trio

from learner.ledger.rows import SelectionRow
from learner.rollouts.admission import AdmittedRecord, GrantedLease
from learner.rollouts.open_leases import seed_of
from learner.trust.audit_history import SUSPECT_EVIDENCE
from learner.trust.ban_evidence import History, is_convicted, log_evidence, wagered
from learner.trust.selection_test import (
    CONTROLS,
    CompletionValue,
    DeliveryOutcome,
    Seen,
    VersionGain,
    seen,
)
from node.engine.interface import GenerationRequest, InstalledVersion
from node.engine.lease_requests import requests_of
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import LeaseClosed, RecordsAdmitted
from node.learner_role.trust.bans import Bans
from node.learner_role.trust.version_retention import RetentionReason, VersionRetention
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, short
from protocol.versions.formats import STORED, format_of
from protocol.versions.staleness import Admissibility, judge

MAX_WAITING = 64
MAX_DELIVERED = 32
MAX_OF_A_PEER = 8
"""Most groups that wait to be regenerated, most delivered ones of them, and most of one peer. Groups that come beyond
these are not checked, no matter which rewards they have."""

MAX_ROUTINE = 16
"""Most groups that wait without evidence against their peer. A new one replaces the oldest of the peer with the least
evidence, so that its versions need not be kept."""

TOGETHER = 16
"""Most groups that are regenerated together. The engine splits them by its memory, and audits wait meanwhile."""

DELIVERED_SHARE = 1 / 8
"""Fraction of delivered groups to check, if the engine has time (`node.learner_role.trust.engine_budget`). If a peer
withholds a larger fraction, that fraction of its delivered groups is checked: the fewer it delivers, the more each of
them says. The fraction is multiplied by the odds of the evidence against the peer. For honest peers the odds are at
most 1 on average, so that they cost at most twice as much.
"""

LATELY = 16
"""Number of leases over which the fraction that a peer withholds is averaged."""

PEERS_REMEMBERED = 4096
"""Most peers whose evidence is kept in memory."""

LOOKED_AT = frozenset({"returned", "expired", "lost", "refused"})
"""How a lease ends without an admitted record, except for those that the learner recalled."""


@dataclass(frozen=True, kw_only=True)
class DeliveredCompletion:
    """A delivered completion: its place in the lease, its tokens, and the version that made all of them."""

    index: int
    tokens: tuple[int, ...]
    version: InstalledVersion


@dataclass(frozen=True, kw_only=True)
class SelectionSuspect:
    """A lease whose peer may have delivered selectively.

    Args:
        granted: the lease.
        withheld: the fraction of its recent groups that the peer withheld.
        other: another version that could have made the completions, if there is one; if nothing was delivered, the
            version that the lease was begun with.
        made: the delivered completions.
        is_routine: whether there is no evidence that calls for the check.
        pardons: pardons of the peer before this lease.
    """

    granted: GrantedLease
    withheld: float
    other: InstalledVersion | None
    made: tuple[DeliveredCompletion, ...] = ()
    is_routine: bool = False
    pardons: int = 0

    @property
    def outcome(self) -> DeliveryOutcome:
        return DeliveryOutcome.DELIVERED if self.made else DeliveryOutcome.WITHHELD

    @property
    def versions(self) -> tuple[InstalledVersion, ...]:
        """Return all versions that are needed to regenerate it, in the order of their use."""
        others = [] if self.other is None else [self.other]
        return tuple(dict.fromkeys([*(one.version for one in self.made), *others]))

    @property
    def manifests(self) -> tuple[ManifestHash, ...]:
        """Return the manifests of its versions."""
        return tuple(version.manifest for version in self.versions)


@dataclass(kw_only=True, eq=False)
class SelectionService(Service):
    """Chooses groups to regenerate, and judges the results.

    `looks`: whether anything is regenerated. `share`: the fraction of delivered groups to check.
    """

    kept: VersionRetention
    bans: Bans
    looks: bool = True
    share: float = DELIVERED_SHARE
    added: trio.Event = field(default_factory=trio.Event)
    drawn: int = 0
    _waiting: deque[SelectionSuspect] = field(default_factory=deque)
    _begun: set[LeaseId] = field(default_factory=set)
    _of_peer: Counter[PeerId] = field(default_factory=Counter)
    _known: dict[PeerId, History] = field(default_factory=dict)
    _withheld: dict[PeerId, float] = field(default_factory=dict)
    _pardons: Counter[PeerId] = field(default_factory=Counter)
    _writing: trio.Lock = field(default_factory=trio.Lock)

    def __post_init__(self) -> None:
        self._key = hmac.digest(self.identity.secret, b"choices", "sha256")
        self.kept.version_lost.subscribe(self.lose)
        self.signals.lease_closed.subscribe(self._note_closed)
        self.signals.records_admitted.subscribe(self._note_admitted)
        self.signals.peer_banned.subscribe(lambda news: self.drop(news.peer))

    def __len__(self) -> int:
        """Return how many groups wait to be regenerated."""
        return len(self._waiting)

    def _note_closed(self, news: LeaseClosed) -> None:
        granted, status = news.granted, news.status
        version = news.begun or granted.lease.minimum
        manifest = self.capacity.manifests.get(version)
        if self.looks and status in LOOKED_AT and granted.place is None and manifest is not None:
            share = self._note_end(granted.peer, withheld=True)
            began = InstalledVersion(name=version, manifest=manifest)
            self._add(SelectionSuspect(granted=granted, withheld=share, other=began))

    def _note_admitted(self, news: RecordsAdmitted) -> None:
        """Perhaps choose a delivered group. Completions that several versions made cannot be regenerated."""
        granted, group = news.granted, news.group
        if not self.looks or granted.place is not None:
            return
        withheld = self._note_end(granted.peer, withheld=False)
        evidence = self._evidence(granted.peer)
        share = min(1.0, max(self.share * math.exp(min(max(evidence, 0.0), SUSPECT_EVIDENCE)), withheld))
        made = [_completion_of(one) for one in group if len(set(one.signed.behaviour)) == 1]
        made.sort(key=lambda one: (one.version.name, one.index))
        waiting = sum(one.outcome is DeliveryOutcome.DELIVERED for one in self._waiting)
        if not made or self._chance(granted) >= share or waiting >= MAX_DELIVERED:
            return
        could = [version for version in sorted(self.capacity.manifests) if self._could_have_made(version, granted)]
        used = {one.version.name for one in made}
        others = [version for version in could if version not in used] or (could if len(used) > 1 else [])
        other = None
        if others:
            name = others[int(self._chance(granted) / share * len(others))]
            held = made[0].version.weights
            other = InstalledVersion(name=name, manifest=self.capacity.manifests[name], weights=held)
        calm = withheld <= self.share and evidence < SUSPECT_EVIDENCE
        if calm:
            routine = [one for one in self._waiting if one.is_routine and one.granted.id not in self._begun]
            if len(routine) >= MAX_ROUTINE:
                least = min(routine, key=lambda one: self._evidence(one.granted.peer))
                if evidence < self._evidence(least.granted.peer):
                    return
                self.end(least)
        self._add(SelectionSuspect(granted=granted, withheld=withheld, other=other, made=tuple(made), is_routine=calm))

    def _evidence(self, peer: PeerId) -> float:
        """Return the logarithm of the evidence against a peer, as far as it is in memory; 0 if it was never checked."""
        known = self._known.get(peer)
        return 0.0 if known is None else log_evidence(known)

    def _note_end(self, peer: PeerId, *, withheld: bool) -> float:
        """Note how one more lease of the peer ended, and return the fraction that it withheld recently."""
        if len(self._withheld) >= PEERS_REMEMBERED and peer not in self._withheld:
            self._withheld.clear()
        share = self._withheld.get(peer, 0.0)
        self._withheld[peer] = share = share + (withheld - share) / LATELY
        return share

    def _could_have_made(self, version: PolicyVersion, granted: GrantedLease) -> bool:
        fate = judge(self.capacity.chain, [version], self.capacity.window)
        return version >= granted.lease.minimum and fate is Admissibility.ADMISSIBLE

    def _chance(self, granted: GrantedLease) -> float:
        """Return a number in [0, 1), the same for the same lease, which no peer can know."""
        return int.from_bytes(hmac.digest(self._key, granted.id, "sha256")[:8], "big") / 2**64

    def _add(self, one: SelectionSuspect) -> None:
        if len(self._waiting) >= MAX_WAITING or self._of_peer[one.granted.peer] >= MAX_OF_A_PEER:
            return
        if not self.kept.keep(
            one.manifests, RetentionReason.SELECTION
        ):  # too old to regenerate, which is no peer's fault
            return
        self._waiting.append(replace(one, pardons=self._pardons[one.granted.peer]))
        self._of_peer[one.granted.peer] += 1
        self.added.set()

    def next(self, *, routine: bool = True) -> list[SelectionSuspect]:
        """Return the groups to regenerate now: the oldest, and others that need no other versions.

        Loading a version takes longer than regenerating a few groups. The same groups are returned until they `end`.
        Without `routine`, routine ones are left out.
        """
        waiting = [one for one in self._waiting if routine or not one.is_routine]
        if not waiting:
            return []
        versions = set(waiting[0].versions)
        return [one for one in waiting if versions.issuperset(one.versions)][:TOGETHER]

    def begin(self, suspects: Sequence[SelectionSuspect]) -> None:
        """Note the groups that are being regenerated."""
        self._begun = {one.granted.id for one in suspects}

    def end(self, one: SelectionSuspect) -> None:
        """Take a group off the list: it was regenerated, cannot be, or need not be. Only the first call counts."""
        if one not in self._waiting:
            return
        self._waiting.remove(one)
        self._begun.discard(one.granted.id)
        self._of_peer[one.granted.peer] -= 1
        if not self._of_peer[one.granted.peer]:
            del self._of_peer[one.granted.peer]
        self.kept.release(one.manifests, RetentionReason.SELECTION)

    def lose(self, manifest: ManifestHash) -> None:
        """Drop the groups that need a version which will be evicted, even if they are being regenerated."""
        for one in [one for one in self._waiting if manifest in one.manifests]:
            self.end(one)

    def drop(self, peer: PeerId) -> None:
        """Drop the groups of a peer that is banned or pardoned. Leases that end for this reason are no evidence."""
        for one in [one for one in self._waiting if one.granted.peer == peer]:
            self.end(one)
        self._withheld.pop(peer, None)

    def requests(self, one: SelectionSuspect) -> list[tuple[InstalledVersion, list[GenerationRequest]]]:
        """Return the requests for a group, by version, in this order.

        First come our own seeds with the versions that made the completions. If there is another version, then come the
        peer's seeds and ours with that one. Last come the peer's seeds with the versions that it names, in the order of
        the completions.
        """
        theirs = requests_of(one.granted.lease)
        controls = range(CONTROLS[one.outcome])
        ours = [
            [replace(asked, seed=seed_of(self._key, one.granted.id, control * len(theirs) + i)) for control in controls]
            for i, asked in enumerate(theirs)
        ]
        beside = [
            (version, [asked for made in of for asked in ours[made.index]])
            for version, of in groupby(one.made, key=lambda made: made.version)
        ]
        if one.other is None:
            return beside
        places = [made.index for made in one.made] or range(len(theirs))
        there = [*(theirs[i] for i in places), *(asked for i in places for asked in ours[i])]
        here = [
            (version, [theirs[made.index] for made in of])
            for version, of in groupby(one.made, key=lambda made: made.version)
        ]
        return [*beside, (one.other, there), *here]

    async def conclude(self, one: SelectionSuspect, values: Sequence[CompletionValue]) -> None:
        """Judge a group, write the result, and act on it. If its peer was pardoned meanwhile, nothing counts.

        `values`: the values of the delivered completions, then those of `requests` in order.
        """
        self.drawn += 1
        size = len(one.made) or len(one.granted.lease.seeds)
        whole = size * (1 + CONTROLS[one.outcome])
        theirs, ours = values[:size], values[size:whole]
        if one.made and one.other is not None:
            there, here = values[whole : 2 * whole], values[2 * whole :]
            theirs, ours = _with_gains(theirs, here, there[:size]), _with_gains(ours, ours, there[size:])
        if (found := seen(one.outcome, theirs, ours, withheld=one.withheld)) is None:
            return
        peer = one.granted.peer
        async with self._writing:
            if self._pardons[peer] != one.pardons:
                return
            history = await self._history(peer)
            if not is_convicted(history):  # otherwise the learner died between the result and the ban
                history = await self._write(history, one, found, theirs, ours)
        if is_convicted(history):
            self.drop(peer)
            odds = math.exp(min(700.0, log_evidence(history)))
            why = WHY.format(heard=history.audits, odds=odds)
            await self.bans.convict(peer, why, lambda: self._pardons[peer] == one.pardons)

    async def _write(
        self,
        before: History,
        one: SelectionSuspect,
        found: Seen,
        theirs: Sequence[CompletionValue],
        ours: Sequence[CompletionValue],
    ) -> History:
        """Write the evidence of one more group, and return the peer's new history."""
        peer = one.granted.peer
        history = wagered(before, found.log_ratios)
        self._known[peer] = history
        row = SelectionRow(
            lease=one.granted.id,
            peer=peer,
            at_ms=self.now_ms(),
            outcome=one.outcome,
            withheld=one.withheld,
            theirs=tuple(theirs),
            ours=tuple(ours),
            heard=history.audits,
            log_wealth=history.log_wealth,
        )
        await trio.to_thread.run_sync(self.ledger.trust.selection_tested, row)
        self.events.emit(
            "choice_drawn",
            peer=peer,
            lease=short(one.granted.id),
            choice=one.outcome.value,
            worth=round(found.value, 4),
            gain=round(found.gain, 4),
            heard=history.audits,
            evidence=round(log_evidence(history), 3),
        )
        return history

    async def forgive(self, peer: PeerId) -> None:
        """Forget the evidence against a peer that the operator pardons. Earlier results stay in the ledger."""
        async with self._writing:
            self._pardons[peer] += 1
            self.drop(peer)
            await trio.to_thread.run_sync(self.ledger.trust.selection_forgiven, peer)
            self._known.pop(peer, None)

    async def _history(self, peer: PeerId) -> History:
        if peer not in self._known:
            if len(self._known) >= PEERS_REMEMBERED:
                self._known.clear()
            self._known[peer] = await trio.to_thread.run_sync(self.ledger.trust.selection_history, peer)
        return self._known[peer]


WHY = (
    "in {heard} checked groups, it delivered better completions, or withheld worse ones, than the learner regenerated: "
    "by chance this happens to at most one in {odds:,.0f} honest peers, so it delivers selectively"
)
"""The reason for a ban, which the peer is told."""


def _completion_of(one: AdmittedRecord) -> DeliveredCompletion:
    """Return a completion that one version made, with that version."""
    record = one.signed.record
    span, form = record.spans[0], format_of(record.ext)
    held = "" if form == STORED else form
    version = InstalledVersion(name=span.version, manifest=ManifestHash(span.manifest), weights=held)
    return DeliveredCompletion(index=one.signed.record.index, tokens=one.signed.tokens, version=version)


def _with_gains(
    said: Sequence[CompletionValue], here: Sequence[CompletionValue], there: Sequence[CompletionValue]
) -> list[CompletionValue]:
    """Return each value with the gain of its seed by the version `here` over `there`, both regenerated by us."""
    return [
        replace(one, gains=VersionGain(tokens=a.tokens, value=a.reward - b.reward))
        for one, a, b in zip(said, here, there, strict=True)
    ]
