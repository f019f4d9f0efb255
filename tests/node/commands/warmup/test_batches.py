"""Choose the examples of each step of a warm-up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.commands.warmup.batches import Bounds, Endless, Finite
from node.learner_role.training.supervised import Example, example_of


def example(number: int, length: int = 4) -> Example:
    return example_of([((number,) * (length - 1), False), ((2,), True)])


def numbers(batch: list[Example]) -> list[int]:
    return [int(one.tokens[0]) for one in batch]


@given(
    lengths=st.lists(st.integers(2, 30), min_size=1, max_size=40),
    tokens=st.integers(1, 60),
    most=st.integers(1, 9),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_every_pass_has_each_example_once_within_the_bounds(
    lengths: list[int], tokens: int, most: int, epochs: int, seed: int
) -> None:
    examples = [example(number, length) for number, length in enumerate(lengths)]
    found = Finite(examples, Bounds(tokens=tokens, examples=most), seed, epochs=epochs)
    batches = [found.batch(step) for step in range(found.total)]
    for batch in batches:
        assert len(batch) <= most
        assert len(batch) == 1 or sum(map(len, batch)) <= tokens
    told = [number for batch in batches for number in numbers(batch)]
    for number in range(epochs):
        assert sorted(told[number * len(lengths) : (number + 1) * len(lengths)]) == list(range(len(lengths)))


def test_passes_differ_in_their_order_and_a_longer_warm_up_begins_alike() -> None:
    examples, bounds = [example(number) for number in range(40)], Bounds(tokens=20, examples=64)
    two, three = (Finite(examples, bounds, 1, epochs=epochs) for epochs in (2, 3))
    assert [numbers(two.batch(step)) for step in range(two.total)] == [
        numbers(three.batch(step)) for step in range(two.total)
    ]
    half = two.total // 2
    assert [numbers(two.batch(step)) for step in range(half)] != [
        numbers(two.batch(step)) for step in range(half, two.total)
    ]


@pytest.mark.parametrize("steps", [1, 8, 9, 30])
def test_so_many_steps_take_as_many_passes_as_they_need(steps: int) -> None:
    examples = [example(number) for number in range(40)]
    found = Finite(examples, Bounds(tokens=20, examples=64), 1, epochs=3, steps=steps)
    assert found.total == steps
    assert numbers(found.batch(steps - 1))


def test_tasks_without_end_are_drawn_by_weight_and_found_again() -> None:
    drawn = Counter[int]()

    def draw(task: int, before: int) -> Example | None:
        drawn[task] += 1
        return example(10 * task + before % 10)

    def made() -> Endless:
        return Endless(draw=draw, weights=[3.0, 1.0], bounds=Bounds(tokens=1000, examples=8), total=5)

    one, other = made(), made()
    assert [numbers(one.batch(step)) for step in range(5)] == [numbers(other.batch(step)) for step in range(5)]
    assert drawn == {0: 60, 1: 20}
    assert numbers(made().batch(3)) == numbers(one.batch(3)), "a step alone is what it is in order"


def test_what_cannot_be_learnt_and_what_does_not_fit_is_passed_over() -> None:
    def draw(_: int, before: int) -> Example | None:
        return None if before % 2 else example(before, 6)

    found = Endless(draw=draw, weights=[1.0], bounds=Bounds(tokens=13, examples=8), total=2)
    assert numbers(found.batch(0)) == [0, 2]
    assert numbers(found.batch(1)) == [8, 10]
    none = Endless(draw=lambda *_: None, weights=[1.0], bounds=Bounds(tokens=13, examples=8), total=2)
    assert none.batch(0) == []


def test_tokens_and_marks_take_five_bytes() -> None:
    one = example(3)
    assert one.tokens.nbytes + one.learnt.nbytes == 5 * len(one)
