"""Tell an operator about the addresses that a learner announces."""

from __future__ import annotations

import socket

import pytest

from node.config.swarm_config import NetworkSection
from node.doctor.announced import WAIT_S, Asked, address_lines, ask_members, why_not_outside
from node.doctor.findings import LocalNetwork
from tests.support.doctor_findings import SEEN, evidence, tried

PRIVATE, PUBLIC = LocalNetwork(ip4=("192.168.1.2",)), LocalNetwork(ip4=("45.0.0.1",))
ANNOUNCED = NetworkSection(announce=[SEEN])


def lines(network: NetworkSection = ANNOUNCED, local: LocalNetwork = PRIVATE, asked: Asked | None = None) -> list[str]:
    return list(address_lines(network, local, asked))


def asked(**changes: object) -> Asked:
    return Asked(evidence=evidence(addresses=(tried(SEEN, "announced", **changes),)), num_came=1)  # type: ignore[arg-type]


def test_who_lets_nobody_join_is_told_no_more() -> None:
    assert lines(NetworkSection(listen=[])) == [
        "No node can join, because the learner listens on no address: [network] listen = []."
    ]


def test_before_anybody_is_here() -> None:
    [told] = lines()
    assert told.startswith(
        "Whether these addresses can be dialled from outside is not known: no member is here to ask."
    )
    [told] = lines(asked=Asked())
    assert f"no member came within {WAIT_S:.0f} s" in told


def test_a_member_has_dialled_it() -> None:
    assert lines(asked=asked(is_reached=True)) == [f"{SEEN} can be dialled from outside: a member has done so."]
    [told] = lines(asked=asked(failed_by=2))
    assert told.startswith(f"{SEEN} was dialled by 2 members without success. Forward that port")


def test_private_addresses_alone() -> None:
    told = lines(NetworkSection())
    assert told[0].startswith("No address is announced, and this machine's addresses (192.168.1.2) are private")
    assert len(lines(NetworkSection(), PUBLIC)) == 1


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (SEEN, ""),
        ("/dns/learner.example/tcp/4001", ""),
        ("/ip4/10.0.0.1/tcp/4001", "10.0.0.1 is an address of one network, and means nothing outside it"),
        ("/ip4/127.0.0.1/tcp/4001", "127.0.0.1 means the dialling machine itself"),
    ],
)
def test_addresses_that_mean_nothing_outside(address: str, why: str) -> None:
    assert why_not_outside(address) == why
    told = lines(NetworkSection(announce=[address]))
    assert (f"[network] announce: {address} cannot be dialled from other networks: {why}." in told) is bool(why)


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        found = await ask_members(bytes(32), NetworkSection(listen=[address]))
    assert found.failure.startswith(f"cannot listen on {address}")
    assert lines(asked=found)[-1].endswith("or set another port in [network] listen.")
