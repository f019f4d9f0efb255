"""Leases that bring nothing, again and again, are noticed soon, and an everyday pause is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from learner.monitoring.fruitless_leases import ROUNDS, SPAN_MS, End, Fruitless
from tests.support.trainer_fixture import NOW_MS


def tried_again(made: Fruitless, tries: int) -> int:
    """A node gives two leases back, then after pauses of 1, 2, 4, ... seconds; return when it last did."""
    at_ms = NOW_MS
    for number in range(tries):
        at_ms += 1000 * 2**number if number else 0
        made.ended(End.RETURNED, 2, at_ms)
    return at_ms


def test_a_node_that_tries_again_and_again_is_noticed_within_a_minute() -> None:
    made = Fruitless()
    assert tried_again(made, 5) == NOW_MS + 30_000
    assert str(made.loop) == "The last 10 leases brought no record, over 30 s: 10 returned."


def test_an_owner_who_needs_the_machine_is_no_alarm() -> None:
    made = Fruitless()
    for passed_ms in (0, 200, 400, 600, 800):
        made.ended(End.RETURNED, 64, NOW_MS + passed_ms)
    assert made.loop is None


def test_it_says_how_they_ended() -> None:
    made = Fruitless()
    for number, end in enumerate([End.EXPIRED, End.LOST, End.REJECTED, End.RETURNED, End.RETURNED]):
        made.ended(end, 1000, NOW_MS + number * SPAN_MS)
    told = "2,000 returned, 1,000 expired, 1,000 lost with their node, 1,000 delivered and rejected."
    assert str(made.loop) == f"The last 5,000 leases brought no record, over 120 s: {told}"


def test_one_record_ends_it() -> None:
    made = Fruitless()
    tried_again(made, 8)
    made.brought()
    assert made.loop is None
    made.ended(End.RETURNED, 1, NOW_MS + 10_000_000)
    assert made.loop is None


def test_a_clock_that_was_set_back_alarms_nobody() -> None:
    made = Fruitless()
    made.ended(End.RETURNED, 1, NOW_MS)
    for number in range(ROUNDS - 2):
        made.ended(End.RETURNED, 1, NOW_MS - 86_400_000 + number * 1000)
    assert made.loop is None


@given(st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from([*End, None]), st.integers(0, 300)), max_size=60))
def test_it_stands_only_after_so_many_rounds_over_such_a_time(happened: list[tuple[int, End | None, int]]) -> None:
    made, now_ms, since = Fruitless(), NOW_MS, list[int]()
    for passed_ms, end, leases in happened:
        now_ms += passed_ms
        if end is None:
            made.brought()
            since.clear()
        else:
            made.ended(end, leases, now_ms)
            since += [now_ms] if leases else []
        if (loop := made.loop) is not None:
            assert len(since) >= ROUNDS
            assert round(1000 * loop.span_s) <= since[-1] - since[0]
            assert loop.span_s * 1000 >= SPAN_MS
