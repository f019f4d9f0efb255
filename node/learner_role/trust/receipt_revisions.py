"""Receipts that are signed anew, since what they admitted is refused after all, and how their peers hear of it.

Invariants:
- A revised receipt names the peer of its lease, replaces the one before, and is told to that peer, again on every new
  connection until it was.
- What was admitted of a peer that was banned meanwhile is refused soon, and its group is not trained on.
- The trio thread never waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import trio

from learner.ledger.rows import AdmittedRow
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import PeerBanned
from node.learner_role.trust.peer_standings import PeerStandings
from protocol.core.envelope import sign
from protocol.core.ids import LeaseId, PeerId, RecordId
from protocol.core.limits import MAX_REASON_CHARS
from protocol.work import Receipt, Revised, Rule, Verdict, open_receipt

BANNED_REASON = "banned"
"""Why the groups are dropped that a peer opened, or made a turn of, that was just banned."""

TOLD_TOGETHER = 16
"""Revised receipts told with one heartbeat: a connection has room for a few hundred answers."""

MAX_UNTOLD = 16 * TOLD_TOGETHER
"""Revised receipts that wait for one peer's heartbeats; it hears of more from the ledger, when it comes again."""


def banned_detail(why: str) -> str:
    """Why a record of a peer is refused that is banned for the reason `why`."""
    return f"its peer is banned: {why}"


Refusal = tuple[Rule, str, bytes]
"""By which rule records are refused after all, in which words, and the receipt that says so."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """A lease of a peer that is banned, for the reason that `why` tells, which was admitted all the same; `root` opened
    the group that is not trained on therefore, None where it is too late, or nobody waited for the lease."""

    lease: LeaseId
    root: LeaseId | None
    why: str


@dataclass(kw_only=True, eq=False)
class ReceiptRevisions(Service):
    """See the module's paragraph. `wakeup`: something is to be settled."""

    standings: PeerStandings
    takes_back: Callable[[PeerId], Collection[LeaseId]] = lambda peer: ()
    """Takes back what else than rollouts a peer delivered, and returns the leases of that."""
    wakeup: trio.Event = field(default_factory=trio.Event)
    _late: list[Late] = field(default_factory=list)
    _untold: dict[PeerId, list[tuple[LeaseId, bytes]]] = field(default_factory=dict)
    _told: list[LeaseId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.signals.peer_banned.subscribe(self._say_farewell)

    def refuse_late(self, late: Late) -> None:
        """Have it refused soon."""
        self._late.append(late)
        self.wakeup.set()

    async def settle(self) -> None:
        """Write what is to be refused."""
        if not self._late:
            return
        async with self.standings.lock:
            late, self._late = self._late, []

            def write() -> None:
                now_ms, revised = self.context.signing_ms(), dict[LeaseId, Refusal]()
                for one in late:
                    revised |= self.refusals([one.lease], Rule.BANNED, one.why, now_ms)
                dropped = {one.root: BANNED_REASON for one in late if one.root is not None}
                self.ledger.trust.verdicts_revised(revised, now_ms, dropped)

            await trio.to_thread.run_sync(write)

    def refusals(self, leases: Collection[LeaseId], rule: Rule, detail: str, now_ms: int) -> dict[LeaseId, Refusal]:
        """On a thread: how what is admitted of these leases is refused after all, and the receipts that say so, each to
        the peer of its lease. Rollouts that a step has taken stay admitted."""
        rows = [*self.ledger.trust.admitted_of(leases), *self._scores_of(leases)]
        return {row.lease: self._refusal(row, rule, detail, now_ms) for row in rows}

    def _scores_of(self, leases: Collection[LeaseId]) -> list[AdmittedRow]:
        """Of these leases what a teacher delivered: of that the ledger has the receipt alone."""
        found = list[AdmittedRow]()
        for lease, peer, receipt in self.ledger.trust.scores_of(leases):
            verdicts = open_receipt(receipt, self.identity.authority).verdicts
            records = tuple((RecordId(one.record), one.index) for one in verdicts if one.rule is Rule.ADMITTED)
            found += [AdmittedRow(lease=lease, peer=peer, records=records)] if records else []
        return found

    def _refusal(self, row: AdmittedRow, rule: Rule, detail: str, now_ms: int) -> Refusal:
        """How these records are refused after all, and the receipt that says so to the peer of their lease."""
        detail = detail[:MAX_REASON_CHARS]
        verdicts = [Verdict(record=record, index=index, rule=rule, detail=detail) for record, index in row.records]
        receipt = Receipt(
            lease=row.lease,
            peer=row.peer,
            version=self.capacity.chain.head,
            issued_ms=now_ms,
            tokens=0,
            verdicts=verdicts,
            certificate=self.identity.certificate,
        )
        return rule, detail, sign(self.identity.keypair, self.identity.swarm, receipt)

    async def recall(self, peer: PeerId) -> None:
        """A peer comes back: read what it was not told."""
        if untold := await trio.to_thread.run_sync(self.ledger.trust.untold_revisions, peer, MAX_UNTOLD):
            self._untold[peer] = untold

    def announce(self, peer: PeerId, receipts: Mapping[LeaseId, bytes]) -> None:
        """The peer is told with its next heartbeats; one that is not here, when it comes back, from the ledger."""
        presence = self.state.session_of(peer)
        if receipts and presence is not None and presence.takes_revisions:
            self._untold[peer] = [*self._untold.get(peer, []), *receipts.items()][:MAX_UNTOLD]

    def tell(self, peer: PeerId) -> None:
        """A sign of life: tell the peer what was revised, if it understands that."""
        presence = self.state.session_of(peer)
        if presence is None or not presence.takes_revisions or not (untold := self._untold.get(peer)):
            return
        told, rest = untold[:TOLD_TOGETHER], untold[TOLD_TOGETHER:]
        for _, receipt in told:
            self.signals.tell(peer, Revised(receipt=receipt))
        if rest:
            self._untold[peer] = rest
        else:
            del self._untold[peer]
        self._told += [lease for lease, _ in told]

    def forget(self, peer: PeerId) -> None:
        """The peer is gone: what it was not told is read from the ledger when it comes back."""
        self._untold.pop(peer, None)

    def _say_farewell(self, news: PeerBanned) -> None:
        """Tell it what it can still read."""
        self.tell(news.peer)
        self.forget(news.peer)

    def write(self) -> Callable[[], None]:
        """What the ledger does not know yet, to be called on a thread."""
        told, self._told = self._told, []
        return lambda: self.ledger.trust.revisions_told(told) if told else None
