"""Choose the addresses at which a peer is introduced to another, and the pairs that can connect."""

from __future__ import annotations

import pytest

from node.learner_role.peers.introductions import CIRCUITS_TOLD, addresses_for, meets_of, share_network
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_ADDRESSES
from protocol.reach import Reach, ReachKind
from swarm.work.neighbour_graph import Meets

PEER, LEARNER = (PeerId(f"12D3KooW{letter * 44}") for letter in "pL")
HOME, OUTSIDE = f"/ip4/192.168.1.7/tcp/4001/p2p/{PEER}", f"/ip4/45.1.2.3/tcp/4001/p2p/{PEER}"
RELAYS = {LEARNER: [f"/ip4/45.9.9.9/tcp/4001/p2p/{LEARNER}"]}
BY_RELAY = f"/ip4/45.9.9.9/tcp/4001/p2p/{LEARNER}/p2p-circuit/p2p/{PEER}"
ASKER = Reach(kind=ReachKind.UNKNOWN)


def told(reach: Reach | None, asker: Reach | None = ASKER, *, shares_network: bool = True) -> list[str]:
    found = addresses_for(asker, PEER, reach, [HOME, OUTSIDE], RELAYS, shares_network=shares_network)
    return list(found.addresses)


@pytest.mark.parametrize(
    ("kind", "meets"),
    [
        (None, Meets.ALL),
        (ReachKind.UNKNOWN, Meets.ALL),
        (ReachKind.OTHER, Meets.ALL),
        (ReachKind.DIRECTLY, Meets.ALL),
        (ReachKind.MAPPED, Meets.ALL),
        (ReachKind.BY_PUNCHING, Meets.MOST),
        (ReachKind.NOT, Meets.OPEN_ONES),
    ],
)
def test_whom_a_peer_can_meet(kind: ReachKind | None, meets: Meets) -> None:
    assert meets_of(None if kind is None else Reach(kind=kind)) is meets


def test_who_does_not_know_circuits_is_told_of_none_and_who_says_nothing_is_told_as_ever() -> None:
    behind = Reach(kind=ReachKind.BY_PUNCHING, relays=[LEARNER])
    assert told(behind, asker=None) == [HOME, OUTSIDE]
    assert told(None) == [HOME, OUTSIDE]


@pytest.mark.parametrize("kind", [ReachKind.BY_PUNCHING, ReachKind.NOT])
def test_who_cannot_be_dialled_is_told_at_home_and_through_relays(kind: ReachKind) -> None:
    assert told(Reach(kind=kind, relays=[LEARNER])) == [HOME, BY_RELAY]


@pytest.mark.parametrize("kind", [ReachKind.DIRECTLY, ReachKind.MAPPED])
def test_who_can_be_dialled_is_told_where_somebody_did(kind: ReachKind) -> None:
    reach = Reach(kind=kind, addresses=["/ip4/45.7.7.7/tcp/9"], relays=[LEARNER])
    assert told(reach) == [f"/ip4/45.7.7.7/tcp/9/p2p/{PEER}", HOME, OUTSIDE, BY_RELAY]


def test_a_relay_of_which_nobody_knows_where_it_is_is_left_out() -> None:
    assert told(Reach(kind=ReachKind.NOT, relays=["12D3KooW" + "x" * 44])) == [HOME]


def test_however_many_addresses_there_are_so_many_fit() -> None:
    reach = Reach(kind=ReachKind.UNKNOWN, relays=[LEARNER])
    many = [f"/ip4/45.0.0.{number}/tcp/1/p2p/{PEER}" for number in range(MAX_ADDRESSES)]
    some = addresses_for(ASKER, PEER, reach, many, RELAYS, shares_network=True).addresses
    assert len(some) <= MAX_ADDRESSES
    assert some[-1] == BY_RELAY
    assert len(some) - 1 == MAX_ADDRESSES - CIRCUITS_TOLD


def test_what_is_no_address_of_ours_is_not_told_as_one_at_home() -> None:
    behind = Reach(kind=ReachKind.NOT)
    found = addresses_for(ASKER, PEER, behind, ["/quic/nowhere", HOME], RELAYS, shares_network=True)
    assert list(found.addresses) == [HOME]


@pytest.mark.parametrize("reach", [None, *(Reach(kind=kind, relays=[LEARNER]) for kind in ReachKind)])
@pytest.mark.parametrize("asker", [None, ASKER])
def test_an_address_inside_a_network_is_told_to_nobody_outside(reach: Reach | None, asker: Reach | None) -> None:
    assert HOME in told(reach, asker)
    assert HOME not in told(reach, asker, shares_network=False)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("45.1.2.3", "45.1.2.3", True),
        ("45.1.2.3", "45.1.2.4", False),
        ("2a00:77:1::/64", "2a00:77:1::/64", True),
        ("2a00:77:1::/64", "45.1.2.3", False),
        ("192.168.1.7", "192.168.1.8", True),
        ("192.168.1.7", "45.1.2.3", False),
        ("127.0.0.1", "192.168.1.8", True),
        ("45.1.2.3", None, False),
        ("memory a", "memory b", False),
    ],
)
def test_which_origins_may_be_one_networks(one: str, other: str | None, shared: bool) -> None:
    assert share_network(one, other) is share_network(other, one) is shared
