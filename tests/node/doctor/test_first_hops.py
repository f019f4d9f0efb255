"""Find the routers on the way from the system's reports of datagrams that died."""

from __future__ import annotations

import socket
import sys

import pytest

from node.doctor.first_hops import ERROR, EXCEEDED, IP_RECVERR, UNREACHABLE, Answer, read_answer, routers_of


def control(host: str, kind: int, *, origin: int = 2) -> list[tuple[int, int, bytes]]:
    """As Linux has it: the error, then the address of who said so, its port before it."""
    error = ERROR.pack(113, origin, kind, 0, 0, 0, 0)
    offender = socket.AF_INET.to_bytes(2, sys.byteorder) + bytes(2) + socket.inet_aton(host) + bytes(8)
    return [(socket.IPPROTO_IP, IP_RECVERR, error + offender)]


@pytest.mark.parametrize(("kind", "is_end"), [(EXCEEDED, False), (UNREACHABLE, True)])
def test_who_said_so(kind: int, is_end: bool) -> None:
    assert read_answer(control("100.64.3.1", kind)) == Answer(host="100.64.3.1", is_end=is_end)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        control("10.0.0.1", EXCEEDED, origin=1),
        control("10.0.0.1", 0),
        [(socket.IPPROTO_IP, 2, bytes(64))],
        [(socket.IPPROTO_IP, IP_RECVERR, bytes(20))],
    ],
)
def test_what_no_router_said_is_no_answer(messages: list[tuple[int, int, bytes]]) -> None:
    assert read_answer(messages) is None


def test_routers_are_those_before_the_end_in_their_order() -> None:
    answers = {
        3: Answer(host="45.0.0.9", is_end=True),
        1: Answer(host="192.168.1.1", is_end=False),
        4: Answer(host="45.0.0.10", is_end=False),
    }
    assert routers_of(answers) == ("192.168.1.1",)
    assert routers_of({}) == ()
