"""Rollouts of one peer that are trained on since its last audit are bounded, however late audits are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from learner.trust.audit_history import NEWCOMER_GROUPS
from learner.trust.unaudited_exposure import Exposure, credit
from protocol.core.ids import LeaseId, PeerId

HERE, THERE = PeerId("here"), PeerId("there")


def lease(number: int) -> LeaseId:
    return LeaseId(number.to_bytes(16, "big"))


def test_who_has_just_become_trusted_is_believed_one_group_unseen() -> None:
    made = Exposure()
    assert not made.must_wait(HERE, NEWCOMER_GROUPS)
    assert made.is_due(HERE, NEWCOMER_GROUPS)
    made.came(HERE, lease(1), believed=True)
    assert made.must_wait(HERE, NEWCOMER_GROUPS)
    assert not made.must_wait(THERE, NEWCOMER_GROUPS)


def test_an_audit_clears_what_came_before_its_group_and_nothing_after() -> None:
    made = Exposure()
    for number in range(1, 5):
        made.came(HERE, lease(number), believed=number != 2)
    made.passed(HERE, lease(2))
    assert made.unseen(HERE) == 2
    made.passed(HERE, lease(1))
    assert made.unseen(HERE) == 2, "an older group's audit that is over later says nothing new"
    made.passed(HERE, lease(4))
    assert made.unseen(HERE) == 0


def test_what_is_not_trained_on_counts_no_more() -> None:
    made = Exposure()
    made.came(HERE, lease(1), believed=True)
    made.gone(HERE, lease(1))
    assert made.unseen(HERE) == 0


@given(st.integers(NEWCOMER_GROUPS, 400), st.lists(st.integers(0, 30), max_size=200))
def test_however_late_audits_are_no_more_than_the_credit_is_unseen(passed: int, audits: list[int]) -> None:
    made, waiting = Exposure(), list[LeaseId]()
    for number, turn in enumerate(audits):
        waits = made.must_wait(HERE, passed)
        made.came(HERE, lease(number), believed=not waits)
        if waits or made.is_due(HERE, passed):
            waiting.append(lease(number))
        if waiting and turn % 3 == 0:
            made.passed(HERE, waiting.pop(turn % len(waiting)))
            passed += 1
        assert made.unseen(HERE) <= credit(passed)
