"""Choose the verifier to ask: the one that has the environment, otherwise the least busy one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from node.verifiers.seats import Seats
from tests.node.tasks.environments.test_live_environments import asked

BOTH = ("one", "two")


def test_who_goes_on_is_asked_where_its_environment_is() -> None:
    seats = Seats(at_once=2)
    assert seats.take(asked("p"), BOTH) == "one"
    seats.answered(asked("p"), "digest of a", "one")
    seats.leave("one")
    assert seats.take(asked("x"), ("two",)) == "two"
    assert seats.take(replace(asked("p", "q", answers=("a",)), digests=("digest of a",)), BOTH) == "one"


def test_others_are_spread_and_who_says_the_same_goes_to_the_same() -> None:
    seats = Seats(at_once=2)
    assert [seats.take(asked(word), BOTH) for word in "pqr"] == ["one", "two", "one"]
    assert seats.take(asked("q"), BOTH) == "two"


def test_episodes_that_come_one_after_the_other_are_spread_as_well() -> None:
    seats, found = Seats(at_once=2), []
    for word in "pqrs":
        found.append(seats.take(asked(word), BOTH))
        seats.leave(found[-1] or "")
    assert found == ["one", "two", "one", "two"]


def test_one_that_is_full_is_waited_for_where_the_environment_is_and_one_that_is_away_is_not() -> None:
    seats = Seats(at_once=1)
    assert seats.take(asked("p"), BOTH) == "one"
    assert seats.take(asked("p"), BOTH) is None
    assert seats.take(asked("p"), ("two",)) == "two"
    assert seats.take(asked("q"), BOTH) is None
    seats.leave("one")
    assert seats.take(asked("q"), BOTH) == "one"


def test_nobody_is_there() -> None:
    assert Seats(at_once=1).take(asked("p"), ()) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=60), st.integers(1, 3))
def test_no_verifier_is_asked_more_than_it_takes_and_none_stays_idle_for_one_that_is_new(
    events: list[tuple[str, bool, bool]], at_once: int
) -> None:
    seats, taken = Seats(at_once=at_once), {"one": 0, "two": 0}
    for number, (word, leaves, is_new) in enumerate(events):
        if leaves:
            if (busy := next((name for name in BOTH if taken[name]), None)) is not None:
                seats.leave(busy)
                taken[busy] -= 1
            continue
        name = seats.take(asked(f"{word}{number}" if is_new else word), BOTH)
        if name is None:
            assert not is_new or min(taken.values()) == at_once
            continue
        taken[name] += 1
        assert max(taken.values()) <= at_once
