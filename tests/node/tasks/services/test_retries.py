"""Decide when to ask a service again, in virtual time."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest

from node.tasks.services.retries import (
    DOWN_AFTER,
    FIRST_PAUSE_S,
    LOOK_S,
    MAX_PAUSE_S,
    MAX_RETRY_AFTER_S,
    Health,
    pause_s,
    read_retry_after,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def test_pauses_double_up_to_a_bound_and_are_jittered_by_half() -> None:
    assert [pause_s(attempt, 0.0) for attempt in range(3)] == [FIRST_PAUSE_S / 2, FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
    assert pause_s(10_000, 0.0) == MAX_PAUSE_S / 2
    assert MAX_PAUSE_S / 2 < pause_s(10_000, 0.999) < MAX_PAUSE_S


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 0 ", 0.0),
        ("999999999", MAX_RETRY_AFTER_S),
        ("-1", None),
        ("soon", None),
        ("1e9", None),
        ("٣", None),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sun, 99 Mar 2026 12:00:30 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(told: str | None, seconds: float | None) -> None:
    assert read_retry_after(told, NOW) == seconds


def failed(health: Health, now_s: float, times: int = 1) -> list[bool]:
    found = []
    for _ in range(times):
        health.began()
        found.append(health.failed(now_s))
    return found


def test_it_is_down_after_failures_in_a_row_and_says_so_once() -> None:
    health = Health(chance=Random(1))
    assert failed(health, 0.0, DOWN_AFTER - 1) == [False] * (DOWN_AFTER - 1)
    assert not health.answered()
    assert failed(health, 0.0, DOWN_AFTER) == [*[False] * (DOWN_AFTER - 1), True]
    assert failed(health, 1.0) == [False]
    health.began()
    assert health.answered()
    assert not health.is_down


def test_while_it_is_down_one_asks_at_a_time_after_a_pause_that_grows() -> None:
    health = Health(chance=Random(1))
    failed(health, 0.0, DOWN_AFTER)
    first = health.wait_s(0.0)
    assert FIRST_PAUSE_S / 2 <= first <= FIRST_PAUSE_S
    assert health.wait_s(first) == 0.0
    health.began()
    assert health.wait_s(first) == LOOK_S
    assert not health.failed(first)
    assert health.wait_s(first) > first
    health.began()
    health.answered()
    assert health.wait_s(first) == 0.0


def test_requests_that_were_under_way_when_it_went_down_lengthen_no_pause() -> None:
    health = Health(chance=Random(1))
    for _ in range(64):
        health.began()
    for _ in range(64):
        health.failed(0.0)
    assert health.wait_s(0.0) <= FIRST_PAUSE_S


def test_a_key_that_is_refused_is_an_outage_at_once() -> None:
    health = Health(chance=Random(1))
    health.began()
    assert health.failed(0.0, at_once=True)


def test_what_it_asks_for_is_waited() -> None:
    health = Health(chance=Random(1))
    health.began()
    health.answered()
    health.busy(10.0, 5.0)
    assert health.wait_s(12.0) == 3.0
    assert health.wait_s(15.0) == 0.0
    assert not health.is_down
