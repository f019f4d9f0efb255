"""A peer whose leases bring nothing is leased less and less, whatever it does."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from learner.scheduling.lease_backoff import (
    BLAMED,
    FIRST_PAUSE_MS,
    FORGIVEN,
    FREE_LEASES,
    LONGEST_PAUSE_MS,
    MOST_OWED,
    MOST_PEERS,
    LeaseDebts,
)
from protocol.core.ids import PeerId
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER

HERE, THERE = PEER.peer_id, OTHER.peer_id


def owing(leases: int = FREE_LEASES + 1) -> LeaseDebts:
    made = LeaseDebts()
    made.brought_nothing(HERE, leases, NOW_MS)
    return made


def test_two_batches_are_no_matter() -> None:
    made = owing(FREE_LEASES)
    assert not made.is_owing(HERE)
    assert made.wait_ms(HERE, NOW_MS) == 0


def test_beyond_them_it_waits_longer_each_time_and_five_minutes_at_most() -> None:
    made, now_ms, waited = owing(), NOW_MS, []
    for _ in range(12):
        waited.append(made.wait_ms(HERE, now_ms))
        now_ms += waited[-1]
        assert made.wait_ms(HERE, now_ms) == 0
        made.brought_nothing(HERE, 1, now_ms)
    assert waited[:4] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS, 8 * FIRST_PAUSE_MS]
    assert waited[-2:] == [LONGEST_PAUSE_MS] * 2
    assert made.is_owing(HERE)
    assert not made.is_owing(THERE)


def test_leases_that_end_during_a_pause_are_of_the_same_round() -> None:
    made = owing()
    for _ in range(100):
        made.brought_nothing(HERE, 1, NOW_MS + FIRST_PAUSE_MS - 1)
    assert made.wait_ms(HERE, NOW_MS) == FIRST_PAUSE_MS


def test_who_sends_only_junk_has_a_dozen_leases_in_five_minutes() -> None:
    made, now_ms, leases = LeaseDebts(), NOW_MS, 0
    while now_ms < NOW_MS + 330_000:
        if made.wait_ms(HERE, now_ms) == 0:
            leases += 1
            made.brought_nothing(HERE, BLAMED, now_ms)
        now_ms += 100
    assert leases <= FREE_LEASES // BLAMED + 10


def test_records_make_up_for_it_soon() -> None:
    made = owing(1_000_000)
    for _ in range(math.ceil((MOST_OWED - FREE_LEASES) / FORGIVEN)):
        assert made.is_owing(HERE)
        made.brought(HERE)
        assert made.wait_ms(HERE, NOW_MS) == 0
    assert not made.is_owing(HERE)


def test_a_clock_that_was_set_back_keeps_nobody_waiting() -> None:
    assert owing().wait_ms(HERE, NOW_MS - 86_400_000) == 0


def test_so_many_are_remembered_and_no_more() -> None:
    made = owing()
    for number in range(MOST_PEERS):
        made.brought_nothing(PeerId(str(number)), FREE_LEASES + 1, NOW_MS)
    assert not made.is_owing(HERE)
    assert made.is_owing(PeerId("0"))
    assert len(made._debts) == MOST_PEERS


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(-1, 300)), max_size=80))
def test_what_is_owed_is_bounded_and_so_is_the_wait(happened: list[tuple[int, int]]) -> None:
    made, now_ms = LeaseDebts(), NOW_MS
    for passed_ms, leases in happened:
        now_ms += passed_ms
        if leases < 0:
            made.brought(HERE)
        else:
            made.brought_nothing(HERE, leases, now_ms)
        assert 0 <= made.wait_ms(HERE, now_ms) <= LONGEST_PAUSE_MS
        assert made.is_owing(HERE) or made.wait_ms(HERE, now_ms) == 0
        assert all(0 < debt.owed <= MOST_OWED for debt in made._debts.values())
