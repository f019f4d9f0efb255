"""Who must leave when a room is full."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.fair_slots import FairRoom, origin_of

STRANGER, LAB = "192.0.2.66", "198.51.100.1"


def places_of(room: FairRoom, origin: str) -> int:
    """How many guests there are of this origin."""
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
    room = FairRoom(size=64)
    for number in range(300):
        room.enter(number, STRANGER, float(number), known=False)
    assert room.enter(1000, LAB, 300.0, known=False) == 236  # the stranger's longest idle
    for number in range(301, 600):
        assert room.enter(number, STRANGER, float(number), known=False) != 1000
    assert 1000 in room


def test_without_others_one_address_may_have_every_place() -> None:
    """A laboratory behind one address."""
    room = FairRoom(size=64)
    assert [room.enter(number, LAB, 0.0, known=False) for number in range(64)] == [None] * 64
    assert places_of(room, LAB) == 64


def test_a_laboratory_and_an_attacker_share_alike() -> None:
    room = FairRoom(size=64)
    for number in range(300):
        room.enter(number, STRANGER, 0.0, known=False)
    for number in range(300, 360):
        room.enter(number, LAB, 1.0, known=False)
    assert (places_of(room, LAB), places_of(room, STRANGER)) == (32, 32)


def test_of_many_addresses_who_made_no_progress_for_longest_leaves() -> None:
    room = FairRoom(size=4)
    for number in range(4):
        room.enter(number, f"10.0.0.{number}", float(number), known=False)
    room.note_progress(0, 10.0)
    assert room.enter(4, "10.0.0.4", 11.0, known=False) == 1
    assert 0 in room


def test_many_unknown_addresses_displace_no_known_one_while_they_have_half() -> None:
    room = FairRoom(size=8)
    for number in range(4):
        room.enter(number, LAB, 0.0, known=True)
    for number in range(4, 300):
        room.enter(number, f"10.0.{number // 256}.{number % 256}", float(number), known=False)
    assert places_of(room, LAB) == 4


def test_known_ones_may_take_more_than_half_when_nobody_else_asks() -> None:
    room = FairRoom(size=8)
    assert [room.enter(number, LAB, 0.0, known=True) for number in range(8)] == [None] * 8
    assert room.enter(8, STRANGER, 1.0, known=False) == 0


moves = st.lists(
    st.tuples(st.sampled_from(["enter", "leave", "moved"]), st.integers(0, 40), st.integers(0, 5), st.booleans()),
    max_size=120,
)


@given(moves, st.integers(1, 8))
def test_whatever_comes_the_room_is_never_overfull_and_the_heaviest_pays(
    steps: list[tuple[str, int, int, bool]], size: int
) -> None:
    room, inside = FairRoom(size=size), dict[int, tuple[bool, int]]()
    for now, (what, number, origin, known) in enumerate(steps):
        if what == "enter" and number not in inside:
            inside[number] = known, origin
            victim = room.enter(number, str(origin), float(now), known=known)
            if victim is not None:
                unknown = sum(not is_known for is_known, _ in inside.values())
                places = Counter(place for place in inside.values() if place[0] is inside[victim][0])
                assert inside[victim][0] is (unknown <= size // 2)
                assert places[inside[victim]] == max(places.values())
                del inside[victim]
        elif what == "leave":
            room.leave(number)
            inside.pop(number, None)
        elif what == "moved":
            room.note_progress(number, float(now))
        assert len(room) == len(inside) <= size
        assert all(one in room for one in inside)
