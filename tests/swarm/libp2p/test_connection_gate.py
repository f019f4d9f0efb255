"""Decide which peers may shake hands, which stay, and how often; report every refusal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import PeerId
from swarm.libp2p.connection_gate import (
    FRESH_UNITS,
    HANDSHAKE_RATE,
    HANDSHAKES,
    MAX_EXPECTED,
    MAX_HANDSHAKES,
    MAX_NAMED,
    MAX_RETURNING,
    MAX_RETURNING_OF_ORIGIN,
    ORIGIN_HANDSHAKES,
    RETURNING_S,
    SETTLE_S,
    STRANGER_UNITS,
    STRANGERS,
    STRANGERS_UNITS,
    UNKNOWN_HANDSHAKES,
    Door,
    Pace,
    Refusals,
)
from swarm.libp2p.fair_slots import Claim
from swarm.libp2p.memory_budget import MAX_STRANGERS
from swarm.transport.event_rate import Bucket
from swarm.transport.interface import Refusal

ME = PeerId("12D3KooWMember")


def address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def test_three_hundred_idle_connections_of_one_address_cost_a_member_nothing() -> None:
    door = Door()
    for number in range(300):
        door.knock(number, "192.0.2.66", 0.0)
    assert door.knock(1000, "198.51.100.1", 1.0) in range(300)
    for number in range(300, 600):
        assert door.knock(number, "192.0.2.66", 1.1) != 1000
    assert door.note_first_bytes(1000, "198.51.100.1", 1.2)
    told = door.refusals.take()
    assert [(one.budget, one.who) for one in told] == [(HANDSHAKES, "192.0.2.66")]
    assert told[0].times == told[0].who_times == 601 - MAX_HANDSHAKES
    assert door.refusals.take() == []


def test_one_address_begins_no_more_handshakes_than_its_rate() -> None:
    door = Door()
    begun = sum(door.note_first_bytes(number, "192.0.2.66", 0.0) for number in range(1000))
    assert begun == ORIGIN_HANDSHAKES.burst
    assert door.note_first_bytes(1001, "192.0.2.67", 0.0)
    assert door.refusals.take()[0].budget == HANDSHAKE_RATE


def test_many_unknown_addresses_keep_no_known_one_out() -> None:
    door = Door()
    door.expect([ME], ["198.51.100.1"])
    begun = sum(door.note_first_bytes(number, address(number), 0.0) for number in range(2000))
    assert begun == UNKNOWN_HANDSHAKES.burst
    assert all(door.note_first_bytes(number, "198.51.100.1", 0.0) for number in range(100))


def test_a_member_of_before_is_known_wherever_it_comes_from() -> None:
    door = Door()
    door.expect([ME], [])
    for number in range(MAX_STRANGERS // 2):
        assert door.admit(number, address(number), ME, 0.0) is None
    for number in range(1000, 3000):
        victim = door.admit(number, address(number), PeerId(f"stranger {number}"), 1.0)
        assert victim is None or victim >= 1000
    assert door.num_strangers == MAX_STRANGERS
    assert {one.budget for one in door.refusals.take()} == {STRANGERS}


def test_those_for_whom_work_waits_go_first_until_they_are_here() -> None:
    door = Door()
    door.await_from(["198.51.100.1", "198.51.100.1"])
    assert [door.claim_of("198.51.100.1"), door.claim_of("198.51.100.2")] == [Claim.AWAITED, Claim.UNKNOWN]
    for number in range(2):
        door.admit(number, "198.51.100.1", ME, 0.0)
    door.note_trusted(0)
    assert door.claim_of("198.51.100.1") is Claim.AWAITED, "there was another"
    door.note_trusted(1)
    assert door.claim_of("198.51.100.1") is Claim.UNKNOWN


def test_what_is_remembered_of_those_who_were_refused_is_bounded() -> None:
    refusals = Refusals()
    for number in range(10_000):
        refusals.note(HANDSHAKES, address(number))
    refusals.note(HANDSHAKES, address(0))
    assert len(refusals._by[HANDSHAKES]) == MAX_NAMED
    assert refusals.take() == [Refusal(budget=HANDSHAKES, times=10_001, who=address(0), who_times=2)]


def test_only_so_many_known_ones_are_remembered() -> None:
    door = Door()
    door.expect([PeerId(str(number)) for number in range(MAX_EXPECTED + 1)], map(address, range(MAX_EXPECTED + 1)))
    assert (address(0) in door._origins, address(1) in door._origins) == (False, True)


def test_a_stranger_is_slowed_and_a_member_is_not() -> None:
    together = Bucket(rate=STRANGERS_UNITS)
    stranger, member = Pace(is_member=False), Pace(is_member=True)
    assert sum(stranger.charge(1, together, 0.0) > 0 for _ in range(4000)) == 4000 - STRANGER_UNITS.burst
    assert sum(member.charge(1, together, 0.0) > 0 for _ in range(4000)) == 0
    member.change(is_member=False)
    assert member.charge(STRANGER_UNITS.burst + 1, together, 0.0) > 0


def test_a_newcomer_does_not_stand_behind_those_who_flood_us() -> None:
    together = Bucket(rate=STRANGERS_UNITS)
    for _ in range(100):
        Pace(is_member=False).charge(STRANGER_UNITS.burst, together, 0.0)
    newcomer = Pace(is_member=False)
    assert newcomer.charge(FRESH_UNITS, together, 0.0) == 0
    assert newcomer.charge(1, together, 0.0) > 0


def begin(door: Door, number: int, origin: str, now: float) -> int | None:
    """A connection that knocks, speaks, and whose handshake begins."""
    door.knock(number, origin, now)
    return door.begin(number, origin, now)


def test_who_comes_while_all_places_are_being_used_waits_before_its_handshake() -> None:
    door = Door()
    for number in range(MAX_STRANGERS):
        assert door.has_place(address(number), 0.0)
        assert begin(door, number, address(number), 0.0) is None
    assert not door.has_place(address(500), 1.0), "handshakes that have begun need their places"
    assert door.num_strangers == 0
    door.note_closed(7)
    assert door.has_place(address(500), 1.0)
    assert begin(door, 500, address(500), 1.0) is None
    assert door.admit(500, address(500), PeerId("500"), 1.1) is None
    assert door.num_strangers == 1
    assert door.has_place(address(501), SETTLE_S[Claim.UNKNOWN]), "a handshake that had time enough must give way"
    assert begin(door, 501, address(501), SETTLE_S[Claim.UNKNOWN]) == 0
    door.note_trusted(500)
    assert door.num_strangers == 0
    assert begin(door, 502, address(502), 3.0) is None


def test_unknown_ones_that_stall_shut_nobody_out() -> None:
    """Handshakes that begin and go no further, of as many addresses as there are places, and of one."""
    for origins in (map(address, range(MAX_STRANGERS)), ["192.0.2.66"] * MAX_STRANGERS):
        door = Door()
        door.expect([ME], ["198.51.100.1"])
        door.await_from(["198.51.100.2"])
        for number, origin in enumerate(origins):
            begin(door, number, origin, 0.0)
        for number, origin in ((1000, "198.51.100.1"), (1001, "198.51.100.2")):
            assert door.has_share(origin, 0.1)
            assert door.has_place(origin, 0.1)
            assert begin(door, number, origin, 0.1) in range(MAX_STRANGERS)
        assert door.has_place("203.0.113.5", SETTLE_S[Claim.UNKNOWN])


def test_no_more_come_back_at_once_than_can_be_welcomed_in_time() -> None:
    door = Door()
    door.expect([], map(address, range(200)))
    for number in range(MAX_RETURNING):
        assert door.has_place(address(number), 0.0)
        begin(door, number, address(number), 0.0)
    assert not door.has_place(address(100), 1.0)
    door.await_from(map(address, range(100, 100 + MAX_RETURNING + 1)))
    for number in range(100, 100 + MAX_RETURNING):
        assert door.has_place(address(number), 1.0), "work waits for it"
        begin(door, number, address(number), 1.0)
    assert not door.has_place(address(100 + MAX_RETURNING), 1.0)
    assert door.has_place("198.51.100.1", 1.0), "unknown ones have a rate of their own"
    assert not door.has_place(address(50), 1.0)
    door.note_trusted(3)
    begin(door, 50, address(50), 1.0)
    assert not door.has_place(address(51), 1.5)
    door.note_closed(50)
    begin(door, 51, address(51), 1.5)
    assert door.has_place(address(52), RETURNING_S), "an idle connection must not keep others out for longer"


def test_of_one_address_only_some_come_back_at_once() -> None:
    door = Door()
    door.expect([], ["198.51.100.1", "198.51.100.2"])
    for number in range(MAX_RETURNING_OF_ORIGIN):
        assert door.has_share("198.51.100.1", 0.0)
        begin(door, number, "198.51.100.1", 0.0)
    assert not door.has_share("198.51.100.1", 0.0)
    assert door.has_share("198.51.100.2", 0.0)
    assert door.has_share("203.0.113.5", 0.0)
    door.note_trusted(0)
    assert door.has_share("198.51.100.1", 0.0)


moves = st.sampled_from(["begin", "admit", "trust", "close"])


@given(st.lists(st.tuples(moves, st.integers(0, 30), st.integers(0, 4), st.floats(0, 3)), max_size=150))
def test_whatever_comes_nobody_is_shut_out_and_nothing_is_left(steps: list[tuple[str, int, int, float]]) -> None:
    door, now, open_ones = Door(), 0.0, set[int]()
    door._strangers.size = 6
    door.expect([], [address(0), address(1)])
    door.await_from([address(1)] * 3)
    for what, number, origin, pause in steps:
        now += pause
        if what == "begin" and number not in open_ones:
            door.knock(number, address(origin), now)
            open_ones.add(number)
            if door.has_share(address(origin), now) and door.has_place(address(origin), now):
                assert door.begin(number, address(origin), now) != number
        elif number in open_ones:
            if what == "admit":
                door.admit(number, address(origin), PeerId(str(number)), now)
            elif what == "trust":
                door.note_trusted(number)
            elif what == "close":
                door.note_closed(number)
                open_ones.discard(number)
        assert len(door._strangers) <= 6
        assert all(n in door._strangers or n not in one for one in door._returning.values() for n in one)
        for other in range(8):
            later = now + 2 * SETTLE_S[Claim.KNOWN]
            assert door.has_place(address(other), later), "an idle connection must give way in time"
    for number in open_ones:
        door.note_closed(number)
    assert (len(door._strangers), door.num_strangers) == (0, 0)
    assert not any(door._returning.values())
