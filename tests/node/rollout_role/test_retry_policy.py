"""How long a node retries after failures: growing pauses, its reports, and when it gives up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.swarm_config import GIVE_UP_S
from node.rollout_role.retry_policy import (
    FIRST_PAUSE_S,
    LEAST_TIMES,
    LONGEST_PAUSE_S,
    Arrived,
    Event,
    Failed,
    Lent,
    RetryPolicy,
    Worked,
)
from protocol.core.ids import PolicyVersion
from protocol.trouble import MAX_TROUBLE_CHARS, Trouble, TroubleKind

INSTALL, LEASE, ENGINE = TroubleKind.INSTALL, TroubleKind.LEASE, TroubleKind.ENGINE
FIRST, SECOND = PolicyVersion(1, 0), PolicyVersion(1, 1)
NO = "attention 'x' is not supported"


def failed(kind: TroubleKind = INSTALL, version: PolicyVersion = FIRST, **changes: bool) -> Failed:
    return Failed(kind=kind, reason=NO, version=version, **changes)


def fail_on(retry_policy: RetryPolicy, event: Failed, now_s: float, *, until_s: float) -> list[float]:
    """Try again as soon as that may be; return when it was tried. The last time is beyond `until_s`."""
    tried = [now_s]
    while True:
        retry_policy.handle(event, tried[-1])
        if retry_policy.verdict(tried[-1]) is not None or tried[-1] > until_s:
            return tried
        tried.append(retry_policy.again_s(event.kind))


def test_each_failure_doubles_the_pause_up_to_five_minutes() -> None:
    tried = fail_on(RetryPolicy(give_up_s=math.inf), failed(), 0.0, until_s=1000.0)
    assert tried == [0.0, 5.0, 15.0, 35.0, 75.0, 155.0, 315.0, 615.0, 915.0, 1215.0]


def test_leases_are_tried_again_sooner() -> None:
    tried = fail_on(RetryPolicy(give_up_s=math.inf), failed(LEASE), 0.0, until_s=30.0)
    assert tried == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]


def test_the_first_failure_is_told_and_success_takes_it_back() -> None:
    retry_policy = RetryPolicy()
    assert retry_policy.handle(failed(), 0.0)
    assert retry_policy.troubles == [Trouble(INSTALL, 1, NO, FIRST)]
    assert retry_policy.handle(failed(), 5.0)
    assert retry_policy.troubles == [Trouble(INSTALL, 2, NO, FIRST)]
    assert retry_policy.handle(Worked(kind=INSTALL), 10.0)
    assert retry_policy.troubles == []
    assert retry_policy.again_s(INSTALL) == -math.inf
    assert not retry_policy.handle(Worked(kind=INSTALL), 11.0)


def test_what_concerns_one_version_alone_ends_with_the_next() -> None:
    retry_policy = RetryPolicy()
    for now_s in (0.0, 5.0, 15.0):
        retry_policy.handle(failed(), now_s)
    assert not retry_policy.handle(Arrived(version=FIRST), 16.0), "the same one, fetched once more"
    assert retry_policy.handle(Arrived(version=SECOND), 20.0)
    assert (retry_policy.troubles, retry_policy.again_s(INSTALL)) == ([], -math.inf)
    retry_policy.handle(failed(version=SECOND), 21.0)
    assert retry_policy.troubles == [Trouble(INSTALL, 4, NO, SECOND)]
    assert retry_policy.again_s(INSTALL) == 21.0 + FIRST_PAUSE_S[INSTALL]


def test_a_version_in_service_is_a_reason_to_try_leases_again() -> None:
    retry_policy = RetryPolicy()
    for now_s in (0.0, 1.0, 3.0):
        retry_policy.handle(failed(LEASE), now_s)
    retry_policy.handle(Worked(kind=INSTALL), 4.0)
    assert (retry_policy.troubles, retry_policy.again_s(LEASE, ENGINE)) == ([], -math.inf)
    retry_policy.handle(failed(LEASE, SECOND), 5.0)
    assert retry_policy.troubles == [Trouble(LEASE, 4, NO, SECOND)]


def test_it_gives_up_a_version_that_never_installs() -> None:
    retry_policy = RetryPolicy()
    tried = fail_on(retry_policy, failed(), 0.0, until_s=math.inf)
    assert tried[-1] == 615.0
    why = retry_policy.verdict(tried[-1])
    assert why is not None
    for word in ("no version could be installed", "10 min", "8 attempts", NO, "operator", "[engine] kind"):
        assert word in why, why


def test_it_gives_up_while_it_waits_for_the_next_try() -> None:
    retry_policy = RetryPolicy()
    for now_s in (0.0, 5.0, 15.0, 35.0, 75.0, 155.0, 315.0):
        retry_policy.handle(failed(), now_s)
    assert retry_policy.ends_s == GIVE_UP_S
    assert retry_policy.verdict(GIVE_UP_S - 1) is None
    assert retry_policy.verdict(GIVE_UP_S) is not None


def test_a_failure_on_every_version_ends_the_node_however_often_they_come() -> None:
    retry_policy, now_s, number = RetryPolicy(), 0.0, 0
    while retry_policy.verdict(now_s) is None:
        number, now_s = number + 1, now_s + 30.0
        retry_policy.handle(Arrived(version=PolicyVersion(1, number)), now_s)
        assert retry_policy.verdict(now_s) is None, "that one may be the one that works"
        retry_policy.handle(failed(version=PolicyVersion(1, number)), now_s)
    assert now_s == 30.0 + GIVE_UP_S


def test_it_does_not_give_up_what_works_between() -> None:
    retry_policy = RetryPolicy()
    for number in range(1000):
        retry_policy.handle(failed(LEASE if number % 2 else ENGINE), 10.0 * number)
        if number % 10 == 9:
            retry_policy.handle(Worked(kind=LEASE), 10.0 * number)
        assert retry_policy.verdict(10.0 * number) is None


def test_a_version_that_fails_while_the_one_before_works_ends_nothing() -> None:
    retry_policy, now_s = RetryPolicy(), 0.0
    while now_s < 10 * GIVE_UP_S:
        retry_policy.handle(failed(version=SECOND), now_s)
        now_s = retry_policy.again_s(INSTALL)
        retry_policy.handle(Worked(kind=LEASE), now_s)
        assert retry_policy.verdict(now_s) is None
    retry_policy.handle(failed(version=SECOND), now_s)
    retry_policy.handle(failed(version=SECOND), now_s + GIVE_UP_S)
    assert retry_policy.verdict(now_s + GIVE_UP_S) is not None, "since nothing is generated any more"


def test_a_few_failures_are_not_enough_however_long_they_take() -> None:
    retry_policy = RetryPolicy()
    for number in range(LEAST_TIMES - 1):
        retry_policy.handle(failed(), number * GIVE_UP_S)
        assert retry_policy.ends_s == math.inf
    retry_policy.handle(failed(), LEAST_TIMES * GIVE_UP_S)
    assert retry_policy.verdict(LEAST_TIMES * GIVE_UP_S) is not None


def test_what_is_never_tried_again_is_given_up_in_time() -> None:
    retry_policy = RetryPolicy()
    retry_policy.handle(failed(is_final=True), 7.0)
    assert retry_policy.ends_s == 7.0 + GIVE_UP_S
    why = retry_policy.verdict(7.0 + GIVE_UP_S)
    assert why is not None
    assert "one attempt" in why
    retry_policy.handle(Arrived(version=SECOND), 100.0)
    assert retry_policy.ends_s == math.inf


def test_what_is_not_up_to_the_node_is_told_and_never_given_up() -> None:
    retry_policy = RetryPolicy()
    for number in range(100):
        retry_policy.handle(failed(LEASE, may_pass=True), 600.0 * number)
    assert (retry_policy.ends_s, retry_policy.troubles) == (math.inf, [Trouble(LEASE, 100, NO, FIRST)])
    assert retry_policy.again_s(LEASE) == 600.0 * 99 + LONGEST_PAUSE_S


def test_what_cannot_be_fetched_is_told_until_something_arrives() -> None:
    retry_policy = RetryPolicy()
    for number in range(5):
        retry_policy.handle(
            Failed(kind=TroubleKind.FETCH, reason="no room", version=FIRST, may_pass=True), 100.0 * number
        )
    assert (retry_policy.troubles, retry_policy.ends_s) == ([Trouble(TroubleKind.FETCH, 5, "no room", FIRST)], math.inf)
    assert retry_policy.handle(Arrived(version=SECOND), 600.0)
    assert retry_policy.troubles == []


def test_a_rest_does_not_count() -> None:
    retry_policy = RetryPolicy()
    retry_policy.handle(failed(is_final=True), 0.0)
    retry_policy.handle(Lent(is_lent=False), 10.0)
    assert retry_policy.ends_s == math.inf
    retry_policy.handle(Lent(is_lent=True), 30_000.0)
    assert retry_policy.ends_s == 30_000.0 + GIVE_UP_S
    assert retry_policy.troubles == [Trouble(INSTALL, 1, NO, FIRST)]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("\x1b[2J gone\nand more", "\\x1b[2J gone and more"),
        ("\u202eright to left", "\\u202eright to left"),
        ("", "no reason given"),
        ("y" * 999, "y" * (MAX_TROUBLE_CHARS - 1) + "…"),
        ("\udcff", "\\udcff"),
    ],
)
def test_a_reason_is_one_harmless_line(reason: str, told: str) -> None:
    retry_policy = RetryPolicy()
    retry_policy.handle(Failed(kind=LEASE, reason=reason), 0.0)
    assert retry_policy.troubles == [Trouble(LEASE, 1, told)]


EVENTS = st.one_of(
    st.builds(
        Failed,
        kind=st.sampled_from([INSTALL, LEASE, ENGINE]),
        reason=st.text(max_size=300),
        version=st.sampled_from([None, FIRST, SECOND]),
        is_final=st.booleans(),
        may_pass=st.booleans(),
    ),
    st.builds(Worked, kind=st.sampled_from([INSTALL, LEASE, ENGINE])),
    st.builds(Arrived, version=st.sampled_from([FIRST, SECOND])),
    st.builds(Lent, is_lent=st.booleans()),
)


@given(st.lists(st.tuples(st.floats(0, 1000), EVENTS), max_size=60))
def test_whatever_happens_what_is_told_is_bounded_and_giving_up_has_its_reasons(
    happened: list[tuple[float, Event]],
) -> None:
    retry_policy, now_s, worked_s, lent, fails = RetryPolicy(), 0.0, -math.inf, True, 0
    for passed_s, event in happened:
        now_s += passed_s
        retry_policy.handle(event, now_s)
        match event:
            case Worked(kind=kind) if kind is not INSTALL:
                worked_s = now_s
            case Lent(is_lent=is_lent):
                lent = is_lent
            case Failed():
                fails += 1
        kinds = [one.kind for one in retry_policy.troubles]
        assert len(kinds) == len(set(kinds))
        assert all(len(one.reason) <= MAX_TROUBLE_CHARS for one in retry_policy.troubles)
        assert all(retry_policy.again_s(kind) <= now_s + LONGEST_PAUSE_S for kind in kinds)
        assert retry_policy.again_s(INSTALL, LEASE, ENGINE) <= now_s + LONGEST_PAUSE_S
        if retry_policy.verdict(now_s) is not None:
            assert lent
            assert fails
            assert now_s - worked_s >= GIVE_UP_S


@given(st.lists(st.sampled_from([INSTALL, LEASE, ENGINE]), max_size=200), st.floats(1.0, 1e6))
def test_failures_alone_come_seldom(kinds: list[TroubleKind], span_s: float) -> None:
    """However they mix, of one kind there are no more than doubling pauses leave room for."""
    retry_policy, now_s, times = RetryPolicy(give_up_s=math.inf), 0.0, dict.fromkeys((INSTALL, LEASE, ENGINE), 0)
    for kind in kinds:
        now_s = max(now_s, retry_policy.again_s(kind))
        if now_s > span_s:
            break
        retry_policy.handle(failed(kind), now_s)
        times[kind] += 1
    assert all(number <= 2 + math.log2(LONGEST_PAUSE_S) + 1 + span_s / LONGEST_PAUSE_S for number in times.values())
