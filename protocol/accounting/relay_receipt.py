"""Define relay receipts: a rollout node's signed statement of which peers gave it which chunks of a version.

A relay receipt is a claim, not a proof, and states no sizes. The learner decides the credit, from the sizes in the
manifest.

Invariants:

- A chunk has at most one giver, because the receipt has one byte for each chunk.
- `open_relay_receipt` returns a receipt only if the expected receiver signed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import Meta

from protocol.core.codec import Bytes32, PeerText, decode
from protocol.core.envelope import Kind, Signable, open_envelope
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import ManifestHash, PeerId, SwarmId
from protocol.core.limits import MAX_CHUNKS, MAX_RELAYS

MAX_RELAY_RECEIPT_BYTES = MAX_CHUNKS + 54 * MAX_RELAYS + 4096


class RelayReceipt(Signable, frozen=True, kw_only=True):
    """The peers that gave the signer chunks of one version.

    Byte i of `givers` is about chunk `first` + i of the manifest's table. n is the n-th of `relays`, from 1. 0 means no
    relay: the chunk came from the learner, was stored before, or was made from a patch.
    """

    KIND: ClassVar[Kind] = Kind.RELAY_RECEIPT

    manifest: Bytes32
    relays: Annotated[list[PeerText], Meta(min_length=1, max_length=MAX_RELAYS)]
    first: Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)] = 0
    givers: Annotated[bytes, Meta(min_length=1, max_length=MAX_CHUNKS)]

    def by_chunk(self) -> dict[int, PeerId]:
        """Return the giver of each chunk that has one, in order of chunks. Numbers may exceed the manifest's table."""
        return {self.first + place: PeerId(self.relays[giver - 1]) for place, giver in enumerate(self.givers) if giver}


def relay_receipt(manifest: ManifestHash, givers: Mapping[int, PeerId]) -> RelayReceipt | None:
    """Return the receipt for chunks of `manifest` by their givers, or None if there are no givers.

    If there are more than MAX_RELAYS givers, it names those that gave most chunks.
    """
    relays = [peer for peer, _ in Counter(givers.values()).most_common(MAX_RELAYS)]
    number = {peer: place for place, peer in enumerate(relays, 1)}
    named = {chunk: number[peer] for chunk, peer in givers.items() if peer in number}
    if not named:
        return None
    first = min(named)
    table = bytearray(max(named) - first + 1)
    for chunk, giver in named.items():
        table[chunk - first] = giver
    return RelayReceipt(manifest=manifest, relays=list(relays), first=first, givers=bytes(table))


def open_relay_receipt(raw: bytes, swarm: SwarmId, *, receiver: PeerId) -> RelayReceipt:
    """Return the receipt in `raw`. Raise PeerError unless `receiver` signed it and its bytes name listed relays."""
    envelope = open_envelope(raw, kind=Kind.RELAY_RECEIPT, swarm=swarm, limit=MAX_RELAY_RECEIPT_BYTES)
    if envelope.signer != receiver:
        raise PeerError(Fault.UNAUTHORISED, f"{receiver} delivered a relay receipt that {envelope.signer} signed")
    receipt: RelayReceipt = decode(RelayReceipt, envelope.payload, MAX_RELAY_RECEIPT_BYTES)
    if len(set(receipt.relays)) != len(receipt.relays):
        raise PeerError(Fault.MALFORMED, "relay receipt: a relay is listed twice")
    if max(receipt.givers) > len(receipt.relays):
        raise PeerError(Fault.MALFORMED, f"relay receipt: giver {max(receipt.givers)} of {len(receipt.relays)} relays")
    return receipt
