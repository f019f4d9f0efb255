"""The datagrams of NAT-PMP, byte by byte after RFC 6886, and what no gateway may make of them."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.port_mapping import nat_pmp
from swarm.libp2p.port_mapping.outcomes import BadDatagram

ADDRESS = bytes.fromhex(
    "00"  # version 0
    "80"  # answer to opcode 0
    "0000"  # success
    "00000e10"  # epoch: an hour
    "1e4d0001"  # 30.77.0.1
)

PORT = bytes.fromhex(
    "00"  # version 0
    "82"  # answer to opcode 2: TCP
    "0000"  # success
    "00000e10"  # epoch
    "0fa1"  # internal port 4001
    "4e20"  # external port 20000
    "00001c20"  # lifetime 7200 s
)


def test_requests_are_written_as_the_rfc_has_them() -> None:
    assert nat_pmp.encode_address_request() == b"\0\0"
    assert nat_pmp.encode_map(internal_port=4001, external_port=4001, lifetime_s=7200) == bytes.fromhex(
        "00"  # version 0
        "02"  # TCP
        "0000"  # reserved
        "0fa1"  # internal port 4001
        "0fa1"  # suggested external port
        "00001c20"  # lifetime 7200 s
    )


def test_answers_are_read() -> None:
    assert nat_pmp.decode_answer(ADDRESS) == nat_pmp.ExternalAddress(
        host=ipaddress.IPv4Address("30.77.0.1"), epoch=3600
    )
    assert nat_pmp.decode_answer(PORT) == nat_pmp.PortAnswer(
        internal_port=4001, external_port=20000, lifetime_s=7200, epoch=3600
    )


def test_a_refusal_is_read_whatever_follows() -> None:
    refused = PORT[:2] + b"\0\2" + PORT[4:]
    for size in (8, 12, 16):
        assert nat_pmp.decode_answer(refused[:size]) == nat_pmp.Failure(opcode=2, result=2, epoch=3600)
    assert nat_pmp.explain(2) == "the router does not allow it"


@pytest.mark.parametrize(
    ("datagram", "why"),
    [
        (PORT[:7], "7 bytes"),
        (b"\2" + PORT[1:], "its version is 2"),
        (b"\0\2" + PORT[2:], "it is a request"),
        (PORT[:10] + b"\0\0" + PORT[12:], "it grants port 0"),
        (PORT + b"\0", "opcode 2 with 17 bytes"),
        (b"\0\x81" + PORT[2:], "opcode 1 with 16 bytes"),
        (ADDRESS[:8] + bytes(4), "others cannot dial 0.0.0.0"),
        (ADDRESS[:8] + b"\xff\xff\xff\xff", "255.255.255.255 is the broadcast address"),
    ],
)
def test_a_wrong_datagram_is_rejected_with_its_reason(datagram: bytes, why: str) -> None:
    with pytest.raises(BadDatagram, match=why):
        nat_pmp.decode_answer(datagram)


@given(st.binary(max_size=32) | st.binary(max_size=16).map(lambda tail: PORT[: 16 - len(tail)] + tail))
def test_no_datagram_does_more_than_be_rejected(datagram: bytes) -> None:
    try:
        answer = nat_pmp.decode_answer(datagram)
    except BadDatagram:
        return
    if isinstance(answer, nat_pmp.PortAnswer) and answer.lifetime_s:
        assert answer.external_port > 0


@given(st.integers(0, 0xFFFF))
def test_every_result_has_a_sentence(result: int) -> None:
    assert nat_pmp.explain(result).startswith("the router")
