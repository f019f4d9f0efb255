"""Choose the prompt that is leased next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.open_leases import Prompt
from learner.rollouts.prompt_choice import MOST_WINDOW, PROMPTS_AHEAD, WINDOW_TOKENS, Prompts


def drawing(lengths: Sequence[int] = (3,)) -> Callable[[], Prompt]:
    """Endless prompts of these lengths in turn."""
    numbers = count()

    def draw() -> Prompt:
        index = next(numbers)
        return Prompt(task="even", index=index, tokens=(1,) * lengths[index % len(lengths)])

    return draw


def taken(prompts: Prompts, number: int, *, short: bool = False) -> list[int]:
    return [next_of(prompts, short=short).index for _ in range(number)]


def next_of(prompts: Prompts, *, short: bool = False) -> Prompt:
    prompt = prompts.take(short=short)
    assert prompt is not None
    return prompt


@given(st.binary(min_size=32, max_size=32), st.lists(st.integers(1, 9), min_size=1, max_size=20), st.booleans())
def test_what_is_taken_is_one_of_the_next_few_and_each_comes_once(key: bytes, lengths: list[int], short: bool) -> None:
    prompts = Prompts(draw=drawing(lengths), key=key)
    order = taken(prompts, 200, short=short)
    assert len(set(order)) == 200
    assert all(index < place + PROMPTS_AHEAD for place, index in enumerate(order))


def test_who_knows_the_tasks_order_does_not_know_which_prompt_comes() -> None:
    """With 64 keys each of the next few is somebody's first, and after any first there are as good as all seconds."""
    firsts, seconds = set(), set()
    for number in range(64):
        first, second = taken(Prompts(draw=drawing(), key=bytes([number]) * 32), 2)
        firsts.add(first)
        seconds.add(second)
    assert firsts == set(range(PROMPTS_AHEAD))
    assert seconds == set(range(PROMPTS_AHEAD + 1))


def test_the_same_key_gives_the_same_order() -> None:
    one, other = (Prompts(draw=drawing(), key=bytes(32)) for _ in range(2))
    assert taken(one, 50) == taken(other, 50)


def test_nobody_waits_for_long() -> None:
    """A prompt is passed over with probability 7/8 each time: never 200 times in a row."""
    order = taken(Prompts(draw=drawing(), key=bytes(32)), 2000)
    assert all(place < index + 200 for place, index in enumerate(order))


@given(st.binary(min_size=32, max_size=32), st.integers(0, 20), st.booleans())
def test_what_was_put_back_is_the_next_ones(key: bytes, before: int, short: bool) -> None:
    prompts = Prompts(draw=drawing((5, 2, 7)), key=key)
    taken(prompts, before)
    refused = next_of(prompts, short=short)
    prompts.put_back(refused)
    assert prompts.take(short=short) == refused


def test_a_slow_peer_is_given_the_shortest_of_the_next_few() -> None:
    prompts = Prompts(draw=drawing((5, 4, 9, 2, 2, 7, 8, 6)), key=bytes(32))
    assert {len(next_of(prompts, short=True).tokens) for _ in range(2)} == {2}
    assert len(next_of(prompts, short=True).tokens) == 4


def test_what_a_restart_finds_leased_is_passed_over_once() -> None:
    """The task goes back to its beginning, and over and over through six prompts."""
    draws = count()
    prompts = Prompts(draw=lambda: Prompt(task="six", index=next(draws) % 6, tokens=(1,)), key=bytes(32))
    taken(prompts, 3)
    draws = count()
    prompts.recover([1, 3])
    order = taken(prompts, 600)
    came = Counter(order + [prompt.index for prompt in prompts.ahead])
    assert came == Counter(place % 6 for place in range(next(draws))) - Counter([1, 3])


@given(st.binary(min_size=32, max_size=32), st.lists(st.integers(0, 3), max_size=60), st.booleans())
def test_a_prompt_that_is_not_written_yet_is_waited_for_and_nothing_else_changes(
    key: bytes, waits: list[int], short: bool
) -> None:
    """Or whoever slows the writing down would choose."""
    ready, written = drawing((5, 2, 7)), iter(waits)
    left = next(written, 0)

    def draw() -> Prompt | None:
        nonlocal left
        if left:
            left -= 1
            return None
        left = next(written, 0)
        return ready()

    slow, order = Prompts(draw=draw, key=key), list[int]()
    while len(order) < 40:
        if (prompt := slow.take(short=short)) is not None:
            order.append(prompt.index)
    assert order == taken(Prompts(draw=drawing((5, 2, 7)), key=key), 40, short=short)


def longest(prompt: Prompt) -> float:
    """As if completions were as long as their prompts."""
    return float(len(prompt.tokens))


SIZES = (5, 2, 7, 1, 9, 3)


def windowed(key: bytes = bytes(32), draw: Callable[[], Prompt | None] | None = None) -> Prompts:
    return Prompts(draw=draw or drawing(SIZES), key=key, length=longest)


@given(st.binary(min_size=32, max_size=32), st.integers(1, 40))
def test_a_window_has_what_would_come_without_one_the_longest_first(key: bytes, together: int) -> None:
    """So what is trained on is the same, whatever it is long."""
    prompts, order = windowed(key), taken(Prompts(draw=drawing(SIZES), key=key), 3 * together)
    for first in range(0, 3 * together, together):
        window = [next_together(prompts, together) for _ in range(together)]
        assert sorted(prompt.index for prompt in window) == sorted(order[first : first + together])
        sizes = [len(prompt.tokens) for prompt in window]
        assert sizes == sorted(sizes, reverse=True)


def next_together(prompts: Prompts, together: int, *, short: bool = False) -> Prompt:
    prompt = prompts.take(short=short, together=lambda: together)
    assert prompt is not None
    return prompt


def test_a_window_ends_before_the_next_begins() -> None:
    prompts = windowed()
    first = {next_together(prompts, 12).index for _ in range(11)}
    left = prompts.window[0][1].index
    assert next_together(prompts, 500).index == left
    assert len(prompts.window) == 0
    assert left not in first


def test_a_window_is_bounded() -> None:
    prompts = windowed()
    next_together(prompts, 10 * MOST_WINDOW)
    assert len(prompts.window) == MOST_WINDOW - 1
    long = Prompts(draw=drawing((WINDOW_TOKENS // 4,)), key=bytes(32))
    next_together(long, 100)
    assert len(long.window) == 3


def test_who_is_slow_has_the_shortest_of_a_window() -> None:
    prompts = windowed()
    assert len(next_together(prompts, 24, short=True).tokens) == 1
    assert len(next_together(prompts, 24).tokens) == 9


def test_what_does_not_fit_is_left_to_others() -> None:
    prompts = windowed()
    next_together(prompts, 24)
    lengths = [length for length, _ in prompts.window]
    prompt = prompts.take(short=False, place=lambda left: left.index(5.0))
    assert prompt is not None
    assert len(prompt.tokens) == 5
    lengths.remove(5.0)
    assert [length for length, _ in prompts.window] == lengths, "the longest prompt that fits must be taken"


@given(st.integers(0, 30), st.booleans())
def test_what_was_put_back_into_a_window_is_the_next_ones(before: int, short: bool) -> None:
    prompts = windowed()
    for _ in range(before):
        next_together(prompts, 12)
    refused = next_together(prompts, 12, short=short)
    prompts.put_back(refused)
    assert next_together(prompts, 12, short=short) == refused


def test_a_window_waits_for_what_is_not_written_yet() -> None:
    """Or whoever slows the writing down would choose what is in it."""
    ready, turn = drawing(SIZES), count()

    def draw() -> Prompt | None:
        return ready() if next(turn) % 3 == 0 else None

    slow, prompts, order = windowed(draw=draw), windowed(), list[int]()
    while len(order) < 40:
        if (prompt := slow.take(short=False, together=lambda: 12)) is not None:
            order.append(prompt.index)
    assert order == [next_together(prompts, 12).index for _ in range(40)]


def test_what_was_drawn_and_not_leased_is_known_and_a_restart_begins_anew() -> None:
    prompts = windowed()
    leased = {next_together(prompts, 12).index for _ in range(5)}
    drawn = 12 + PROMPTS_AHEAD - 1
    assert len(prompts.unleased) == drawn - 5
    assert set(prompts.unleased) == set(range(drawn)) - leased
    prompts.recover([])
    assert prompts.unleased == []
