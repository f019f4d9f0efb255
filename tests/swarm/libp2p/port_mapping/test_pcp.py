"""The datagrams of PCP, byte by byte after RFC 6887, and what no gateway may make of them."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.port_mapping import pcp
from swarm.libp2p.port_mapping.outcomes import BadDatagram

OWN = ipaddress.IPv4Address("192.0.2.33")
NOWHERE = ipaddress.IPv4Address("0.0.0.0")
NONCE = bytes(range(12))

REQUEST = bytes.fromhex(
    "02"  # version 2
    "01"  # R 0, opcode 1: MAP
    "0000"  # reserved
    "000004b0"  # lifetime 1200 s
    "00000000000000000000ffffc0000221"  # client ::ffff:192.0.2.33
    "000102030405060708090a0b"  # nonce
    "06"  # TCP
    "000000"  # reserved
    "0fa1"  # internal port 4001
    "0fa1"  # suggested external port 4001
    "00000000000000000000ffff00000000"  # suggested external address: no wish
)

ANSWER = bytes.fromhex(
    "02"  # version 2
    "81"  # R 1, opcode 1: MAP
    "00"  # reserved
    "00"  # success
    "00000258"  # lifetime 600 s
    "00012345"  # epoch
    "000000000000000000000000"  # reserved
    "000102030405060708090a0b"  # nonce
    "06"  # TCP
    "000000"  # reserved
    "0fa1"  # internal port 4001
    "4e20"  # assigned external port 20000
    "00000000000000000000ffff1e4d0001"  # assigned external address ::ffff:30.77.0.1
)


def changed(at: int, new: bytes) -> bytes:
    return ANSWER[:at] + new + ANSWER[at + len(new) :]


def test_a_request_is_written_as_the_rfc_has_it() -> None:
    written = pcp.encode_map(
        client=OWN, nonce=NONCE, internal_port=4001, external_port=4001, external=NOWHERE, lifetime_s=1200
    )
    assert written == REQUEST


def test_an_announce_request_is_the_header_alone() -> None:
    assert pcp.encode_announce(OWN) == b"\x02\x00" + bytes(6) + REQUEST[8:24]


def test_ipv6_addresses_are_written_as_they_are() -> None:
    own = ipaddress.IPv6Address("2a00:77:1::2")
    assert pcp.encode_announce(own)[8:] == own.packed


def test_an_answer_is_read() -> None:
    assert pcp.decode_answer(ANSWER) == pcp.MapAnswer(
        opcode=pcp.Opcode.MAP,
        result=pcp.Result.SUCCESS,
        lifetime_s=600,
        epoch=0x12345,
        nonce=NONCE,
        protocol=pcp.TCP,
        internal_port=4001,
        external_port=20000,
        external_host=ipaddress.IPv4Address("30.77.0.1"),
    )


def test_a_refusal_is_read_with_the_pause_that_it_wants() -> None:
    answer = pcp.decode_answer(changed(3, b"\x08"))
    assert isinstance(answer, pcp.MapAnswer)
    assert (answer.result, answer.lifetime_s) == (pcp.Result.NO_RESOURCES, 600)
    assert pcp.explain(answer.result) == "the router has no room for another mapping"


def test_a_refusal_may_be_the_header_alone() -> None:
    answer = pcp.decode_answer(changed(3, b"\x02")[:24])
    assert answer == pcp.PcpAnswer(opcode=pcp.Opcode.MAP, result=2, lifetime_s=600, epoch=0x12345)


def test_options_at_the_end_are_skipped() -> None:
    assert pcp.decode_answer(ANSWER + bytes(8)) == pcp.decode_answer(ANSWER)


@pytest.mark.parametrize(
    ("datagram", "speaks"),
    [
        (bytes.fromhex("0081000100000007"), 0),  # a NAT-PMP gateway: version 0, result 1 in two bytes, epoch 7
        (bytes.fromhex("018100010000000000000007") + bytes(12), 1),  # an older PCP
        (bytes.fromhex("028100010000000000000007") + bytes(12), 2),
    ],
)
def test_another_version_is_told(datagram: bytes, speaks: int) -> None:
    answer = pcp.decode_answer(datagram)
    assert isinstance(answer, pcp.VersionUnsupported)
    assert answer.speaks == speaks


@pytest.mark.parametrize(
    ("datagram", "why"),
    [
        (b"", "0 bytes"),
        (ANSWER[:20], "20 bytes"),
        (ANSWER[:56], "56 bytes are too few for a mapping"),
        (ANSWER + b"\0", "61 bytes"),
        (ANSWER + bytes(1044), "1104 bytes"),
        (changed(0, b"\x03"), "its version is 3"),
        (changed(1, b"\x01"), "it is a request"),
        (changed(42, b"\0\0"), "port 0"),
        (changed(56, b"\0\0\0\0"), "others cannot dial 0.0.0.0"),
        (changed(56, b"\x7f\0\0\x01"), "others cannot dial 127.0.0.1"),
        (changed(56, b"\xe0\0\0\x01"), "others cannot dial 224.0.0.1"),
        (changed(44, bytes(16)), "others cannot dial ::"),
    ],
)
def test_a_wrong_datagram_is_rejected_with_its_reason(datagram: bytes, why: str) -> None:
    with pytest.raises(BadDatagram, match=why):
        pcp.decode_answer(datagram)


def test_a_deletion_is_confirmed_without_an_address() -> None:
    answer = pcp.decode_answer(changed(4, bytes(4))[:42] + bytes(18))
    assert isinstance(answer, pcp.MapAnswer)
    assert answer.lifetime_s == 0


@given(st.binary(max_size=128) | st.binary(max_size=60).map(lambda tail: ANSWER[: 60 - len(tail)] + tail))
def test_no_datagram_does_more_than_be_rejected(datagram: bytes) -> None:
    try:
        answer = pcp.decode_answer(datagram)
    except BadDatagram:
        return
    if isinstance(answer, pcp.MapAnswer) and answer.result == pcp.Result.SUCCESS and answer.lifetime_s:
        assert answer.external_port > 0
        assert not answer.external_host.is_unspecified


@given(st.integers(0, 255))
def test_every_result_has_a_sentence(result: int) -> None:
    assert pcp.explain(result).startswith(("the router", "this machine", "another router", "too many"))
