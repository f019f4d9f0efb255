"""When a notice is posted again."""

from __future__ import annotations

import pytest

from node.notices.retry_policy import KEEP_S, MAX_PAUSE_S, Failed, Posted, outcome_of, pause_s


@pytest.mark.parametrize("status", [200, 201, 204])
def test_what_is_accepted(status: int) -> None:
    assert outcome_of(status, "", None) == Posted()


@pytest.mark.parametrize(("status", "is_final"), [(400, True), (403, True), (404, True), (410, True), (302, True)])
def test_what_will_never_be_accepted_is_not_tried_again(status: int, is_final: bool) -> None:
    failed = outcome_of(status, "no", None)
    assert failed == Failed(detail="no", is_final=is_final)
    assert pause_s(Failed(detail="no", is_final=True), 0, 0.0, 0.0) is None


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
def test_what_may_be_accepted_later_is_tried_again(status: int) -> None:
    failed = outcome_of(status, "later", 42.0)
    assert failed == Failed(detail="later", asked_s=42.0)
    assert pause_s(Failed(detail="later", asked_s=42.0), 0, 0.0, 0.5) == 42.0


def test_pauses_double_up_to_a_bound() -> None:
    pauses = [pause_s(Failed(detail=""), attempt, 0.0, 1.0) for attempt in range(12)]
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, *[MAX_PAUSE_S] * 4]
    assert pause_s(Failed(detail=""), 10**9, 0.0, 0.0) == MAX_PAUSE_S / 2


def test_an_old_notice_is_given_up() -> None:
    assert pause_s(Failed(detail=""), 20, KEEP_S - MAX_PAUSE_S - 1, 1.0) == MAX_PAUSE_S
    assert pause_s(Failed(detail=""), 20, KEEP_S - MAX_PAUSE_S + 1, 1.0) is None
    assert pause_s(Failed(detail="", asked_s=2 * KEEP_S), 0, 0.0, 1.0) is None
