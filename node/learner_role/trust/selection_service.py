"""What peers may have chosen of what their leases could bring: which of it the learner draws itself, and what follows.

What always holds: what was recalled, or belongs to an episode that goes on, is nobody's choice and not looked at; of a
peer so few groups wait at a time that it cannot crowd out the others, and what was delivered never crowds out what was
not; what was found is on disk before anything follows from it; what follows is a ban, or nothing. The trio thread never
waits for the disk.
"""

from __future__ import annotations

import hmac
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import trio

from learner.ledger.rows import ChoiceRow
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
"""Groups that wait to be drawn, those of them that were delivered, and those of one peer; what comes while so many do
is not looked at, whatever it is worth."""

MAX_ROUTINE = 16
"""Groups that wait without a reason; the newest take the place of the oldest of who has least against it, whose
versions need not be kept then."""

TOGETHER = 16
"""Groups that are drawn together: the engine takes them by its own memory, and audits wait as long."""

DELIVERED_SHARE = 1 / 8
"""Of delivered groups are looked at, where the engine has time (`node.learner_role.trust.engine_budget`); of who
withholds more than that as many as it does not deliver: the fewer it delivers, the more each of them tells. And as many
times more as the evidence against their peer says: of the honest that is 1 on average, at most, so that all of them
cost twice as much at most.
"""

LATELY = 16
"""Leases over which it is reckoned what a peer withholds."""

PEERS_REMEMBERED = 4096
"""Of whom is remembered what the ledger knows."""

LOOKED_AT = frozenset({"returned", "expired", "lost", "refused"})
"""How a lease ends of which nothing was admitted, but for what the learner recalled."""


@dataclass(frozen=True, kw_only=True)
class DeliveredCompletion:
    """A completion that was delivered: its place in the lease, its tokens, and the version that made all of them."""

    index: int
    tokens: tuple[int, ...]
    version: InstalledVersion


@dataclass(frozen=True, kw_only=True)
class SelectionSuspect:
    """A lease whose peer may have chosen, which had `withheld` that share of its groups of late. `other`: a version
    that could have made what was `made` as well, if there is one; where nothing was delivered, the version that the
    lease was begun with. `is_routine`: nothing gives a reason to look. `pardons`: of its peer, before it."""

    granted: GrantedLease
    withheld: float
    other: InstalledVersion | None
    made: tuple[DeliveredCompletion, ...] = ()
    is_routine: bool = False
    pardons: int = 0

    @property
    def choice(self) -> DeliveryOutcome:
        return DeliveryOutcome.DELIVERED if self.made else DeliveryOutcome.WITHHELD

    @property
    def versions(self) -> tuple[InstalledVersion, ...]:
        """All that are needed to draw it, in the order in which they are."""
        others = [] if self.other is None else [self.other]
        return tuple(dict.fromkeys([*(one.version for one in self.made), *others]))

    @property
    def manifests(self) -> tuple[ManifestHash, ...]:
        """Of its versions."""
        return tuple(version.manifest for version in self.versions)


@dataclass(kw_only=True, eq=False)
class SelectionService(Service):
    """See the module's paragraph. `looks`: whether anything is drawn; `share`: of delivered groups."""

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
        """Groups that wait to be drawn."""
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
        """What several versions made of one completion cannot be drawn again, and is left out."""
        granted, group = news.granted, news.group
        if not self.looks or granted.place is not None:
            return
        withheld = self._note_end(granted.peer, withheld=False)
        evidence = self._evidence(granted.peer)
        share = min(1.0, max(self.share * math.exp(min(max(evidence, 0.0), SUSPECT_EVIDENCE)), withheld))
        made = [_completion_of(one) for one in group if len(set(one.signed.behaviour)) == 1]
        made.sort(key=lambda one: (one.version.name, one.index))
        waiting = sum(one.choice is DeliveryOutcome.DELIVERED for one in self._waiting)
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
        """The logarithm of the evidence against it, as far as that is known here; 0 of who was not looked at yet."""
        known = self._known.get(peer)
        return 0.0 if known is None else log_evidence(known)

    def _note_end(self, peer: PeerId, *, withheld: bool) -> float:
        """One more lease of the peer has ended so; return the share that it withheld of late."""
        if len(self._withheld) >= PEERS_REMEMBERED and peer not in self._withheld:
            self._withheld.clear()
        share = self._withheld.get(peer, 0.0)
        self._withheld[peer] = share = share + (withheld - share) / LATELY
        return share

    def _could_have_made(self, version: PolicyVersion, granted: GrantedLease) -> bool:
        fate = judge(self.capacity.chain, [version], self.capacity.window)
        return version >= granted.lease.minimum and fate is Admissibility.ADMISSIBLE

    def _chance(self, granted: GrantedLease) -> float:
        """In [0, 1), the same for the same lease, which nobody else can know."""
        return int.from_bytes(hmac.digest(self._key, granted.id, "sha256")[:8], "big") / 2**64

    def _add(self, one: SelectionSuspect) -> None:
        if len(self._waiting) >= MAX_WAITING or self._of_peer[one.granted.peer] >= MAX_OF_A_PEER:
            return
        if not self.kept.keep(one.manifests, RetentionReason.CHOICE):  # too old to be drawn, which is nobody's fault
            return
        self._waiting.append(replace(one, pardons=self._pardons[one.granted.peer]))
        self._of_peer[one.granted.peer] += 1
        self.added.set()

    def next(self, *, routine: bool = True) -> list[SelectionSuspect]:
        """What is to be drawn now: what has waited longest, and others that need no other versions, since to load one
        takes longer than to draw a few groups; the same again until they `end`. Unless `routine`, only what is
        not."""
        waiting = [one for one in self._waiting if routine or not one.is_routine]
        if not waiting:
            return []
        versions = set(waiting[0].versions)
        return [one for one in waiting if versions.issuperset(one.versions)][:TOGETHER]

    def begin(self, doubts: Sequence[SelectionSuspect]) -> None:
        """These are being drawn."""
        self._begun = {one.granted.id for one in doubts}

    def end(self, one: SelectionSuspect) -> None:
        """It was drawn, cannot be, or need not; the first word counts."""
        if one not in self._waiting:
            return
        self._waiting.remove(one)
        self._begun.discard(one.granted.id)
        self._of_peer[one.granted.peer] -= 1
        if not self._of_peer[one.granted.peer]:
            del self._of_peer[one.granted.peer]
        self.kept.release(one.manifests, RetentionReason.CHOICE)

    def lose(self, manifest: ManifestHash) -> None:
        """A version is to go: what would be drawn with it is not, nor is what is being drawn waited for."""
        for one in [one for one in self._waiting if manifest in one.manifests]:
            self.end(one)

    def drop(self, peer: PeerId) -> None:
        """The peer is banned, or pardoned: nothing that waits of it need be drawn, and its leases that ended with that
        tell nothing."""
        for one in [one for one in self._waiting if one.granted.peer == peer]:
            self.end(one)
        self._withheld.pop(peer, None)

    def requests(self, one: SelectionSuspect) -> list[tuple[InstalledVersion, list[GenerationRequest]]]:
        """What is to be drawn of it, by version: of what was made, what seeds of our own give with the same version;
        with the other version what the peer's seeds do, and those of ours; and if there is one, what the peer's seeds
        give here with the versions that it names, in the order in which they were made."""
        theirs = requests_of(one.granted.lease)
        controls = range(CONTROLS[one.choice])
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

    async def conclude(self, one: SelectionSuspect, worth: Sequence[CompletionValue]) -> None:
        """What completions are worth, those that were made first, then those of `requests` in order: write what follows
        from that, and do it. What a pardon came after counts for nothing."""
        self.drawn += 1
        size = len(one.made) or len(one.granted.lease.seeds)
        whole = size * (1 + CONTROLS[one.choice])
        theirs, ours = worth[:size], worth[size:whole]
        if one.made and one.other is not None:
            there, here = worth[whole : 2 * whole], worth[2 * whole :]
            theirs, ours = _with_gains(theirs, here, there[:size]), _with_gains(ours, ours, there[size:])
        if (found := seen(one.choice, theirs, ours, withheld=one.withheld)) is None:
            return
        peer = one.granted.peer
        async with self._writing:
            if self._pardons[peer] != one.pardons:
                return
            history = await self._history(peer)
            if not is_convicted(history):  # or the learner has died between what it found and what follows
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
        """Write what one more group says of its peer."""
        peer = one.granted.peer
        history = wagered(before, found.log_ratios)
        self._known[peer] = history
        row = ChoiceRow(
            lease=one.granted.id,
            peer=peer,
            at_ms=self.now_ms(),
            choice=one.choice,
            withheld=one.withheld,
            theirs=tuple(theirs),
            ours=tuple(ours),
            heard=history.audits,
            log_wealth=history.log_wealth,
        )
        await trio.to_thread.run_sync(self.ledger.trust.choice_drawn, row)
        self.events.emit(
            "choice_drawn",
            peer=peer,
            lease=short(one.granted.id),
            choice=one.choice.value,
            worth=round(found.worth, 4),
            gain=round(found.gain, 4),
            heard=history.audits,
            evidence=round(log_evidence(history), 3),
        )
        return history

    async def forgive(self, peer: PeerId) -> None:
        """The operator pardons this peer: it begins anew, and what was found stays to be read."""
        async with self._writing:
            self._pardons[peer] += 1
            self.drop(peer)
            await trio.to_thread.run_sync(self.ledger.trust.choices_forgiven, peer)
            self._known.pop(peer, None)

    async def _history(self, peer: PeerId) -> History:
        if peer not in self._known:
            if len(self._known) >= PEERS_REMEMBERED:
                self._known.clear()
            self._known[peer] = await trio.to_thread.run_sync(self.ledger.trust.choice_history, peer)
        return self._known[peer]


WHY = (
    "of {heard} groups, what it delivered was better, and what it did not was worse, than what was drawn beside them, "
    "as chance has it once in {odds:,.0f} lives: it chooses what it delivers"
)
"""What a peer is told that is banned."""


def _completion_of(one: AdmittedRecord) -> DeliveredCompletion:
    """By the one version that it names."""
    record = one.signed.record
    span, form = record.spans[0], format_of(record.ext)
    held = "" if form == STORED else form
    version = InstalledVersion(name=span.version, manifest=ManifestHash(span.manifest), weights=held)
    return DeliveredCompletion(index=one.signed.record.index, tokens=one.signed.tokens, version=version)


def _with_gains(
    said: Sequence[CompletionValue], here: Sequence[CompletionValue], there: Sequence[CompletionValue]
) -> list[CompletionValue]:
    """Each with what its seed gains here over there, where both are drawn by us."""
    return [
        replace(one, gains=VersionGain(tokens=a.tokens, worth=a.reward - b.reward))
        for one, a, b in zip(said, here, there, strict=True)
    ]
