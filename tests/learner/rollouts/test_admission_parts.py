"""A returned lease with parts counts whole or not at all, and need not have ended.

Only the author of the parts answers for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from learner.rollouts.admission import GrantedLease, JudgedDelivery, check_delivery
from learner.rollouts.environment import Ended, Question, Unfinished
from protocol.work import Rule
from tests.support.trainer_fixture import (
    NOW_MS,
    OTHER,
    PEER,
    STOP,
    granted,
    record,
    terms,
    version,
    with_bad_signature,
)

LEASE = granted(minimum=version("1.2"), size=3)


def judge(
    raws: Sequence[bytes],
    lease: GrantedLease = LEASE,
    *,
    before: tuple[int, ...] = (),
    returned: bool = True,
) -> tuple[JudgedDelivery, Sequence[Question]]:
    checked = check_delivery(
        lease,
        PEER.peer_id,
        raws,
        terms(),
        arrived_ms=NOW_MS + 1000,
        lease=lease.id,
        before=before,
        returned=returned,
    )
    return checked.answered([Ended(reward=float(sum(one.said[-1]))) for one in checked.questions]), checked.questions


def rules(judged: JudgedDelivery) -> list[Rule]:
    return [verdict.rule for verdict in judged.verdicts]


def test_what_ended_is_rewarded_what_was_begun_is_not_and_both_count() -> None:
    raws = [record(LEASE.lease, 2, tokens=(1, 1)), record(LEASE.lease, 0, tokens=(2, STOP))]
    judged, questions = judge(raws)
    assert rules(judged) == [Rule.ADMITTED] * 2
    assert [(one.signed.record.index, one.reply) for one in judged.group] == [
        (0, Ended(reward=2.0 + STOP)),
        (2, Unfinished()),
    ]
    assert [verdict.reward for verdict in judged.verdicts] == [None, 2.0 + STOP]
    assert [question.said for question in questions] == [((2, STOP),)]
    assert (judged.finished, judged.tokens, judged.credited_tokens) == (1, 4, 4)
    assert set(judged.by_index) == {0, 2}


def test_the_reward_is_that_of_the_whole_completion() -> None:
    lease = granted(minimum=version("1.2"), size=1, max_new_tokens=2, start=2)
    judged, questions = judge([record(lease.lease, 0, tokens=(3, STOP))], lease, before=(1, 2), returned=False)
    assert rules(judged) == [Rule.ADMITTED]
    assert [question.said for question in questions] == [((1, 2, 3, STOP),)]
    assert questions[0].transcript == 3 + 2, "the prompt has what was begun already"
    assert judged.tokens == 2, "the author counts for its own"


def test_a_delivery_has_no_parts() -> None:
    whole = [record(LEASE.lease, index, tokens=(1, STOP)) for index in (0, 1)]
    judged, _ = judge([*whole, record(LEASE.lease, 2, tokens=(1, 1))], returned=False)
    assert rules(judged) == [Rule.INCOMPLETE, Rule.INCOMPLETE, Rule.SETTINGS]


def test_of_what_is_handed_back_all_counts_or_nothing() -> None:
    good, begun = record(LEASE.lease, 0, tokens=(1, STOP)), record(LEASE.lease, 1, tokens=(1, 1))
    cases = {
        Rule.BAD_SIGNATURE: with_bad_signature(begun),
        Rule.WRONG_PEER: record(LEASE.lease, 1, author=OTHER, tokens=(1, 1)),
        Rule.SETTINGS: record(LEASE.lease, 1, tokens=(1, STOP, 1)),
        Rule.UNKNOWN_LEASE: record(granted(9).lease, 1, tokens=(1, 1)),
    }
    for rule, bad in cases.items():
        judged, questions = judge([good, bad])
        assert rules(judged) == [Rule.INCOMPLETE, rule]
        assert (judged.group, questions, judged.tokens) == ((), (), 0)
    judged, _ = judge([good, begun, begun])
    assert rules(judged) == [Rule.ADMITTED, Rule.ADMITTED, Rule.DUPLICATE]


def test_a_part_that_is_too_old_makes_the_rest_so() -> None:
    lease = granted(minimum=version("1.0"), size=3)
    judged, _ = judge(
        [record(lease.lease, 0, tokens=(1, STOP), made_by="1.1"), record(lease.lease, 1, tokens=(1, 1))], lease
    )
    assert rules(judged)[0] in (Rule.STALE, Rule.ORPHANED)
    assert judged.group == ()
