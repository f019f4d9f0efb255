"""Report the state of a mapped port, and wake the tasks that wait for it."""

from __future__ import annotations

import pytest
import trio

from swarm.libp2p.port_mapping.keeper import MappedPort, Stir, _combine
from swarm.libp2p.port_mapping.outcomes import MappedBy, NoAnswer, Refused
from swarm.libp2p.sockets.addresses import Address


@pytest.mark.parametrize(
    ("host", "behind"),
    [
        ("30.77.0.1", False),
        ("10.0.0.2", True),
        ("192.168.1.7", True),
        ("100.64.0.1", True),
        ("100.127.255.254", True),
        ("100.128.0.1", False),
    ],
)
def test_a_router_behind_another_is_told_by_its_address(host: str, behind: bool) -> None:
    mapped = MappedPort(
        address=Address(kind="ip4", host=host, port=4001),
        protocol=MappedBy.PCP,
        gateway="192.168.77.1",
        internal_port=4001,
        until_s=0.0,
    )
    assert mapped.is_behind_another_nat is behind


def test_an_ipv6_address_is_behind_no_nat() -> None:
    mapped = MappedPort(
        address=Address(kind="ip6", host="2a00:77:1::2", port=4001),
        protocol=MappedBy.PCP,
        gateway="fe80::1%eth0",
        internal_port=4001,
        until_s=0.0,
    )
    assert not mapped.is_behind_another_nat


def test_refusals_of_all_protocols_are_told_together() -> None:
    refusals = [Refused(why="a", wait_s=3.0), Refused(why="b", is_conflict=True), Refused(why="a")]
    assert _combine(refusals, 4) == Refused(why="a; b", wait_s=3.0)
    assert isinstance(_combine([], 6), NoAnswer)


async def test_who_was_busy_is_woken_when_it_waits(autojump_clock: trio.testing.MockClock) -> None:
    stir = Stir()
    seen = stir.count
    stir.stir()
    await stir.wait_beyond(seen)
    seen = stir.count
    with trio.move_on_after(100):
        await stir.wait_beyond(seen)
        raise AssertionError("nobody stirred")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stir.wait_beyond, seen)
        await trio.sleep(1)
        stir.stir()
