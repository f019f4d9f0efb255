"""Relay receipts on the learner: taken in, held against the versions that are fresh, credited in the ledger.

What always holds: a receipt is believed to be of its sender only after its signature was checked, and then
`learner.trust.relay_credit` decides; a credit is in the ledger once, with our signed note of it, whatever was credited
before a restart. Neither what is heard nor what is admitted ever waits for it. A crash loses the receipts that
wait for a record; nodes say the latest again when they come back, and whose records were trained on before is read from
the ledger.

Loop: `run` consumes what was heard and admitted, wakes when there is some.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import trio

from learner.trust.relay_credit import (
    MAX_VERSIONS,
    Credit,
    ReceiptHeard,
    RecordAdmitted,
    RelayCredit,
    VersionOffered,
    VersionRetired,
)
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import RecordsBelieved
from protocol.accounting.credit_note import CreditNote, RelayShare
from protocol.accounting.relay_receipt import RelayReceipt, open_relay_receipt
from protocol.core.digest import digest_of
from protocol.core.envelope import sign
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion
from swarm.work.client import RELAYED_KEPT

MAX_HEARD = 1024
"""Receipts not yet looked at: one of each peer that may be connected; all speak after a version, or a restart."""

MAX_HEARD_OF_ONE = RELAYED_KEPT
"""The same of one peer: what an honest node says at most in one breath. What is beyond is as if it had been lost."""

MAX_HEARD_BYTES = 64 << 20
"""The same in bytes: while the trainer loads, nobody looks at what is heard."""

Window = Mapping[PolicyVersion, ManifestHash]


@dataclass(frozen=True, kw_only=True)
class _Heard:
    peer: PeerId
    receipt: RelayReceipt
    raw: bytes


@dataclass(kw_only=True, eq=False)
class RelayCreditService(Service):
    """See the module's paragraph."""

    _heard: list[_Heard] = field(default_factory=list)
    _used: set[tuple[PeerId, ManifestHash]] = field(default_factory=set)
    _news: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self._core = RelayCredit(learner=self.identity.keypair.peer_id)
        self.signals.records_believed.subscribe(self._note_believed)

    def hear(self, peer: PeerId, raw: bytes) -> None:
        """Take in a receipt that `peer` brought, if there is room; PeerError when it is not one of its own."""
        if self._has_room_for(peer, raw):
            receipt = open_relay_receipt(raw, self.identity.authority.swarm, receiver=peer)
            self._heard.append(_Heard(peer=peer, receipt=receipt, raw=raw))
            self._news.set()

    def _note_believed(self, news: RecordsBelieved) -> None:
        used = {(news.peer, manifest) for manifest in news.manifests if not self._core.is_proven(news.peer, manifest)}
        if used:
            self._used |= used
            self._news.set()

    async def run(self) -> None:
        """Credit what can be credited, until cancelled; what was heard by then is not forgotten."""
        await self.state.opened.wait()
        try:
            await trio.to_thread.run_sync(self._recover, self._window())
            while True:
                await self._news.wait()
                await self._settle()
        finally:
            await self._settle()

    def _has_room_for(self, peer: PeerId, raw: bytes) -> bool:
        mine = sum(heard.peer == peer for heard in self._heard)
        size = sum(len(heard.raw) for heard in self._heard)
        return len(self._heard) < MAX_HEARD and mine < MAX_HEARD_OF_ONE and size + len(raw) <= MAX_HEARD_BYTES

    def _window(self) -> Window:
        """The newest versions whose rollouts may still be admissible."""
        return dict(sorted(self.capacity.manifests.items(), reverse=True)[:MAX_VERSIONS])

    async def _settle(self) -> None:
        self._news = trio.Event()
        heard, self._heard = self._heard, []
        used, self._used = self._used, set()
        window = self._window()
        with trio.CancelScope(shield=True):  # or what was just taken out would be lost when the learner stops
            credits = await trio.to_thread.run_sync(self._credit, heard, used, window, self.context.signing_ms())
        for credit in credits:
            self.events.emit(
                "relays_credited",
                peer=credit.receiver,
                version=next(str(version) for version, manifest in window.items() if manifest == credit.manifest),
                relays=len(credit.shares),
                bytes=sum(credit.shares.values()),
            )

    # On a worker thread, one call at a time.

    def _recover(self, window: Window) -> None:
        """Whose records were trained on before this start; an oldest version each is what the ledger knows. Of what
        waits for a batch, `used` is told."""
        self._follow(window)
        for peer, version in self.ledger.peers.users_of(window.keys()):
            self._core.handle(RecordAdmitted(receiver=peer, manifest=window[version]))

    def _credit(
        self, heard: list[_Heard], used: set[tuple[PeerId, ManifestHash]], window: Window, now_ms: int
    ) -> list[Credit]:
        """Return what was credited and is on disk."""
        self._follow(window)
        credits = []
        for one in heard:
            if one.receipt.manifest in self._core.versions:
                credits += self._core.handle(self._event(one))
        for peer, manifest in used:
            credits += self._core.handle(RecordAdmitted(receiver=peer, manifest=manifest))
        noted = partial(self._note, now_ms)
        return self.ledger.peers.relays_credited(credits, now_ms, noted) if credits else []

    def _note(self, now_ms: int, credit: Credit) -> bytes:
        """Our signed word on a credit, for whoever checks the books without the manifest."""
        note = CreditNote(
            receipt=digest_of(credit.raw),
            manifest=credit.manifest,
            receiver=credit.receiver,
            shares=[RelayShare(relay, size) for relay, size in sorted(credit.shares.items())],
            issued_ms=now_ms,
            certificate=self.identity.certificate,
        )
        return sign(self.identity.keypair, self.identity.authority.swarm, note)

    def _event(self, heard: _Heard) -> ReceiptHeard:
        return ReceiptHeard(
            receiver=heard.peer,
            manifest=ManifestHash(heard.receipt.manifest),
            givers=heard.receipt.by_chunk(),
            members=self.ledger.peers.members([PeerId(relay) for relay in heard.receipt.relays]),
            raw=heard.raw,
        )

    def _follow(self, window: Window) -> None:
        """Have the core know the versions of the window and no others."""
        fresh = set(window.values())
        known = set(self._core.versions)
        for manifest in known - fresh:
            self._core.handle(VersionRetired(manifest=manifest))
        for manifest in fresh - known:
            if (signed := self.context.store.manifest(manifest)) is not None:
                sizes = array("I", (chunk.size for chunk in signed.manifest.chunks))
                total_bytes = signed.manifest.total_bytes
                self._core.handle(VersionOffered(manifest=manifest, sizes=sizes, total_bytes=total_bytes))
