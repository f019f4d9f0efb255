"""Lease groups to teacher nodes, and judge their deliveries: write, acknowledge, and use or audit the scores.

Scores are not kept on disk. After a restart, waiting groups are scored again, and leases that were under way count
against no peer.

Invariants:

- A lease is in the ledger before it is granted.
- A receipt is sent only after it is on disk. A repeated delivery gets the same receipt.
- A group that is not delivered in time goes to other teachers.
- Scores reach the buffer only if they need no audit or passed it (`node.learner_role.distillation.teacher_audits`).
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import trio

from learner.ledger.rows import TeacherLeaseRow
from learner.rollouts.buffer import Group
from learner.rollouts.score_leases import Scored, ScoreLeases, ScoreWork
from learner.trust.audit_history import NEWCOMER_GROUPS, is_score_audited
from node.learner_role.shared.context import Service
from node.learner_role.shared.presence_counts import PEERS_REMEMBERED
from node.learner_role.trust.peer_standings import PeerStandings
from node.learner_role.trust.receipt_revisions import Late, ReceiptRevisions, banned_detail
from protocol.core.codec import pack_tokens
from protocol.core.digest import digest_of
from protocol.core.envelope import sign
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import LeaseId, PeerId, RecordId, short
from protocol.core.limits import MAX_REASON_CHARS
from protocol.scores import ScoreGrant, ScoreLease, read_score_record
from protocol.work import Acknowledgement, LeaseRequest, LeaseReturn, Receipt, Rule, Verdict
from swarm.work.server import Incoming

LEASED_TOKENS = 65_536
"""Most tokens of one grant, including prompts: some seconds of work for a large teacher on a GPU."""

HELD_TOKENS = 2 * LEASED_TOKENS
"""Most tokens that a trusted teacher has under way: those that it scores, and the next ones."""

GRANT_WAIT_S = 10.0
"""Seconds that a request for leases is held open before it is answered with none."""

IDLE_S = 5.0
"""Seconds without a request or a lease after which teachers count as paused or away. Then the learner scores itself."""

GRANT_RETRY_MS = 100
"""Milliseconds after which a teacher may ask again: at once, since requests wait here."""

TASK = "[distill] teacher"
"""The task of a teacher's lease in the ledger."""

LEASE_ID_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """A judged delivery: the receipt, and the scores if they were admitted."""

    receipt: bytes
    scored: Scored | None


@dataclass(kw_only=True, eq=False)
class TeacherLeases(Service):
    """Grants leases to teacher nodes, and judges their deliveries.

    Args:
        leases: the scores of teacher nodes that are leased, or wait.
        standings: what is known of each peer.
        revisions: revised receipts.
        digest: the teacher's digest.
        temperature: the sampling temperature.
        deadline_s: seconds for which a lease is open.
        floor: minimum fraction of each peer's leases to audit.
    """

    leases: ScoreLeases
    standings: PeerStandings
    revisions: ReceiptRevisions
    digest: bytes
    temperature: float
    deadline_s: float
    floor: float
    _closed: dict[LeaseId, str] = field(default_factory=dict)
    _arrived: dict[LeaseId, PeerId] = field(default_factory=dict)
    """Deliveries that wait in the inbox. Their leases do not end meanwhile."""
    _asking: Counter[PeerId] = field(default_factory=Counter)
    """By peer: requests that are held open."""
    _asked_s: float = -math.inf
    """The time at which a request was last answered."""
    _fruitless: set[PeerId] = field(default_factory=set)
    """Peers whose last lease ended without scores."""

    async def grant(self, peer: PeerId, request: LeaseRequest) -> ScoreGrant:
        """Wait for groups that no teacher scores yet, then lease as many completions as were requested."""
        groups: Sequence[Group] = ()
        self._asking[peer] += 1
        try:
            with trio.move_on_after(GRANT_WAIT_S):
                while not (groups := self._for(peer, request.rollouts)):
                    await self.state.wait_changed()
        finally:
            self._asking[peer] -= 1
            self._asking = +self._asking  # without those at 0
            self._asked_s = trio.current_time()
        if not groups:
            why = "The run is finished." if self.state.finished else "No group waits for a teacher. Wait for rollouts."
            return ScoreGrant(leases=[], now_ms=self.now_ms(), reason=why, retry_after_ms=GRANT_RETRY_MS)
        works = [self._issue(peer, group) for group in groups]
        try:
            await trio.to_thread.run_sync(self.ledger.work.scoring_issued, [_row(work) for work in works])
            self.state.issued += len(works)
        except BaseException:  # the peer has left, or asks again, and will never get these
            self._end(self.leases.release(peer, [work.id for work in works]), "lost")
            raise
        return ScoreGrant(leases=[work.raw for work in works], now_ms=self.now_ms())

    @property
    def is_at_work(self) -> bool:
        """Return whether a teacher scores now, or waits for groups."""
        return bool(self._asking or self.leases.open) or trio.current_time() < self._asked_s + IDLE_S

    def note_arrival(self, peer: PeerId, lease: LeaseId) -> None:
        """Note that a delivery for this lease is in the inbox."""
        if (work := self.leases.open.get(lease)) is not None and work.peer == peer:
            self._arrived[lease] = peer

    def accept_return(self, peer: PeerId, said: LeaseReturn) -> None:
        """Accept leases that a peer returns."""
        back = self.leases.release(peer, [LeaseId(lease) for lease in said.leases])
        self._end(back, "returned")
        self.events.emit("leases_returned", peer=peer, leases=len(back), recalled=0, reason=said.reason)

    def disown(self, peer: PeerId) -> set[LeaseId]:
        """Withdraw everything of a banned peer, and return the leases concerned.

        Its open leases are lost. Groups that it scored, and that no batch has, go to other teachers.
        """
        lost = self.leases.release(peer)
        self._end(lost, "lost")
        return {work.id for work in lost} | self.leases.disown(peer)

    def release(self, peer: PeerId, status: str) -> None:
        """Withdraw the leases of a peer that is gone, except those that it has delivered."""
        mine = [one.id for one in self.leases.open.values() if one.peer == peer and one.id not in self._arrived]
        self._end(self.leases.release(peer, mine), status)

    def recollect(self, peer: PeerId, held: Collection[LeaseId]) -> None:
        """Withdraw the leases of a peer that is back and does not hold them.

        `held`: the leases that it still has. The others never arrived, or were lost, which is nobody's fault.
        """
        mine = [one.id for one in self.leases.open.values() if one.peer == peer]
        gone = [one for one in mine if one not in held and one not in self._arrived]
        self._end(self.leases.release(peer, gone), "recalled")

    def expire(self) -> None:
        """Withdraw the leases that were not delivered in time, except those that wait in the inbox."""
        late = [one for one in self.leases.late(self.now_ms()) if one.id not in self._arrived]
        for work in late:
            self.leases.put_back(work)
        self._end(late, "expired")
        self.leases.forget_trained()

    async def run(self, inbox: trio.MemoryReceiveChannel[Incoming]) -> None:
        """Judge deliveries one after the other, until cancelled or the inbox is closed."""
        async for incoming in inbox:
            await self._hear(incoming)

    def unwritten(self) -> Callable[[], None]:
        """Return a function that writes pending changes to the ledger. Call it on a thread."""
        closed, self._closed = self._closed, {}
        now_ms = self.now_ms()

        def write() -> None:
            for status in sorted(set(closed.values())):
                ended = [lease for lease, word in closed.items() if word == status]
                self.ledger.work.leases_closed(ended, status, now_ms)

        return write

    # Grants

    def _for(self, peer: PeerId, rollouts: int) -> Sequence[Group]:
        """Return the groups that the peer may be leased now.

        A newcomer has few leases until it has passed audits. A peer whose last lease ended without scores has one at a
        time.
        """
        if self.state.finished or peer not in self.state.teachers:
            return ()
        known, mine = self.standings.remember(peer), [*self.leases.under_way(peer)]
        if known.banned or (peer in self._fruitless and mine):
            return ()
        if self.standings.audits and known.waits and len(mine) >= NEWCOMER_GROUPS:
            return ()
        held = sum(work.num_tokens for work in mine)
        if held >= HELD_TOKENS:
            return ()
        found = self.leases.for_peer(rollouts, LEASED_TOKENS)
        if peer in self._fruitless:
            return found[:1]
        return found[: NEWCOMER_GROUPS - len(mine)] if self.standings.audits and known.waits else found

    def _issue(self, peer: PeerId, group: Group) -> ScoreWork:
        now_ms = self.now_ms()
        lease = ScoreLease(
            id=secrets.token_bytes(LEASE_ID_BYTES),
            peer=peer,
            teacher=self.digest,
            prompt=pack_tokens(group.prompt),
            completions=[pack_tokens(one.tokens) for one in group.completions],
            temperature=self.temperature,
            issued_ms=now_ms,
            deadline_ms=now_ms + round(1000 * self.deadline_s),
        )
        raw = sign(self.identity.keypair, self.identity.swarm, lease)
        work = ScoreWork(peer=peer, group=group, lease=lease, raw=raw)
        self.leases.issue(work)
        return work

    def _end(self, works: Sequence[ScoreWork], status: str) -> None:
        for work in works:
            self._closed[work.id] = status
            if status != "recalled":
                self._note_fruitless(work.peer)
        if works:
            self.state.notify(leasable=False)

    def _note_fruitless(self, peer: PeerId) -> None:
        """Note that a lease ended without scores: the peer has one at a time until one brings scores."""
        if len(self._fruitless) >= PEERS_REMEMBERED:
            self._fruitless &= self.state.teachers.keys()
        self._fruitless.add(peer)

    # Deliveries

    async def _hear(self, incoming: Incoming) -> None:
        """Check, write and acknowledge a delivery. Then its scores are used, or wait for their audit."""
        peer, lease = incoming.peer, LeaseId(incoming.delivery.lease)
        self._arrived.pop(lease, None)
        work = self.leases.take(lease, peer)
        judged = await trio.to_thread.run_sync(self._judge, incoming, work, self.context.signing_ms())
        incoming.answer(Acknowledgement(lease=lease, receipt=judged.receipt))
        if work is None:
            return
        if judged.scored is None:
            self.leases.put_back(work)
            self._note_fruitless(peer)
        else:
            self._fruitless.discard(peer)
            self._believe_or_audit(judged.scored)
        self.state.notify()

    def _believe_or_audit(self, scored: Scored) -> None:
        peer = scored.work.peer
        known = self.standings.remember(peer)
        if known.banned:  # banned after the delivery was taken from the inbox
            self.leases.put_back(scored.work)
            self.revisions.reject_late(Late(lease=scored.work.id, root=None, why=banned_detail(known.banned)))
        elif self.standings.audits and is_score_audited(known, self.identity.secret, scored.work.id, floor=self.floor):
            self.leases.audit(scored)
        else:
            self.leases.use(scored)
        self.events.emit(
            "scores_delivered", peer=peer, lease=short(scored.work.id), tokens=scored.work.num_tokens,
            waits=scored.work.id in self.leases.waiting,
        )  # fmt: skip

    def _judge(self, incoming: Incoming, work: ScoreWork | None, now_ms: int) -> _Judged:
        """On a thread: check a delivery and write its receipt. A repeated delivery gets the receipt from before."""
        lease, peer = LeaseId(incoming.delivery.lease), incoming.peer
        if work is None and (given := self.ledger.work.receipt_of(lease, peer)) is not None:
            return _Judged(receipt=given, scored=None)
        raw = incoming.delivery.records[0] if len(incoming.delivery.records) == 1 else b""
        scored, rule, detail = self._check(raw, work, peer)
        record = RecordId(digest_of(raw))
        receipt = sign(
            self.identity.keypair,
            self.identity.swarm,
            Receipt(
                lease=lease,
                peer=peer,
                version=self.capacity.chain.head,
                issued_ms=now_ms,
                tokens=0 if scored is None else scored.work.num_tokens,
                verdicts=[Verdict(record=record, index=0, rule=rule, detail=detail[:MAX_REASON_CHARS])],
                certificate=self.identity.certificate,
            ),
        )
        if work is not None:
            engine_s = None if scored is None else min(scored.engine_s, self.deadline_s)
            self.ledger.work.scores_judged(lease, receipt, engine_s, now_ms)
        return _Judged(receipt=receipt, scored=scored)

    def _check(self, raw: bytes, work: ScoreWork | None, peer: PeerId) -> tuple[Scored | None, Rule, str]:
        """Return the scores of a record, the rule, and the reason if it is rejected. The cheapest checks come first."""
        if work is None:
            return None, Rule.UNKNOWN_LEASE, "this lease is not open: it was late, or went to another teacher"
        if not raw:
            return None, Rule.MALFORMED, "a teacher's lease must be delivered as one record"
        try:
            signed = read_score_record(raw, self.identity.swarm)
            if signed.author != peer:
                return None, Rule.WRONG_PEER, f"signed by {signed.author}, leased to {peer}"
            wanted = [len(one.tokens) for one in work.group.completions]
            if signed.record.lease != work.lease.id or [len(one) for one in signed.scores] != wanted:
                return None, Rule.INCOMPLETE, "it does not score each token of the lease once"
            signed.envelope.verify_signature()
        except PeerError as error:
            rule = Rule.BAD_SIGNATURE if error.fault is Fault.BAD_SIGNATURE else Rule.MALFORMED
            return None, rule, error.detail
        scored = Scored(work=work, scores=signed.scores, raw=raw, engine_s=signed.record.cost.engine_s)
        return scored, Rule.ADMITTED, ""


def _row(work: ScoreWork) -> TeacherLeaseRow:
    group, lease = work.group, work.lease
    return TeacherLeaseRow(
        lease=work.id,
        peer=work.peer,
        root=group.lease,
        task=TASK,
        prompt=group.prompt_index,
        completions=len(group.completions),
        tokens=work.num_tokens,
        issued_ms=lease.issued_ms,
        deadline_ms=lease.deadline_ms,
        envelope=work.raw,
    )
