"""Choose who must leave when all places are taken."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.fair_slots import Claim, FairRoom, origin_of

STRANGER, LAB = "192.0.2.66", "198.51.100.1"
KEPT_S = 10.0


def places_of(room: FairRoom, origin: str) -> int:
    """How many holders there are of this origin."""
    return room._places[True, origin] + room._places[False, origin]


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
    ],
)
def test_an_origin_is_an_address_or_the_network_of_one_customer(host: str, origin: str) -> None:
    assert origin_of(host) == origin


def test_one_address_displaces_only_its_own() -> None:
    room = FairRoom(size=64, kept_s=KEPT_S)
    for number in range(300):
        room.enter(number, STRANGER, float(number), Claim.UNKNOWN)
    assert room.enter(1000, LAB, 300.0, Claim.UNKNOWN) == 236  # the stranger's longest idle
    for number in range(301, 600):
        assert room.enter(number, STRANGER, float(number), Claim.UNKNOWN) != 1000
    assert 1000 in room


def test_without_others_one_address_may_have_every_place() -> None:
    """A laboratory behind one address."""
    room = FairRoom(size=64, kept_s=KEPT_S)
    assert [room.enter(number, LAB, 0.0, Claim.UNKNOWN) for number in range(64)] == [None] * 64
    assert places_of(room, LAB) == 64


def test_a_laboratory_and_an_attacker_share_alike() -> None:
    room = FairRoom(size=64, kept_s=KEPT_S)
    for number in range(300):
        room.enter(number, STRANGER, 0.0, Claim.UNKNOWN)
    for number in range(300, 360):
        room.enter(number, LAB, 1.0, Claim.UNKNOWN)
    assert (places_of(room, LAB), places_of(room, STRANGER)) == (32, 32)


def test_of_many_addresses_who_made_no_progress_for_longest_leaves() -> None:
    room = FairRoom(size=4, kept_s=KEPT_S)
    for number in range(4):
        room.enter(number, f"10.0.0.{number}", float(number), Claim.UNKNOWN)
    room.note_progress(0, 10.0)
    assert room.enter(4, "10.0.0.4", 11.0, Claim.UNKNOWN) == 1
    assert 0 in room


def test_many_unknown_addresses_displace_no_known_one_while_they_have_half() -> None:
    room = FairRoom(size=8, kept_s=KEPT_S)
    for number in range(4):
        room.enter(number, LAB, 0.0, Claim.KNOWN)
    for number in range(4, 300):
        room.enter(number, f"10.0.{number // 256}.{number % 256}", float(number), Claim.UNKNOWN)
    assert places_of(room, LAB) == 4


def test_known_ones_may_take_more_than_half_when_nobody_else_asks() -> None:
    room = FairRoom(size=8, kept_s=KEPT_S)
    assert [room.enter(number, LAB, 0.0, Claim.KNOWN) for number in range(8)] == [None] * 8
    assert room.enter(8, STRANGER, 1.0, Claim.UNKNOWN) == 0


def test_since_when_the_one_to_leave_made_no_progress() -> None:
    room = FairRoom(size=4, kept_s=KEPT_S)
    for number in range(3):
        room.enter(number, STRANGER, float(number), Claim.UNKNOWN)
    assert room.since(LAB, 9.0, Claim.UNKNOWN) == -math.inf, "there is room"
    room.enter(3, LAB, 0.5, Claim.UNKNOWN)
    assert room.since(LAB, 9.0, Claim.UNKNOWN) == 0.0, "the origin with most places must give one up"
    assert room.since(LAB, 9.0, Claim.KNOWN) == -math.inf, "it has more claim to the place"


def test_more_may_become_known_of_a_guest() -> None:
    room = FairRoom(size=4, kept_s=KEPT_S)
    for number in range(4):
        room.enter(number, STRANGER, float(number), Claim.UNKNOWN)
    for number in (0, 1):
        room.change(number, Claim.KNOWN)
    room.change(9, Claim.KNOWN)
    assert room.enter(4, LAB, 5.0, Claim.UNKNOWN) == 2


claims = st.sampled_from(list(Claim))
holders = st.lists(st.tuples(st.integers(0, 5), claims), min_size=1, max_size=40)


@given(holders, st.integers(1, 8))
def test_since_is_of_the_one_who_leaves(holders: list[tuple[int, Claim]], size: int) -> None:
    room, entered = FairRoom(size=size, kept_s=KEPT_S), dict[int, tuple[float, Claim]]()
    for number, (origin, claim) in enumerate(holders):
        before = repr(room)
        since = room.since(str(origin), float(number), claim)
        assert repr(room) == before
        entered[number] = float(number), claim
        victim = room.enter(number, str(origin), float(number), claim)
        if victim is None:
            assert since == -math.inf
        else:
            at, of = entered[victim]
            assert since == (at if of is claim else -math.inf)


def test_who_is_awaited_keeps_its_place_among_thousands() -> None:
    room = FairRoom(size=4, kept_s=KEPT_S)
    room.enter(0, LAB, 0.0, Claim.AWAITED)
    room.enter(1, LAB, 0.0, Claim.AWAITED)
    for number in range(2, 2000):
        room.enter(number, f"10.0.{number // 256}.{number % 256}", 0.001 * number, Claim.KNOWN)
    assert 0 in room
    assert 1 in room, "though two of one origin are most"
    assert room.enter(2000, STRANGER, KEPT_S, Claim.KNOWN) == 0, "but not for ever"


moves = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "moved"]), st.integers(0, 40), st.integers(0, 5), claims),
    max_size=120,
)


@given(moves, st.integers(1, 8))
def test_whatever_comes_the_room_is_never_overfull_and_the_heaviest_pays(
    steps: list[tuple[str, int, int, Claim]], size: int
) -> None:
    room, inside = FairRoom(size=size, kept_s=KEPT_S), dict[int, tuple[Claim, int, float]]()
    for now, (what, number, origin, claim) in enumerate(steps):
        if what == "enter" and number not in inside:
            inside[number] = claim, origin, float(now)
            victim = room.enter(number, str(origin), float(now), claim)
            if victim is not None:
                unknown = sum(not one.is_known for one, _, _ in inside.values())
                of_class = {
                    number: (one, from_)
                    for number, (one, from_, at) in inside.items()
                    if one.is_known is (unknown <= size // 2) and not (one is Claim.AWAITED and now < at + KEPT_S)
                }
                assert inside[victim][0].is_known is (unknown <= size // 2)
                if of_class:
                    places = Counter(
                        from_ for one, from_, _ in inside.values() if one.is_known is inside[victim][0].is_known
                    )
                    assert victim in of_class
                    assert places[inside[victim][1]] == max(places[from_] for _, from_ in of_class.values())
                del inside[victim]
        elif what == "leave":
            room.leave(number)
            inside.pop(number, None)
        elif what == "moved":
            room.note_progress(number, float(now))
            if number in inside:
                inside[number] = *inside[number][:2], float(now)
        assert len(room) == len(inside) <= size
        assert all(one in room for one in inside)
