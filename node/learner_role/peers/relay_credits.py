"""Credit relays for the chunks in relay receipts, and record the credits in the ledger.

A crash loses the receipts that wait for a record. Nodes send their latest receipts again when they return, and the
ledger knows which peers' records were trained on before.

Invariants:

- The signature of a receipt is checked before anything else. Then `learner.trust.relay_credit` decides.
- A credit is in the ledger once, with our signed note of it, also after a restart.
- Neither sessions nor intake wait for this service.

Loop: `run` consumes receipts and admitted records, and wakes when there are some.
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
"""Most receipts that wait: one of each peer that may be connected, since all send one after a version or a restart."""

MAX_HEARD_OF_ONE = RELAYED_KEPT
"""Most receipts of one peer that wait: as many as an honest node sends at once. Others are dropped, as if they were
lost."""

MAX_HEARD_BYTES = 64 << 20
"""Most bytes of receipts that wait. While the trainer loads, none is processed."""

Window = Mapping[PolicyVersion, ManifestHash]


@dataclass(frozen=True, kw_only=True)
class _Heard:
    peer: PeerId
    receipt: RelayReceipt
    raw: bytes


@dataclass(kw_only=True, eq=False)
class RelayCreditService(Service):
    """Collects receipts and admitted records, and credits relays."""

    _heard: list[_Heard] = field(default_factory=list)
    _used: set[tuple[PeerId, ManifestHash]] = field(default_factory=set)
    _news: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self._core = RelayCredit(learner=self.identity.keypair.peer_id)
        self.signals.records_believed.subscribe(self._note_believed)

    def hear(self, peer: PeerId, raw: bytes) -> None:
        """Accept a receipt of `peer`, if there is room. Raises PeerError if the receipt is not the peer's own."""
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
        """Credit relays until cancelled, and then process the receipts that still wait."""
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
        """Return the newest versions whose rollouts may still be admissible."""
        return dict(sorted(self.capacity.manifests.items(), reverse=True)[:MAX_VERSIONS])

    async def _settle(self) -> None:
        self._news = trio.Event()
        heard, self._heard = self._heard, []
        used, self._used = self._used, set()
        window = self._window()
        with trio.CancelScope(shield=True):  # otherwise these would be lost when the learner stops
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
        """Read from the ledger which peers' records were trained on before this start, by their oldest version.

        Records that wait for a batch come by `used` instead.
        """
        self._follow(window)
        for peer, version in self.ledger.peers.users_of(window.keys()):
            self._core.handle(RecordAdmitted(receiver=peer, manifest=window[version]))

    def _credit(
        self, heard: list[_Heard], used: set[tuple[PeerId, ManifestHash]], window: Window, now_ms: int
    ) -> list[Credit]:
        """Compute the credits, write them, and return those that are on disk."""
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
        """Return a signed note of a credit, for people who check the ledger without the manifest."""
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
        """Update the core so that it knows exactly the versions of the window."""
        fresh = set(window.values())
        known = set(self._core.versions)
        for manifest in known - fresh:
            self._core.handle(VersionRetired(manifest=manifest))
        for manifest in fresh - known:
            if (signed := self.context.store.manifest(manifest)) is not None:
                sizes = array("I", (chunk.size for chunk in signed.manifest.chunks))
                total_bytes = signed.manifest.total_bytes
                self._core.handle(VersionOffered(manifest=manifest, sizes=sizes, total_bytes=total_bytes))
