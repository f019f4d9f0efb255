"""Verifiers' remarks about services are reported once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.tasks.services.remarks import MAX_REMARKS, Remark
from node.verifiers.remarks import ServiceNews, read_remarks, write_remarks

DOWN = Remark(service="[judge]", how="down", detail="http://h/: ConnectError")
BACK = Remark(service="[judge]", how="back", detail="")
UNCLEAR = Remark(service="[judge]", how="unclear", detail="no verdict: Well.")


def test_what_is_written_is_read() -> None:
    assert read_remarks(json.loads(json.dumps(write_remarks([DOWN, BACK, UNCLEAR])))) == [DOWN, BACK, UNCLEAR]


@pytest.mark.parametrize("told", [None, 1, "down", {}, [1], [["a", "down"]], [["a", "gone", "b"]], [["a", "down", 1]]])
def test_what_is_no_remark_is_passed_over(told: Any) -> None:
    assert read_remarks(told) == []


def test_remarks_are_bounded() -> None:
    [first, *others] = read_remarks([["s" * 1000, "down", "d" * 10_000]] * 1000)
    assert len(others) == MAX_REMARKS - 1
    assert len(first.service) + len(first.detail) < 1000


def test_an_outage_is_told_once_until_it_is_over() -> None:
    news = ServiceNews()
    told = [news.trouble(heard) for heard in (DOWN, DOWN, BACK, DOWN)]
    assert [bool(text) for text in told] == [True, False, False, True]
    assert "[judge] does not answer: http://h/: ConnectError." in told[0]


def test_answers_that_say_nothing_are_told_now_and_then() -> None:
    news = ServiceNews()
    told = [number for number in range(1, 40) if news.trouble(UNCLEAR)]
    assert told == [1, 2, 4, 8, 16, 32]
