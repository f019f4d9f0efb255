"""Turn stays and leases into observations: which absences are excused, and fleets with like habits."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache

import pytest

from learner.trust.observations import EXCUSED_A_DAY, MISSED_MS, OCCASION_MS, Presence, abandoned, missed, present
from protocol.accounting.reputation import DAY_MS, ObservedDay, Reputation, SoftStrike, reputation_of

HOUR_MS = 3_600_000
DAY = 20_000
START_MS = DAY * DAY_MS


def presence(began_h: float, ended_h: float, *, vanished: bool = False) -> Presence:
    return Presence(
        began_ms=START_MS + round(began_h * HOUR_MS), ended_ms=START_MS + round(ended_h * HOUR_MS), vanished=vanished
    )


def test_time_is_cut_at_midnight_and_counts_once() -> None:
    found = present([presence(20, 30), presence(22, 26), presence(40, 41)])
    assert found == {DAY: 4 * HOUR_MS, DAY + 1: 7 * HOUR_MS}


def test_who_says_goodbye_misses_nothing_and_who_vanishes_a_little() -> None:
    later_ms = START_MS + 30 * HOUR_MS
    assert missed([presence(1, 2)], [], later_ms) == {}
    assert missed([presence(1, 2, vanished=True)], [], later_ms) == {DAY: MISSED_MS}
    soon_back = [presence(1, 2, vanished=True), presence(2.01, 3)]
    assert missed(soon_back, [], later_ms) == {DAY: HOUR_MS // 100}
    over_midnight = missed([presence(1, 24 - 1 / 60, vanished=True)], [], later_ms)
    assert over_midnight == {DAY: 60_000, DAY + 1: MISSED_MS - 60_000}


def test_nobody_misses_time_in_which_the_learner_was_away() -> None:
    presences, started_ms = [presence(1, 2, vanished=True), presence(3, 4)], START_MS + round(2.5 * HOUR_MS)
    assert missed(presences, [started_ms], START_MS + 4 * HOUR_MS) == {}
    assert missed(presences, [START_MS, START_MS + 4 * HOUR_MS], START_MS + 4 * HOUR_MS) == {DAY: MISSED_MS}


def test_who_is_here_on_another_line_is_not_missing() -> None:
    assert missed([presence(1, 2, vanished=True), presence(1.5, 5)], [], START_MS + 9 * HOUR_MS) == {}


def test_a_pardon_forgives_what_was_before() -> None:
    now_ms = START_MS + 9 * HOUR_MS
    assert missed([presence(1, 2, vanished=True)], [], now_ms, pardoned_ms=START_MS + 3 * HOUR_MS) == {}


def test_an_owner_may_take_his_machine_back_a_few_times_a_day_whatever_was_leased() -> None:
    times = [START_MS + n * HOUR_MS + m for n in range(EXCUSED_A_DAY) for m in range(0, OCCASION_MS, 1000)]
    assert abandoned(times) == {}
    often = [*times, START_MS + 20 * HOUR_MS, START_MS + 20 * HOUR_MS + 1, START_MS + 25 * HOUR_MS]
    assert abandoned(often) == {DAY: 2}, "the next day begins anew"


def test_giving_up_a_lease_now_and_then_all_day_is_not_excused() -> None:
    times = [START_MS + n * (OCCASION_MS + 1) for n in range(100)]
    assert abandoned(times) == {DAY: 100 - EXCUSED_A_DAY}


# Fleets


@dataclass(frozen=True, kw_only=True)
class Habit:
    """How a machine and its owner are, whatever they are worth: shares of leases, not numbers of them."""

    runs_out: float = 0.02
    vanishes_per_day: float = 0.2
    stops_per_day: float = 1.0
    audits_fail: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How large, how fast, and when it is on: all that must not matter."""

    leases_per_hour: float
    held: int = 1
    hours: tuple[float, float] = (0.0, 24.0)
    audited: float = 0.03
    relays: bool = False


LARGE = Machine(leases_per_hour=50.0, held=16, relays=True)
FLEETS = {
    "a hundredth of the speed": Machine(leases_per_hour=0.5, held=1),
    "behind a NAT": Machine(leases_per_hour=50.0, held=16),
    "nights only": Machine(leases_per_hour=50.0, held=16, hours=(19.0, 31.5)),
    "slow, at night": Machine(leases_per_hour=2.0, held=1, hours=(19.0, 31.5)),
    "an hour a day": Machine(leases_per_hour=24.0, held=4, hours=(20.0, 21.0)),
    "small and audited often": Machine(leases_per_hour=0.5, audited=0.5),
}
DAYS = 28
TOLERANCE = 0.02
"""Mean scores of fleets of the same habits are so close."""


def lived(machine: Machine, habit: Habit, rng: random.Random) -> Reputation:
    """Four weeks of one machine, through the same functions as a ledger's rows go."""
    presences, given_up, days = list[Presence](), list[int](), dict[int, dict[str, int]]()
    first_h, last_h = machine.hours
    for day in range(DAYS):
        counts = days.setdefault(DAY + day, {})
        hours = last_h - first_h
        leases = max(1, round(machine.leases_per_hour * hours))
        failed = sum(rng.random() < habit.runs_out for _ in range(leases))
        audits = sum(rng.random() < machine.audited for _ in range(leases - failed))
        wrong = sum(rng.random() < habit.audits_fail for _ in range(audits))
        counts |= {"leases_in_time": leases - failed, "leases_failed": failed, "groups_clean": leases - failed}
        counts |= {"audits_passed": audits - wrong, "audits_failed": wrong}
        if machine.relays:
            counts |= {"bytes_given": 10**9, "bytes_had": 10**9}
        at_h, vanishes = 24.0 * day + first_h, rng.random() < habit.vanishes_per_day * hours / 24
        middle_h = at_h + hours * rng.random()
        presences.append(presence(at_h, middle_h, vanished=vanishes))
        presences.append(
            presence(middle_h + (0.5 if vanishes else 0.0), 24.0 * day + last_h + (0.5 if vanishes else 0.0))
        )
        if rng.random() < habit.stops_per_day:
            given_up += [START_MS + round(middle_h * HOUR_MS)] * machine.held
    now_ms = START_MS + DAYS * DAY_MS
    here, missing, gave_up = present(presences), missed(presences, [], now_ms), abandoned(given_up)
    observed = [
        ObservedDay(
            day=day, present_ms=here[day], missed_ms=missing[day],
            **(counts | {"leases_failed": counts["leases_failed"] + gave_up[day]}),
        )
        for day, counts in days.items()
    ]  # fmt: skip
    return reputation_of(observed, DAY + DAYS - 1)


@cache
def fleet(machine: Machine, habit: Habit, size: int = 12) -> list[Reputation]:
    return [lived(machine, habit, random.Random(number)) for number in range(size)]


def mean_score(found: list[Reputation]) -> float:
    """Without what relaying adds, which only some can do."""
    return sum(replace(one, service=0.0).score for one in found) / len(found)


HABITS = {
    "careful": Habit(runs_out=0.0, vanishes_per_day=0.0),
    "usual": Habit(),
    "a bad line": Habit(runs_out=0.15, vanishes_per_day=3.0),
    "stops often": Habit(stops_per_day=3.0),
}


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("kind", FLEETS)
def test_the_same_habits_have_the_same_reputation_at_any_size(kind: str, habit: str) -> None:
    large, other = fleet(LARGE, HABITS[habit], 4), fleet(FLEETS[kind], HABITS[habit])
    assert mean_score(other) == pytest.approx(mean_score(large), abs=TOLERANCE)
    assert not any(one.strikes for one in [*large, *other]), "and nobody honest is in quarantine"


@pytest.mark.parametrize("kind", FLEETS)
def test_the_dishonest_are_found_at_any_size(kind: str) -> None:
    """Half of all leases abandoned, one group in ten wrong, all audited, as they are once one has failed."""
    found = fleet(replace(FLEETS[kind], audited=1.0), Habit(runs_out=0.5, audits_fail=0.1), 6)
    assert all(SoftStrike.ABANDONED in one.strikes for one in found)
    assert all(SoftStrike.AUDITS in one.strikes for one in found)


def test_the_small_are_never_in_quarantine_where_the_large_are_not() -> None:
    """At a share of failures just below what is allowed, and in a fleet of very small ones, where chance plays most."""
    habit = Habit(runs_out=0.24, vanishes_per_day=0.0, stops_per_day=0.0)
    tiny = Machine(leases_per_hour=0.25)
    assert not any(one.strikes for one in fleet(LARGE, habit, 1))
    assert sum(bool(one.strikes) for one in fleet(tiny, habit, 300)) <= 1
