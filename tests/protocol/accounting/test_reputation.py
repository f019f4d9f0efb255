"""Reputation is monotone, between 0 and 1, forgetting, fair to the small, and ignores what proves nothing."""

from __future__ import annotations

from math import comb
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.accounting.reputation import (
    CHANCE,
    COUNTS,
    DAY_MS,
    FAIR,
    FORGIVEN,
    HALF_LIFE_DAYS,
    MOST_ABANDONED,
    MOST_BLAMED,
    NEW_BELOW,
    PRIOR,
    SERVICE_GAIN,
    STEADY,
    WINDOW_DAYS,
    Band,
    ObservedDay,
    Reputation,
    SoftStrike,
    is_beyond_chance,
    lately,
    reputation_of,
)
from tests.support.examples import examples

TODAY = 20_000
SHARES = ("availability", "timeliness", "honesty", "soundness", "service", "score")
BETTER = {
    "present_ms": 1, "missed_ms": -1, "leases_in_time": 1, "leases_failed": -1, "groups_clean": 1, "groups_blamed": -1,
    "audits_passed": 1, "audits_failed": -1, "bytes_given": 1, "bytes_had": -1,
}  # fmt: skip
"""Which way each observation is a better one."""

HAIR = 1e-12
"""Sums of floats are exact to less."""


def seen(age: int = 0, **counts: int) -> ObservedDay:
    return ObservedDay(day=TODAY - age, **counts)


def of(*days: ObservedDay, today: int = TODAY) -> Reputation:
    return reputation_of(days, today)


def counts(name: str) -> st.SearchStrategy[int]:
    most = DAY_MS if name.endswith("_ms") else 2**53 - 1
    return st.one_of(st.integers(0, min(40, most)), st.integers(0, most))


DAYS = st.builds(
    ObservedDay, day=st.integers(TODAY - WINDOW_DAYS - 3, TODAY + 2), **{name: counts(name) for name in COUNTS}
)
MANY = st.lists(DAYS, max_size=6)


def test_of_whom_nothing_is_known_nothing_bad_is_known() -> None:
    found = of()
    assert [getattr(found, name) for name in SHARES] == [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    assert found.band is Band.NEW
    assert not found.strikes


@given(MANY, st.booleans())
def test_every_figure_is_a_share_whatever_was_counted(days: list[ObservedDay], banned: bool) -> None:
    found = reputation_of(days, TODAY, banned=banned)
    assert all(0.0 <= getattr(found, name) <= 1.0 for name in SHARES)
    assert (found.band is Band.BANNED) is banned
    assert (found.band is Band.QUARANTINED) is found.is_quarantined
    assert not (banned and found.is_quarantined)


@settings(max_examples=examples(400))
@given(MANY, DAYS, st.sampled_from(sorted(BETTER)), st.integers(1, 10**9))
def test_a_better_observation_never_lowers_anything(
    days: list[ObservedDay], day: ObservedDay, name: str, amount: int
) -> None:
    most = DAY_MS if name.endswith("_ms") else 2**53 - 1
    old = getattr(day, name)
    better = msgspec.structs.replace(day, **{name: max(0, min(most, old + BETTER[name] * amount))})
    before, after = of(*days, day), of(*days, better)
    for share in SHARES:
        assert getattr(after, share) >= getattr(before, share) - HAIR, share
    assert set(after.strikes) <= set(before.strikes)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("missed_ms", "availability"),
        ("leases_failed", "timeliness"),
        ("groups_blamed", "honesty"),
        ("audits_failed", "soundness"),
    ],
)
def test_a_worse_one_lowers_its_own_share_and_no_other(name: str, share: str) -> None:
    fine = seen(present_ms=DAY_MS // 2, leases_in_time=50, groups_clean=50, audits_passed=10)
    before, after = of(fine), of(msgspec.structs.replace(fine, **{name: 1 if name != "missed_ms" else 600_000}))
    lower = {one for one in SHARES if getattr(after, one) < getattr(before, one)}
    assert lower == {share, "score"}


def test_the_first_bad_lease_costs_a_newcomer_a_fifth_and_a_veteran_next_to_nothing() -> None:
    assert of(seen(leases_failed=1)).timeliness == pytest.approx(PRIOR / (PRIOR + 1)) == 0.8
    assert of(seen(leases_failed=1, leases_in_time=995)).timeliness == pytest.approx(0.999)


def test_what_is_a_week_old_counts_half_and_what_is_out_of_the_window_nothing() -> None:
    assert lately([seen(leases_failed=8)], TODAY).leases_failed == 8
    assert lately([seen(HALF_LIFE_DAYS, leases_failed=8)], TODAY).leases_failed == 4
    assert lately([seen(WINDOW_DAYS, leases_failed=256)], TODAY).leases_failed == 1
    assert lately([seen(WINDOW_DAYS + 1, leases_failed=256)], TODAY).leases_failed == 0
    assert lately([seen(-1, leases_failed=256)], TODAY).leases_failed == 0


@given(MANY, st.integers(0, WINDOW_DAYS))
def test_strikes_only_fade_while_nothing_happens(days: list[ObservedDay], later: int) -> None:
    """But for what leaves the window then, at a weight of 1/256."""
    past = [one for one in days if TODAY + later - WINDOW_DAYS <= one.day <= TODAY]
    assert set(of(*past, today=TODAY + later).strikes) <= set(of(*past).strikes)


# Soft strikes


def test_one_failed_audit_is_quarantine_for_a_week() -> None:
    failed = seen(audits_failed=1, leases_in_time=100, groups_clean=100)
    assert of(failed).strikes == (SoftStrike.AUDITS,)
    assert of(failed).band is Band.QUARANTINED
    assert of(failed).soundness == pytest.approx(0.5, abs=1e-3)
    ages = [age for age in range(WINDOW_DAYS) if of(failed, today=TODAY + age).strikes]
    assert ages == list(range(HALF_LIFE_DAYS))
    two = msgspec.structs.replace(failed, audits_failed=2)
    assert [age for age in range(WINDOW_DAYS) if of(two, today=TODAY + age).strikes] == list(range(2 * HALF_LIFE_DAYS))


def test_a_failure_in_a_thousand_audits_is_forgiven() -> None:
    assert not of(seen(audits_failed=1, audits_passed=round(1 / FORGIVEN))).strikes
    assert of(seen(audits_failed=1, audits_passed=round(0.1 / FORGIVEN))).strikes


@pytest.mark.parametrize(
    ("bad", "good", "rate", "expected"),
    [
        (0, 0, MOST_ABANDONED, False),
        (4, 0, MOST_ABANDONED, False),
        (5, 0, MOST_ABANDONED, True),
        (5, 5, MOST_ABANDONED, False),
        (25, 75, MOST_ABANDONED, False),
        (40, 60, MOST_ABANDONED, False),
        (45, 55, MOST_ABANDONED, True),
        (2_700, 7_300, MOST_ABANDONED, True),
        (2, 0, MOST_BLAMED, False),
        (3, 0, MOST_BLAMED, True),
        (5, 95, MOST_BLAMED, False),
    ],
)
def test_chance_explains_few_failures_of_few_and_not_many_of_many(
    bad: int, good: int, rate: float, expected: bool
) -> None:
    assert is_beyond_chance(bad, good, rate) is expected


@pytest.mark.parametrize("total", [5, 10, 40, 200])
def test_chance_is_bounded_by_binomials(total: int) -> None:
    """Summed, not simulated: a peer at the very rate is taken for worse once in so many."""
    worst = sum(
        comb(total, bad) * MOST_ABANDONED**bad * (1 - MOST_ABANDONED) ** (total - bad)
        for bad in range(total + 1)
        if is_beyond_chance(bad, total - bad, MOST_ABANDONED)
    )
    assert 0 < worst <= CHANCE


def test_strikes_pass_with_good_work() -> None:
    bad = seen(leases_failed=30, leases_in_time=10, groups_clean=10)
    assert of(bad).strikes == (SoftStrike.ABANDONED,)
    assert not of(bad, seen(leases_in_time=80, groups_clean=80)).strikes


# Service


def test_service_only_adds() -> None:
    work = {"leases_in_time": 50, "leases_failed": 10, "groups_clean": 50}
    without, gave = of(seen(**work)), of(seen(**work, bytes_given=500, bytes_had=1000))
    takes = of(seen(**work, bytes_had=10**12))
    assert takes.score == without.score, "a peer that cannot relay must lose nothing"
    assert gave.service == 0.5
    assert gave.score == pytest.approx(without.score + (1 - without.score) * SERVICE_GAIN / 2)
    assert of(seen(bytes_given=1)).service == 1.0
    assert of(seen(bytes_given=10**15, bytes_had=1)).service == 1.0


def test_service_hides_neither_strikes_nor_much() -> None:
    found = of(seen(audits_failed=3, bytes_given=10**15))
    assert found.strikes
    assert found.score < 0.125 + SERVICE_GAIN


# Bands


@pytest.mark.parametrize(
    ("counted", "band"),
    [
        ({"leases_in_time": int(NEW_BELOW) - 1}, Band.NEW),
        ({"leases_in_time": int(NEW_BELOW)}, Band.STEADY),
        ({"leases_in_time": 85, "leases_failed": 15}, Band.FAIR),
        ({"leases_in_time": 68, "leases_failed": 32}, Band.UNSTEADY),
        ({"leases_in_time": 10, "leases_failed": 90}, Band.QUARANTINED),
        ({"leases_in_time": 100, "groups_clean": 80, "groups_blamed": 20}, Band.QUARANTINED),
    ],
)
def test_bands(counted: dict[str, Any], band: Band) -> None:
    found = of(seen(**counted))
    assert found.band is band
    assert band is not Band.STEADY or found.score >= STEADY
    assert band is not Band.FAIR or STEADY > found.score >= FAIR
