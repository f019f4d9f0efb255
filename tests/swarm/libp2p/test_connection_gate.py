"""Who may shake hands, who stays, how often; and that all of it is told."""

from __future__ import annotations

from protocol.core.ids import PeerId
from swarm.libp2p.connection_gate import (
    FRESH_UNITS,
    HANDSHAKE_RATE,
    HANDSHAKES,
    MAX_EXPECTED,
    MAX_HANDSHAKES,
    MAX_NAMED,
    MAX_RETURNING,
    ORIGIN_HANDSHAKES,
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


def test_who_comes_while_all_places_are_being_used_waits_before_its_handshake() -> None:
    door = Door()
    for number in range(MAX_STRANGERS - 1):
        door.admit(number, address(number), PeerId(str(number)), 0.0)
    assert door.may_begin(address(500), 1.0)
    door.knock(500, address(500), 1.0)
    door.begin(500, 1.0)
    assert not door.may_begin(address(501), 1.0), "the one that has begun will need the last place"
    assert door.may_begin(address(501), SETTLE_S[Claim.UNKNOWN]), "whoever had time enough to be welcomed gives way"
    door.note_trusted(7)
    assert door.may_begin(address(501), 1.0)
    door.knock(501, address(501), 1.0)
    door.begin(501, 1.0)
    assert not door.may_begin(address(502), 1.0)
    door.note_handshake_end(501)
    assert door.may_begin(address(502), 1.0)


def test_known_ones_wait_for_no_unknown_ones() -> None:
    door = Door()
    door.expect([ME], ["198.51.100.1"])
    for number in range(MAX_STRANGERS):
        door.admit(number, address(number), PeerId(str(number)), 0.0)
    assert door.may_begin("198.51.100.1", 0.1)
    assert not door.may_begin(address(500), 0.1)


def test_no_more_come_back_at_once_than_can_be_welcomed_in_time() -> None:
    door = Door()
    door.expect([], map(address, range(200)))
    for number in range(MAX_RETURNING):
        assert door.may_begin(address(number), 0.0)
        door.knock(number, address(number), 0.0)
        door.begin(number, 0.0)
    assert not door.may_begin(address(100), 1.0)
    door.await_from(map(address, range(100, 100 + MAX_RETURNING + 1)))
    for number in range(100, 100 + MAX_RETURNING):
        assert door.may_begin(address(number), 1.0), "work waits for it"
        door.knock(number, address(number), 1.0)
        door.begin(number, 1.0)
    assert not door.may_begin(address(100 + MAX_RETURNING), 1.0)
    assert door.may_begin("198.51.100.1", 1.0), "unknown ones have a rate of their own"
    assert not door.may_begin(address(50), 1.0)
    door.note_trusted(3)
    assert door.may_begin(address(50), 1.0)
    door.knock(50, address(50), 1.0)
    door.begin(50, 1.0)
    assert not door.may_begin(address(51), 2.0)
    door.note_closed(50)
    assert door.may_begin(address(51), 2.0)
    door.knock(51, address(51), 2.0)
    door.begin(51, 2.0)
    assert door.may_begin(address(52), SETTLE_S[Claim.KNOWN]), "who only sits there keeps nobody out for longer"


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
