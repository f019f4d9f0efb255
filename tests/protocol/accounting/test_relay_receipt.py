"""Relay receipts are read as they were signed, by any signer, at any size."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounting.relay_receipt import (
    MAX_RELAY_RECEIPT_BYTES,
    RelayReceipt,
    open_relay_receipt,
    relay_receipt,
)
from protocol.core.codec import encode
from protocol.core.envelope import OVERHEAD_BYTES, Kind, seal, sign
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import found_swarm
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PeerId
from protocol.core.limits import MAX_CHUNKS, MAX_RELAYS, MAX_WORK_BYTES
from protocol.work import Relayed

OPERATOR, RECEIVER, OTHER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
_, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
_, ELSEWHERE = found_swarm(OPERATOR, name="kites", created_ms=1, nonce=bytes(16))
MANIFEST = ManifestHash(b"\x8a" * 32)
PEERS = [Keypair(number.to_bytes(32, "big")).peer_id for number in range(100, 104)]
RECEIPT = RelayReceipt(manifest=MANIFEST, relays=[PEERS[0], PEERS[1]], first=4, givers=bytes([1, 0, 2, 1]))


def fault_of(raw: bytes) -> Fault:
    with pytest.raises(PeerError) as caught:
        open_relay_receipt(raw, SWARM.swarm, receiver=RECEIVER.peer_id)
    return caught.value.fault


@given(st.dictionaries(st.integers(0, MAX_CHUNKS - 1) | st.integers(0, 50), st.sampled_from(PEERS), max_size=30))
def test_every_giver_comes_back(givers: dict[int, PeerId]) -> None:
    receipt = relay_receipt(MANIFEST, givers)
    if receipt is None:
        assert givers == {}
        return
    raw = sign(RECEIVER, SWARM.swarm, receipt)
    read = open_relay_receipt(raw, SWARM.swarm, receiver=RECEIVER.peer_id)
    assert (read, read.by_chunk()) == (receipt, givers)
    assert list(read.by_chunk()) == sorted(givers)
    assert 0 not in (read.givers[0], read.givers[-1]), "no byte is spent outside"


def test_a_byte_stands_for_a_chunk() -> None:
    assert RECEIPT.by_chunk() == {4: PEERS[0], 6: PEERS[1], 7: PEERS[0]}
    assert relay_receipt(MANIFEST, RECEIPT.by_chunk()) == RECEIPT


def test_of_too_many_givers_those_who_gave_most_are_named() -> None:
    crowd = [Keypair(number.to_bytes(32, "big")).peer_id for number in range(1, MAX_RELAYS + 3)]
    gave_two = dict(enumerate(crowd[2:] * 2))
    gave_one = {2000 + number: peer for number, peer in enumerate(crowd[:2])}
    receipt = relay_receipt(MANIFEST, gave_one | gave_two)
    assert receipt is not None
    assert Counter(receipt.by_chunk().values()) == dict.fromkeys(crowd[2:], 2)
    sign(RECEIVER, SWARM.swarm, receipt)


def test_the_largest_receipt_fits_its_limit_and_a_frame() -> None:
    crowd = [Keypair(number.to_bytes(32, "big")).peer_id for number in range(1, MAX_RELAYS + 1)]
    largest = RelayReceipt(manifest=MANIFEST, relays=list(crowd), first=MAX_CHUNKS - 1, givers=b"\xff" * MAX_CHUNKS)
    raw = sign(RECEIVER, SWARM.swarm, largest)
    assert len(encode(largest)) <= MAX_RELAY_RECEIPT_BYTES
    assert open_relay_receipt(raw, SWARM.swarm, receiver=RECEIVER.peer_id) == largest
    assert len(encode(Relayed(receipt=bytes(MAX_RELAY_RECEIPT_BYTES + OVERHEAD_BYTES)))) < MAX_WORK_BYTES


def test_a_receipt_of_anybody_else_or_elsewhere_is_refused() -> None:
    assert fault_of(sign(OTHER, SWARM.swarm, RECEIPT)) is Fault.UNAUTHORISED
    assert fault_of(sign(RECEIVER, ELSEWHERE.swarm, RECEIPT)) is Fault.WRONG_SWARM
    assert fault_of(seal(RECEIVER, SWARM.swarm, Kind.RECEIPT, encode(RECEIPT))) is Fault.WRONG_KIND
    raw = sign(RECEIVER, SWARM.swarm, RECEIPT)
    assert fault_of(raw[:-1] + bytes([raw[-1] ^ 1])) is Fault.BAD_SIGNATURE


BAD: dict[str, dict[str, Any]] = {
    "nobody": {"relays": []},
    "too many relays": {"relays": [PEERS[0]] * (MAX_RELAYS + 1)},
    "half a peer id": {"relays": [PEERS[0][:-1]]},
    "no chunks": {"givers": b""},
    "too many chunks": {"givers": bytes(MAX_CHUNKS + 1)},
    "a negative chunk": {"first": -1},
    "half a hash": {"manifest": MANIFEST[:-1]},
}


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD.keys())
def test_a_receipt_out_of_bounds_is_never_signed_and_never_read(changes: dict[str, Any]) -> None:
    bad = msgspec.structs.replace(RECEIPT, **changes)
    with pytest.raises(LocalProtocolError, match=f"RelayReceipt.*{next(iter(changes))}"):
        sign(RECEIVER, SWARM.swarm, bad)
    assert fault_of(seal(RECEIVER, SWARM.swarm, Kind.RELAY_RECEIPT, encode(bad))) is Fault.MALFORMED


@pytest.mark.parametrize("changes", [{"givers": b"\1\3"}, {"relays": [PEERS[0]]}, {"relays": [PEERS[0], PEERS[0]]}])
def test_a_giver_that_is_not_listed_or_listed_twice_is_refused(changes: dict[str, Any]) -> None:
    bad = msgspec.structs.replace(RECEIPT, **changes)
    assert fault_of(sign(RECEIVER, SWARM.swarm, bad)) is Fault.MALFORMED
