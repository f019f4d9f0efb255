"""Sign receipts again if admitted records are rejected later, and send them to their peers.

Invariants:

- A revised receipt names the peer of its lease, and replaces the one before. It is sent to that peer, on every new
  connection until it was sent.
- If records are admitted after their peer was banned, they are soon rejected, and their group is not trained on.
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
"""Why groups are dropped that a banned peer opened, or contributed a turn to."""

TOLD_TOGETHER = 16
"""At most so many revised receipts are sent with one heartbeat. A connection has room for a few hundred answers."""

MAX_UNTOLD = 16 * TOLD_TOGETHER
"""At most so many revised receipts wait for a peer's heartbeats. Others come from the ledger when it comes again."""


def banned_detail(why: str) -> str:
    """Return why a record is rejected whose peer is banned for the reason `why`."""
    return f"its peer is banned: {why}"


Rejection = tuple[Rule, str, bytes]
"""The rule by which records are rejected later, the detail, and the revised receipt."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """A lease of a banned peer whose records were admitted nevertheless.

    `why`: the detail of the rejection. `root`: the lease that opened the group which is therefore not trained on; None
    if it is too late, or no group waited for the lease.
    """

    lease: LeaseId
    root: LeaseId | None
    why: str


@dataclass(kw_only=True, eq=False)
class ReceiptRevisions(Service):
    """Rejects admitted records, and sends revised receipts. `wakeup` is set when `settle` has something to do."""

    standings: PeerStandings
    takes_back: Callable[[PeerId], Collection[LeaseId]] = lambda peer: ()
    """Withdraws what a peer delivered besides rollouts, and returns the leases concerned."""
    wakeup: trio.Event = field(default_factory=trio.Event)
    _late: list[Late] = field(default_factory=list)
    _untold: dict[PeerId, list[tuple[LeaseId, bytes]]] = field(default_factory=dict)
    _told: list[LeaseId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.signals.peer_banned.subscribe(self._say_farewell)

    def reject_late(self, late: Late) -> None:
        """Note records that `settle` will reject soon."""
        self._late.append(late)
        self.wakeup.set()

    async def settle(self) -> None:
        """Write the rejections that wait."""
        if not self._late:
            return
        async with self.standings.lock:
            late, self._late = self._late, []

            def write() -> None:
                now_ms, revised = self.context.signing_ms(), dict[LeaseId, Rejection]()
                for one in late:
                    revised |= self.rejections([one.lease], Rule.BANNED, one.why, now_ms)
                dropped = {one.root: BANNED_REASON for one in late if one.root is not None}
                self.ledger.trust.verdicts_revised(revised, now_ms, dropped)

            await trio.to_thread.run_sync(write)

    def rejections(self, leases: Collection[LeaseId], rule: Rule, detail: str, now_ms: int) -> dict[LeaseId, Rejection]:
        """On a thread: return rejections of the admitted records of these leases, with receipts for their peers.

        Rollouts that a step has taken stay admitted.
        """
        rows = [*self.ledger.trust.admitted_of(leases), *self._scores_of(leases)]
        return {row.lease: self._rejection(row, rule, detail, now_ms) for row in rows}

    def _scores_of(self, leases: Collection[LeaseId]) -> list[AdmittedRow]:
        """Return the scores that teachers delivered for these leases. The ledger has only their receipts."""
        found = list[AdmittedRow]()
        for lease, peer, receipt in self.ledger.trust.scores_of(leases):
            verdicts = open_receipt(receipt, self.identity.authority).verdicts
            records = tuple((RecordId(one.record), one.index) for one in verdicts if one.rule is Rule.ADMITTED)
            found += [AdmittedRow(lease=lease, peer=peer, records=records)] if records else []
        return found

    def _rejection(self, row: AdmittedRow, rule: Rule, detail: str, now_ms: int) -> Rejection:
        """Return the rejection of these records, with a receipt for their peer."""
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
        """Read the revised receipts that a returning peer has not got."""
        if untold := await trio.to_thread.run_sync(self.ledger.trust.untold_revisions, peer, MAX_UNTOLD):
            self._untold[peer] = untold

    def announce(self, peer: PeerId, receipts: Mapping[LeaseId, bytes]) -> None:
        """Send revised receipts to a peer with its next heartbeats. An absent peer gets them when it comes back."""
        presence = self.state.session_of(peer)
        if receipts and presence is not None and presence.takes_revisions:
            self._untold[peer] = [*self._untold.get(peer, []), *receipts.items()][:MAX_UNTOLD]

    def tell(self, peer: PeerId) -> None:
        """After a heartbeat: send the peer revised receipts, if it supports them."""
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
        """Forget the receipts that wait for a peer that is gone. They are read from the ledger when it comes back."""
        self._untold.pop(peer, None)

    def _say_farewell(self, news: PeerBanned) -> None:
        """Send a banned peer the receipts that it can still get."""
        self.tell(news.peer)
        self.forget(news.peer)

    def write(self) -> Callable[[], None]:
        """Return a function that writes pending changes to the ledger. Call it on a thread."""
        told, self._told = self._told, []
        return lambda: self.ledger.trust.write_revisions_sent(told) if told else None
