"""Relay receipts: a rollout node's signed word on who gave it which chunks of a version.

What always holds: a chunk has at most one giver, since there is one byte for each; whoever reads a receipt knows that
its signer is the receiver it is asked to be. It is a claim and no proof: what it is worth is decided where it is
credited, from the sizes that the manifest states, and the receipt states none.
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
    """Who gave the signer chunks of one version.

    Byte i of `givers` speaks of chunk `first` + i of the manifest's table: n is the n-th of `relays`, from 1; 0 is
    nobody, as for what came from the learner, was there before, or was made of a patch.
    """

    KIND: ClassVar[Kind] = Kind.RELAY_RECEIPT

    manifest: Bytes32
    relays: Annotated[list[PeerText], Meta(min_length=1, max_length=MAX_RELAYS)]
    first: Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)] = 0
    givers: Annotated[bytes, Meta(min_length=1, max_length=MAX_CHUNKS)]

    def by_chunk(self) -> dict[int, PeerId]:
        """The giver of each chunk that has one, chunks in order. Some may lie beyond the manifest's table."""
        return {self.first + place: PeerId(self.relays[giver - 1]) for place, giver in enumerate(self.givers) if giver}


def relay_receipt(manifest: ManifestHash, givers: Mapping[int, PeerId]) -> RelayReceipt | None:
    """The receipt for chunks of `manifest` by their givers, None when there are none.

    Of more than MAX_RELAYS givers those who gave most are named.
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
    """Return the receipt in `raw`; PeerError unless `receiver` signed it and its bytes name relays that it lists."""
    envelope = open_envelope(raw, kind=Kind.RELAY_RECEIPT, swarm=swarm, limit=MAX_RELAY_RECEIPT_BYTES)
    if envelope.signer != receiver:
        raise PeerError(Fault.UNAUTHORISED, f"a relay receipt signed by {envelope.signer}, brought by {receiver}")
    receipt: RelayReceipt = decode(RelayReceipt, envelope.payload, MAX_RELAY_RECEIPT_BYTES)
    if len(set(receipt.relays)) != len(receipt.relays):
        raise PeerError(Fault.MALFORMED, "relay receipt: a relay is listed twice")
    if max(receipt.givers) > len(receipt.relays):
        raise PeerError(Fault.MALFORMED, f"relay receipt: giver {max(receipt.givers)} of {len(receipt.relays)} relays")
    return receipt
