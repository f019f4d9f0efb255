"""Read addresses that others wrote."""

from __future__ import annotations

import pytest
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from swarm.libp2p.reachability.multiaddrs import from_bytes, to_bytes
from swarm.libp2p.sockets.addresses import Address

PEER = "12D3KooWRawPbxPtP1eZaJpumGnyWX2DcUyd3RQnydr3eAto4Az7"
HERE = Address(kind="ip4", host="192.0.2.1", port=4001)


def test_one_place_is_one_place_whether_or_not_its_peer_is_named() -> None:
    """js-libp2p names the peer behind an address at which it sees it; go-libp2p does not."""
    plain, named = to_bytes(str(HERE)), to_bytes(f"{HERE}/p2p/{PEER}")
    assert from_bytes([plain, named], 8) == [HERE]
    assert from_bytes([named], 8) == [HERE]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x04\x7f",
        Multiaddr("/ip4/192.0.2.1/udp/4001/quic-v1").to_bytes(),
        Multiaddr("/dns4/example.org/tcp/4001").to_bytes(),
        Multiaddr(f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit").to_bytes(),
        to_bytes(str(HERE)) * 100,
    ],
)
def test_what_we_cannot_dial_is_left_out(data: bytes) -> None:
    assert from_bytes([data, to_bytes(str(HERE))], 8) == [HERE]
