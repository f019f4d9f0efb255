"""Who is believed: which deliveries are audited, what the audits find, and what becomes of the peer and its work.

What always holds: a group of a peer that is not trusted yet, or of which enough was believed since its last audit
(`learner.trust.unaudited_exposure`), is trained on only after its audit; what an audit found is on disk before anything
follows from it, but for the group that failed, which is out of the buffer first; who is banned has no lease, no line
and nothing in the buffer; of a group of several peers' turns only what that peer made is refused whom an audit or the
operator has found, and the others' stays admitted, though the group is trained on no more; a receipt that is revised is
signed anew, names the peer of its lease, replaces the one before, and is told to that peer, again on every new line
until it was. Who is here, or has leases under way, is known; of others the ledger is asked before anything is written
of them, so that nothing that was found is ever forgotten. The trio thread never waits for the disk.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import trio

from learner.ledger.ledger import Ledger
from learner.ledger.reputation import BAN, PARDON
from learner.ledger.rows import AdmittedRow, AuditRow
from learner.rollouts.admission import AdmittedRecord, GrantedLease, manifests_of
from learner.rollouts.buffer import Batch
from learner.trust.audit_queue import Agenda, Work, work_of
from learner.trust.margins import Arithmetic, margins_of
from learner.trust.near_duplicates import NearCopies, sketch
from learner.trust.outliers import Unusual
from learner.trust.sequential_test import Found, Margin, count_above, log_evidence
from learner.trust.standing import (
    DOUBT_REASON,
    NEWCOMER_GROUPS,
    AuditHistory,
    Finding,
    TrustLevel,
    after,
    is_audited,
    pardoned,
)
from learner.trust.unaudited_exposure import Exposure
from node.learner_role.scheduling.run_state import RunState
from node.learner_role.trust.version_retention import RetentionReason, VersionRetention
from node.runtime.events import EventLog
from node.state.operator_orders import Ban, NoOrder, OperatorDecisions, Pardon, read_order
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PeerId, SwarmId, short
from protocol.core.limits import MAX_REASON_CHARS
from protocol.work import FromLearner, Receipt, Refused, Revised, Rule, SignedRecord, Verdict, sign_receipt

AUDIT_REASON = "audit"
"""Why a group is dropped of which a lease failed its audit, or that was not audited in time."""

BANNED_REASON = "banned"
"""Why the groups are dropped that a peer opened, or made a turn of, that was just banned."""

TOLD_TOGETHER = 16
"""Revised receipts told with one heartbeat: a line has room for a few hundred answers."""

MAX_UNTOLD = 16 * TOLD_TOGETHER
"""Revised receipts that wait for one peer's heartbeats; it hears of more from the ledger, when it comes again."""

PEERS_REMEMBERED = 4096
"""Peers of whom is remembered what the ledger knows, beside those that are here."""

UNKNOWN_PARAMETERS = 1 << 62
"""Of a model of which nothing is known: margins are the widest then."""

LOOK_S = 1.0
"""Between looks for orders of the operator's."""

Refusal = tuple[Rule, str, bytes]
"""By which rule records are refused after all, in which words, and the receipt that says so."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """A lease of a peer that is banned, for the reason that `why` tells, which was admitted all the same; `root` opened
    the group that is not trained on therefore, None where it is too late, or nobody waited for the lease."""

    lease: LeaseId
    root: LeaseId | None
    why: str


SPOILED_REMEMBERED = 4096
"""Groups that are known to be refused before they are complete: more than are ever under way."""


class GroupDecision(Enum):
    """What becomes of a complete group: it waits for its batch, or for an audit first, or is dropped."""

    ACCEPT = "accept"
    HOLD = "hold"
    DROP = "drop"


def ban_notice(why: str) -> str:
    """What a banned peer is told when it comes back."""
    said = f"This key is banned from the swarm: {why}. If that is wrong, ask the operator to look at the evidence."
    return said[:MAX_REASON_CHARS]


async def _nothing_else(peer: PeerId) -> None:
    """Nothing more is known of it than this desk forgets by itself."""
    await trio.lowlevel.checkpoint()


@dataclass(kw_only=True)
class AuditService:
    """See the module's paragraph.

    Args:
        secret: of the learner; decides who is audited.
        audits: whether anybody is audited; bans of the operator's hold either way.
        floor: the least share of anybody's groups that is audited.
        arithmetic: in which numbers all engines of the swarm compute.
        orders: where the operator's decisions lie.
        tell: says something to a peer, if its line is up.
        dismiss: ends a peer's line after telling it why, and withdraws its leases.
        used: told of which versions a peer has work that may be believed.
        is_quarantined: whether soft strikes stand against a peer: then no more of its work may be under way than of a
            newcomer's.
        judged: told when an audit failed, or the operator has decided something.
        delivered: told of every group that is admitted, and that may be believed.
        banned: told of a peer that was sent away for good, once its leases are withdrawn.
        forgiven: awaited when a peer is pardoned, before that is written.
        added: something is on the agenda.
    """

    run: RunState
    ledger: Ledger
    kept: VersionRetention
    keypair: Keypair
    swarm: SwarmId
    certificate: bytes
    secret: bytes
    floor: float
    orders: OperatorDecisions
    now_ms: Callable[[], int]
    events: EventLog
    audits: bool = True
    arithmetic: Arithmetic = Arithmetic.ANY
    tell: Callable[[PeerId, FromLearner], None] = lambda peer, message: None
    dismiss: Callable[[PeerId, Refused], None] = lambda peer, last_word: None
    used: Callable[[PeerId, Collection[ManifestHash]], None] = lambda peer, manifests: None
    is_quarantined: Callable[[PeerId], bool] = lambda peer: False
    judged: Callable[[], None] = lambda: None
    delivered: Callable[[GrantedLease, Sequence[AdmittedRecord]], None] = lambda granted, group: None
    banned: Callable[[PeerId], None] = lambda peer: None
    forgiven: Callable[[PeerId], Awaitable[None]] = _nothing_else
    agenda: Agenda = field(default_factory=Agenda)
    copies: NearCopies = field(default_factory=NearCopies)
    unusual: Unusual = field(default_factory=Unusual)
    exposure: Exposure = field(default_factory=Exposure)
    added: trio.Event = field(default_factory=trio.Event)
    stirred: trio.Event = field(default_factory=trio.Event)
    """Something is to be settled."""
    audited: int = 0
    failed: int = 0
    unaudited: int = 0
    _one: trio.Lock = field(default_factory=trio.Lock)
    """Held while what is known of a peer is recalled or written, or all that waits is given anew: while nobody holds it
    the ledger knows as much as this desk, and a lease is audited once."""
    _known: dict[PeerId, AuditHistory] = field(default_factory=dict)
    _under_audit: set[LeaseId] = field(default_factory=set)
    """On the agenda, or judged and not written yet: MAX_WAITING and what the engine is asked together, at most."""
    _pending: dict[LeaseId, set[LeaseId]] = field(default_factory=dict)
    _unusual: set[PeerId] = field(default_factory=set)
    _late: list[Late] = field(default_factory=list)
    _spoiled: dict[LeaseId, None] = field(default_factory=dict)
    _no_orders: set[Path] = field(default_factory=set)
    _untold: dict[PeerId, list[tuple[LeaseId, bytes]]] = field(default_factory=dict)
    _told: list[LeaseId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept.give_up.append(self.lost)
        self._salt = int.from_bytes(hmac.digest(self.secret, b"near copies", "sha256")[:8], "big")

    # Who comes

    def left(self, peer: PeerId) -> None:
        """The peer is gone: what it was not told is read from the ledger when it comes back."""
        self._untold.pop(peer, None)
        self._unusual.discard(peer)

    async def welcome(self, peer: PeerId) -> Refused | None:
        """Recall what is known of a peer that wants to join; the refusal if it is banned."""
        async with self._one:
            banned = (await self._recalled(peer)).banned
            untold = (
                [] if banned else await trio.to_thread.run_sync(self.ledger.trust.untold_revisions, peer, MAX_UNTOLD)
            )
            self._forget_others(peer)
        if banned:
            return Refused(reason=ban_notice(banned))
        if untold:
            self._untold[peer] = untold
        return None

    async def still_banned(self, peer: PeerId) -> Refused | None:
        """The refusal if a peer that is about to be here was banned since it was welcomed. Nothing happens between the
        answer and the caller's next await."""
        if peer not in self._known:  # others came meanwhile
            async with self._one:
                await self._recalled(peer)
        banned = self._known[peer].banned
        return Refused(reason=ban_notice(banned)) if banned else None

    async def _recalled(self, peer: PeerId) -> AuditHistory:
        """What is known of a peer, from the ledger if it is not remembered. The caller holds `_one`."""
        if (known := self._known.get(peer)) is None:
            found = await trio.to_thread.run_sync(self.ledger.trust.confidence_of, [peer])
            known = self._known[peer] = found.get(peer, AuditHistory())
        return known

    def _forget_others(self, peer: PeerId) -> None:
        """Forget peers that are neither here nor have anything under way, but for this one, when they are too many. The
        caller holds `_one`."""
        if len(self._known) <= PEERS_REMEMBERED + len(self.run.present):
            return
        busy = {*self.run.present, peer, *self.agenda.peers}
        pending = self.run.leasing.pending  # a delivery that is being judged is pending until its audit is decided on
        for gone in [one for one in self._known if one not in busy and not pending(one)]:
            del self._known[gone]
            self.exposure.forget(gone)
        self._unusual &= self._known.keys()

    def joined(self, peer: PeerId) -> None:
        """The peer is here: how much of its work may be under way."""
        self._set_quota(peer)

    def under_audit(self) -> frozenset[LeaseId]:
        """The leases whose audits are not over, until what was found of them is written."""
        return frozenset(self._under_audit)

    def heard(self, peer: PeerId) -> None:
        """A sign of life: tell the peer what was revised, if it understands that."""
        presence = self.run.present.get(peer)
        if presence is None or not presence.takes_revisions or not (untold := self._untold.get(peer)):
            return
        told, rest = untold[:TOLD_TOGETHER], untold[TOLD_TOGETHER:]
        for _, receipt in told:
            self.tell(peer, Revised(receipt=receipt))
        if rest:
            self._untold[peer] = rest
        else:
            del self._untold[peer]
        self._told += [lease for lease, _ in told]

    def standing(self, peer: PeerId) -> TrustLevel:
        """How a peer stands that is here."""
        return self._remembered(peer).standing

    def _remembered(self, peer: PeerId) -> AuditHistory:
        """What is known of a peer that is here or has leases under way; nothing of it is to be written."""
        return self._known.get(peer, AuditHistory())

    # What comes

    def sketches(self, records: Sequence[SignedRecord]) -> tuple[frozenset[int], ...]:
        """What is remembered of these completions, to notice copies; on any thread."""
        return tuple(sketch(record.tokens, self._salt) for record in records) if self.audits else ()

    def admitted(
        self, granted: GrantedLease, group: Sequence[AdmittedRecord], sketches: Sequence[frozenset[int]] = ()
    ) -> bool:
        """A lease was delivered and every record admitted, of which these are the `sketches`: put its audit on the
        agenda, if there is to be one. Returns whether anything that rests on it waits for that: then `used` is told
        once it has passed."""
        if self._is_refused(granted):
            is_part = granted.place is None or self.run.episodes.is_open(granted.root)
            self._refuse_late(granted, is_part=is_part)
            return True
        if not self.audits:
            return False
        self.delivered(granted, group)
        odd = self._is_odd(granted, group, sketches) | self._is_unusual(granted, group)
        return self._believe_or_audit(granted, group, odd=odd)

    def _is_refused(self, granted: GrantedLease) -> bool:
        """Whether the lease's peer was banned since its records were taken from the inbox: then they are refused."""
        return bool(self._remembered(granted.peer).banned)

    def _refuse_late(self, granted: GrantedLease, *, is_part: bool) -> None:
        """Refuse what was admitted of a banned peer's lease, and do not train on the group that it `is_part` of; it is
        written soon."""
        if is_part:
            self._spoil(granted.root)
        why = f"its peer is banned: {self._remembered(granted.peer).banned}"
        root = granted.root if is_part else None
        self._late.append(Late(lease=granted.id, root=root, why=why))
        self.stirred.set()

    def _believe_or_audit(self, granted: GrantedLease, group: Sequence[AdmittedRecord], *, odd: bool) -> bool:
        """Put the audit of a lease on the agenda, if there is to be one; returns whether what rests on it waits."""
        known = self._remembered(granted.peer)
        oldest = min((span for one in group for span in one.signed.record.spans), key=lambda span: span.version)
        version = ManifestHash(oldest.manifest)
        waits = known.waits or self.exposure.must_wait(granted.peer, known.passed)
        is_due = waits or (self.exposure.is_due(granted.peer, known.passed) and granted.peer not in self.agenda.peers)
        if not is_audited(known, self.secret, granted.id, version, floor=self.floor, odd=odd or is_due):
            self.exposure.came(granted.peer, granted.id, believed=True)
            return False
        work = work_of(granted, group, waits=waits)
        self.exposure.came(granted.peer, granted.id, believed=not waits)
        if not self.kept.keep(work.manifests, _use_of(work)):
            self._unaudited([work])
            return work.waits
        if work.waits:
            self._pending.setdefault(work.root, set()).add(work.lease)
        self._under_audit.add(work.lease)
        self._unaudited(self._given_up(self.agenda.add(work)))
        self.added.set()
        return work.waits

    def _is_odd(
        self, granted: GrantedLease, group: Sequence[AdmittedRecord], sketches: Sequence[frozenset[int]]
    ) -> bool:
        """Whether a completion repeats what another lease brought, which two honest peers' seeds would not. Who was
        copied looks like who copies, so nobody is blamed: an audit tells."""
        found = None
        for one, mine in zip(group, sketches, strict=False):
            told = self.copies.seen(granted.id, one.signed.record.index, mine, sum(one.signed.logprobs))
            found = found or told
        if found is not None:
            self.events.emit("near_copy", peer=granted.peer, lease=short(granted.id), of=short(found))
        return found is not None

    def _is_unusual(self, granted: GrantedLease, group: Sequence[AdmittedRecord]) -> bool:
        """Whether what the peer brings of late is unlike the swarm's, this group among it."""
        rewards = [one.reward for one in group if one.reward is not None]
        tokens = [len(one.signed.tokens) for one in group]
        self.unusual.delivered(granted.peer, granted.lease.task, rewards, tokens)
        return self._note_unusual(granted.peer)

    def trained(self, batch: Batch, apart: Sequence[float]) -> None:
        """The batch was trained on; `apart`: of each of its completions, in order, the mean |log pi - log mu| of its
        tokens in nats, NaN where it had no gradient. What several peers' turns made tells of none of them."""
        if not self.audits:
            return
        begin = 0
        for group in batch.groups:
            begin, mine = begin + len(group.completions), apart[begin : begin + len(group.completions)]
            known = [value for value in mine if math.isfinite(value)]
            if known and all(one.turns == 1 for one in group.completions):
                self.unusual.trained(group.peer, batch.lags[group.lease], math.fsum(known) / len(known))
                self._note_unusual(group.peer)

    def _note_unusual(self, peer: PeerId) -> bool:
        """Whether the peer is unusual; said when it becomes so."""
        told = self.unusual.told(peer)
        if told is None:
            self._unusual.discard(peer)
        elif peer not in self._unusual:
            self._unusual.add(peer)
            self.events.emit("peer_unusual", peer=peer, reason=told)
        return told is not None

    def fate(self, root: LeaseId) -> GroupDecision:
        """What is to become of the group that this lease opened, now that it is complete."""
        if root in self._spoiled:
            del self._spoiled[root]
            return GroupDecision.DROP
        return GroupDecision.HOLD if root in self._pending else GroupDecision.ACCEPT

    async def recover(self, leases: Sequence[tuple[GrantedLease, Sequence[AdmittedRecord]]]) -> None:
        """Another chain is put in place: forget what was on the agenda, and take up these leases, whose records were
        admitted and not trained on, some of them perhaps by a step that is undone: what waits for an audit does so
        again, what has failed its own is not trained on, and of what is believed `used` is told. Nothing is drawn from
        them a second time about how their peers choose or what their work is like."""
        async with self._one:
            known, audited = await trio.to_thread.run_sync(self._recall_all, [granted for granted, _ in leases])
            self._given_up(self.agenda.clear())
            self.exposure.clear()
            self._pending.clear()
            self._spoiled.clear()
            for peer, confidence in known.items():
                self._known.setdefault(peer, confidence)
            for granted, group in leases:
                if self._is_refused(granted):
                    self._refuse_late(granted, is_part=True)
                    continue
                if (passed := audited.get(granted.id, None if self.audits else True)) is None:
                    passed = not self._believe_or_audit(granted, group, odd=False)
                elif not passed:
                    self._spoil(granted.root)
                if passed:
                    self.used(granted.peer, manifests_of(group))

    # What is found

    def lost(self, manifest: ManifestHash) -> None:
        """A version is gone, or is to go: what it made cannot be audited."""
        self._unaudited(self._given_up(self.agenda.lost(manifest)))

    def impossible(self, lease: LeaseId) -> None:
        """The engine cannot judge this lease."""
        self._unaudited(self._given_up(self.agenda.give_up(lease)))

    async def conclude(self, work: Work, found: Sequence[Found]) -> None:
        """An audit is over: write it, and do what follows."""
        async with self._one:
            await self._conclude(work, found)
            if work.lease not in self.agenda:
                self._under_audit.discard(work.lease)

    async def _conclude(self, work: Work, found: Sequence[Found]) -> None:
        self._unpin(work)
        if await trio.to_thread.run_sync(self.ledger.trust.audits_of, [work.lease]):
            return  # put on the agenda again while it waited to be written, when another chain was put in place
        before = await self._recalled(work.peer)
        if before.banned:  # what it made was refused with that
            self._refuse_roots([work.root])
            return
        margins = await self._margins_in_force()
        counted = count_above(found, margins)
        known, finding = after(before, counted, margins)
        self._known[work.peer] = known
        self.audited += 1
        self.failed += not finding.passed
        if finding.passed:
            self.exposure.passed(work.peer, work.lease)
        wrong = self._refuse(work, finding)
        row = AuditRow(
            lease=work.lease,
            peer=work.peer,
            at_ms=self.now_ms(),
            tokens=counted.tokens,
            counts=counted.counts,
            worst=max((one.gap for one in found if math.isfinite(one.gap)), default=0.0),
            evidence=log_evidence(known.history),
            passed=finding.passed,
            detail=finding.detail,
        )
        if finding.convicted:
            wrong |= await self._withdraw_parts(work.peer)
        receipts = await trio.to_thread.run_sync(self._write, work.root, row, known, wrong, margins)
        self._follow(work, known, finding, row, counted.above(margins), receipts)

    async def _margins_in_force(self) -> tuple[Margin, ...]:
        """Those for the newest version: after a start, until one is published, for the last one of before."""
        if (newest := self.run.published) is None:
            manifest = await trio.to_thread.run_sync(self.ledger.training.newest_manifest)
            newest = None if manifest is None else self.kept.store.manifest(manifest)
        return margins_of(UNKNOWN_PARAMETERS if newest is None else newest.parameters, self.arithmetic)

    async def convict(self, peer: PeerId, why: str, holds: Callable[[], bool] = lambda: True) -> None:
        """Something else than an audit has found out that this peer is not honest: it is banned, unless it was, or that
        `holds` no more when its turn comes."""
        async with self._one:
            known = await self._recalled(peer)
            if holds() and not known.banned:
                await self._ban(peer, replace(known, banned=why[:MAX_REASON_CHARS]))

    async def watch(self) -> None:
        """Do what the operator decides, and refuse what was admitted of peers that were banned meanwhile; until
        cancelled."""
        while True:
            self.stirred = trio.Event()  # before we look, or what comes meanwhile would wake nobody
            await self._settle()
            await self._obey()
            with trio.move_on_after(LOOK_S):
                await self.stirred.wait()

    async def _obey(self) -> None:
        for path in await trio.to_thread.run_sync(self.orders.waiting):
            try:
                order = await trio.to_thread.run_sync(read_order, path)
            except NoOrder as error:
                if path not in self._no_orders:
                    self._no_orders.add(path)
                    self.events.emit("trouble", text=str(error))
                continue
            async with self._one:
                await self._decide(order)
            with suppress(OSError):
                path.unlink()

    async def _decide(self, order: Ban | Pardon) -> None:
        peer = PeerId(order.peer)
        before = await self._recalled(peer)
        if isinstance(order, Ban):
            reason = order.reason[:MAX_REASON_CHARS] or "the operator decided so"
            await self._ban(peer, replace(before, banned=reason), decision=BAN)
            return
        known = pardoned(before)
        await self.forgiven(peer)
        self.events.emit("peer_pardoned", peer=peer)
        self._known[peer] = known
        now_ms = self.now_ms()
        await trio.to_thread.run_sync(
            lambda: self.ledger.trust.confidence_written(peer, known, now_ms, decision=PARDON)
        )
        self._reconsidered(peer)

    async def _ban(self, peer: PeerId, known: AuditHistory, *, decision: str = "") -> None:
        """Ban it without an audit, for the reason in `known`; `decision`: BAN if it is the operator's."""
        self.events.emit("peer_banned", peer=peer, lease=None, reason=known.banned)
        self._known[peer] = known
        wrong = self._withdraw(peer) | await self._withdraw_parts(peer)
        now_ms = self.now_ms()

        def write() -> dict[LeaseId, bytes]:
            own = self.ledger.trust.parts_of(peer, wrong)
            revised = self._refusals(own, Rule.BANNED, f"its peer is banned: {known.banned}", now_ms)
            dropped = dict.fromkeys(wrong, BANNED_REASON)
            self.ledger.trust.confidence_written(peer, known, now_ms, revised, dropped, decision=decision)
            return {lease: raw for lease, (_, _, raw) in revised.items()}

        self._will_tell(peer, await trio.to_thread.run_sync(write))
        self._send_away(peer, known)
        self._reconsidered(peer)

    def _reconsidered(self, peer: PeerId) -> None:
        """It was decided how the peer stands."""
        self._set_quota(peer)
        self.judged()
        self.run.notify()

    async def _settle(self) -> None:
        if not self._late:
            return
        async with self._one:
            late, self._late = self._late, []

            def write() -> None:
                now_ms, revised = self.now_ms(), dict[LeaseId, Refusal]()
                for one in late:
                    revised |= self._refusals([one.lease], Rule.BANNED, one.why, now_ms)
                dropped = {one.root: BANNED_REASON for one in late if one.root is not None}
                self.ledger.trust.verdicts_revised(revised, now_ms, dropped)

            await trio.to_thread.run_sync(write)

    def write(self) -> Callable[[], None]:
        """What the ledger does not know yet, to be called on a thread."""
        told, self._told = self._told, []
        return lambda: self.ledger.trust.revisions_told(told) if told else None

    def _refuse(self, work: Work, finding: Finding) -> set[LeaseId]:
        """Take out of the buffer what must not be trained on: the group, and of a peer in doubt all that waits for no
        audit. Return the leases that opened it. What a step has taken, or is being trained on, stays as it was."""
        if finding.passed and not _is_doubted(work, finding):
            return set()
        wrong = self._refuse_roots([work.root], DOUBT_REASON if finding.passed else AUDIT_REASON)
        if finding.convicted:
            return wrong | self._withdraw(work.peer)
        doubted = self.run.buffer.withdraw(
            lambda one: one.peer == work.peer and one.lease not in self._pending, DOUBT_REASON
        )
        return wrong | {group.lease for group in doubted}

    def _withdraw(self, peer: PeerId) -> set[LeaseId]:
        """Of what this peer made, give up what is known here; return the leases that opened those groups."""
        gone = {group.lease for group in self.run.buffer.withdraw(lambda one: one.peer == peer, BANNED_REASON)}
        for lease in gone:
            self._pending.pop(lease, None)
        return gone | self._refuse_roots([work.root for work in self._given_up(self.agenda.withdraw(peer))])

    async def _withdraw_parts(self, peer: PeerId) -> set[LeaseId]:
        """Nothing that this peer made is trained on from now on. Turns of it may be parts of groups that others opened,
        or that go on, which the ledger alone tells; return the leases that opened those that were given up."""
        return self._refuse_roots(await trio.to_thread.run_sync(self.ledger.trust.untrained_of, peer))

    def _refuse_roots(self, roots: Iterable[LeaseId], reason: str = AUDIT_REASON) -> set[LeaseId]:
        """The groups that these leases opened are not trained on: not from the buffer, and not when they are complete.
        Return those of which that holds; of the others it is too late."""
        wrong = set(roots)
        gone = {group.lease for group in self.run.buffer.withdraw(lambda one: one.lease in wrong, reason)}
        for root in wrong:
            was_pending = self._pending.pop(root, None) is not None
            if root not in gone and (was_pending or self.run.episodes.is_open(root)):
                self._spoil(root)
        return gone | {root for root in wrong if root in self._spoiled}

    def _write(
        self, root: LeaseId, row: AuditRow, known: AuditHistory, wrong: Collection[LeaseId], margins: Sequence[Margin]
    ) -> dict[LeaseId, bytes]:
        """On a thread: the audit of a lease in the group that `root` opened; `wrong` opened all that is not trained on
        for it. Returns the receipts that were replaced, all of the audited peer's."""
        revised = dict[LeaseId, Refusal]()
        dropped = dict.fromkeys(wrong, BANNED_REASON if known.banned else DOUBT_REASON)
        if not row.passed and (root in wrong or self.ledger.trust.is_dropped(root)):
            dropped[root] = AUDIT_REASON
            failed = {row.lease}
            if not known.banned:  # what it made besides in this group, unless that was audited and passed
                own = self.ledger.trust.parts_of(row.peer, [root])
                failed |= own - {lease for lease, has_passed in self.ledger.trust.audits_of(own).items() if has_passed}
            revised |= self._refusals(failed, Rule.AUDIT, row.detail, row.at_ms)
        if known.banned:
            others = self.ledger.trust.parts_of(row.peer, wrong) - set(revised)
            revised |= self._refusals(others, Rule.BANNED, f"its peer is banned: {row.detail}", row.at_ms)
        self.ledger.trust.audited(row, known, revised, dropped, margins=margins)
        return {lease: raw for lease, (_, _, raw) in revised.items()}

    def _refusals(self, leases: Collection[LeaseId], rule: Rule, detail: str, now_ms: int) -> dict[LeaseId, Refusal]:
        """On a thread: how what is admitted of these leases is refused after all, and the receipts that say so, each to
        the peer of its lease."""
        detail = detail[:MAX_REASON_CHARS]
        return {
            row.lease: (rule, detail, self._receipt(row, rule, detail, now_ms))
            for row in self.ledger.trust.admitted_of(leases)
        }

    def _receipt(self, row: AdmittedRow, rule: Rule, detail: str, now_ms: int) -> bytes:
        verdicts = [Verdict(record=record, index=index, rule=rule, detail=detail) for record, index in row.records]
        receipt = Receipt(
            lease=row.lease,
            peer=row.peer,
            version=self.run.chain.head,
            issued_ms=now_ms,
            tokens=0,
            verdicts=verdicts,
            certificate=self.certificate,
        )
        return sign_receipt(self.keypair, self.swarm, receipt)

    def _follow(
        self,
        work: Work,
        known: AuditHistory,
        finding: Finding,
        row: AuditRow,
        above: int,
        receipts: dict[LeaseId, bytes],
    ) -> None:
        self.events.emit(
            "audited",
            peer=work.peer,
            lease=short(work.lease),
            tokens=row.tokens,
            above=above,
            worst=round(row.worst, 5),
            evidence=round(row.evidence, 3),
            passed=finding.passed,
            standing=known.standing.value,
        )
        self._will_tell(work.peer, receipts)
        if finding.convicted:
            self.events.emit("peer_banned", peer=work.peer, lease=short(work.lease), reason=finding.detail)
            self._send_away(work.peer, known)
        elif not finding.passed:
            self.events.emit("audit_failed", peer=work.peer, lease=short(work.lease), reason=finding.detail)
        elif _is_doubted(work, finding):
            evidence = round(row.evidence, 3)
            self.events.emit("group_doubted", peer=work.peer, lease=short(work.lease), evidence=evidence)
        elif work.waits:
            self.used(work.peer, work.manifests)
            self._release(work)
        if not finding.passed or _is_doubted(work, finding):
            self.judged()
        self._set_quota(work.peer)
        self.run.notify()

    def _release(self, work: Work) -> None:
        """The group of this work waits for it no longer; nothing is left to wait for once it was given up."""
        if (pending := self._pending.get(work.root)) is None:
            return
        pending.discard(work.lease)
        if not pending:
            del self._pending[work.root]
            self.run.buffer.release(work.root)

    def _will_tell(self, peer: PeerId, receipts: Mapping[LeaseId, bytes]) -> None:
        """The peer is told with its next heartbeats; one that is not here, when it comes back, from the ledger."""
        presence = self.run.present.get(peer)
        if receipts and presence is not None and presence.takes_revisions:
            self._untold[peer] = [*self._untold.get(peer, []), *receipts.items()][:MAX_UNTOLD]

    def _send_away(self, peer: PeerId, known: AuditHistory) -> None:
        """Tell it what it can still read, and end its line."""
        self.heard(peer)
        self._untold.pop(peer, None)
        self.dismiss(peer, Refused(reason=ban_notice(known.banned)))
        self.banned(peer)

    def _unaudited(self, works: Iterable[Work]) -> None:
        """These cannot be audited, which is nobody's fault; what waited for that is not trained on."""
        roots = set()
        for work in works:
            self.unaudited += 1
            if work.waits:
                self.exposure.gone(work.peer, work.lease)
                roots.add(work.root)
                self._pending.setdefault(work.root, set())
        if roots:
            self._refuse_roots(roots)
            self.run.notify()

    def _spoil(self, root: LeaseId) -> None:
        """The group is not complete yet, and must not be trained on when it is."""
        self._spoiled[root] = None
        while len(self._spoiled) > SPOILED_REMEMBERED:
            del self._spoiled[next(iter(self._spoiled))]

    def _recall_all(self, leases: Sequence[GrantedLease]) -> tuple[dict[PeerId, AuditHistory], dict[LeaseId, bool]]:
        peers = {granted.peer for granted in leases}
        return self.ledger.trust.confidence_of(peers), self.ledger.trust.audits_of([granted.id for granted in leases])

    def reconsider(self) -> None:
        """Who is in quarantine has changed."""
        for peer in self.run.present:
            self._set_quota(peer)
        self.run.notify()

    def _set_quota(self, peer: PeerId) -> None:
        if peer in self.run.present:
            known = self._remembered(peer)
            is_held = self.audits and (known.waits or self.is_quarantined(peer))
            self.run.worker(peer).quota = NEWCOMER_GROUPS * self.run.leasing.terms.group_size if is_held else math.inf

    def _given_up(self, works: Iterable[Work]) -> list[Work]:
        """The same works, which are on the agenda no more, and need neither their versions nor what was signed."""
        done = list(works)
        for work in done:
            self._unpin(work)
            self._under_audit.discard(work.lease)
        return done

    def _unpin(self, work: Work) -> None:
        self.kept.release(work.manifests, _use_of(work))


def _is_doubted(work: Work, finding: Finding) -> bool:
    """Whether what waited for this audit, and passed, is not trained on all the same."""
    return work.waits and finding.passed and finding.doubted


def _use_of(work: Work) -> RetentionReason:
    return RetentionReason.AWAITED if work.waits else RetentionReason.AUDIT
