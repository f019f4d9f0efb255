"""Budgets of memory: no class of connections holds more than it may, and none pays for another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.libp2p.memory_budget import Budget, Over
from tests.support.memory_budgets import held_by, held_by_all

LIMITS = {"stranger_bytes": 100, "strangers_bytes": 250, "member_bytes": 1000, "members_bytes": 2500}


def small() -> Budget:
    return Budget(**LIMITS)


def test_who_exceeds_its_share_is_cut_off_and_gives_all_of_it_back() -> None:
    budget = small()
    budget.open(1, is_member=False)
    assert budget.change(1, 100) == []
    assert budget.change(1, 1) == [Over(number=1, of_all=False)]
    assert budget.change(1, 1) == []  # it was said
    budget.close(1)
    assert held_by_all(budget, members=False) == held_by(budget, 1) == 0
    assert budget.change(1, -50) == []
    assert held_by_all(budget, members=False) == 0


def test_when_all_hold_too_much_the_one_with_most_is_cut_off() -> None:
    budget = small()
    for number, held in ((1, 90), (2, 95), (3, 60)):
        budget.open(number, is_member=False)
        budget.change(number, held)
    budget.open(4, is_member=False)
    assert budget.change(4, 6) == [Over(number=2, of_all=True)]


def test_a_newcomer_with_little_stays_among_the_greedy() -> None:
    budget = small()
    for number in range(20):
        budget.open(number, is_member=False)
        for over in budget.change(number, 80):
            assert over.number != 99
            budget.close(over.number)
    budget.open(99, is_member=False)
    assert 99 not in [over.number for over in budget.change(99, 10)]


def test_members_hold_what_strangers_may_not() -> None:
    budget = small()
    budget.open(1, is_member=True)
    assert budget.change(1, 900) == []
    assert budget.promote(1, is_member=False) == [Over(number=1, of_all=False)]


def test_what_a_stranger_holds_counts_for_members_once_it_is_one() -> None:
    budget = small()
    budget.open(1, is_member=False)
    budget.change(1, 70)
    assert budget.promote(1, is_member=True) == []
    assert (held_by_all(budget, members=False), held_by_all(budget, members=True)) == (0, 70)
    assert budget.change(1, 500) == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("close"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("promote"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("change"), st.integers(0, 9), st.integers(-300, 1200)),
    ),
    max_size=150,
)


@given(steps)
def test_no_class_ever_holds_more_than_its_budget(done: list[tuple[str, int, int]]) -> None:
    """The driver's part is played as `Host` does it: whoever is named is closed at once."""
    budget, is_member, held = small(), dict[int, bool](), dict[int, int]()

    def end(over: list[Over], classes: set[bool]) -> None:
        for one in over:
            assert is_member[one.number] in classes, "a class paid for the other"
            budget.close(one.number)
            del is_member[one.number], held[one.number]

    for what, number, value in done:
        if what == "open" and number not in is_member:
            is_member[number], held[number] = bool(value), 0
            budget.open(number, is_member=bool(value))
        elif what == "close":
            budget.close(number)
            is_member.pop(number, None)
            held.pop(number, None)
        elif what == "promote" and number in is_member:
            is_member[number] = bool(value)
            end(budget.promote(number, is_member=bool(value)), {bool(value)})
        elif what == "change" and number in is_member:
            delta = max(value, -held[number])
            held[number] += delta
            end(budget.change(number, delta), {is_member[number]})
        for members, most, share in ((False, 250, 100), (True, 2500, 1000)):
            those = [held[one] for one in held if is_member[one] is members]
            assert held_by_all(budget, members=members) == sum(those) <= most
            assert max(those, default=0) <= share
