"""Answers are remembered within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.tasks.services.answer_cache import ENTRY_BYTES, AnswerCache


def test_the_one_that_was_not_asked_for_longest_is_forgotten() -> None:
    cache = AnswerCache(entries=2)
    cache.put(b"a", 1.0)
    cache.put(b"b", 0.0)
    assert cache.get(b"a") == 1.0
    cache.put(b"c", 0.5)
    assert [cache.get(one) for one in (b"a", b"b", b"c")] == [1.0, None, 0.5]


def test_names_take_room() -> None:
    cache = AnswerCache(entries=100, size=4 * ENTRY_BYTES)
    cache.put(b"a", 1.0)
    cache.put(b"b", {"x": 1.0, "y": None})
    assert cache.get(b"a") is None
    assert cache.get(b"b") == {"x": 1.0, "y": None}


def test_without_entries_nothing_is_remembered() -> None:
    cache = AnswerCache(entries=0)
    cache.put(b"a", 1.0)
    assert cache.get(b"a") is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([0.0, 1.0]))), st.integers(0, 4))
def test_no_more_is_held_than_allowed_and_what_is_held_is_the_newest(puts: list[tuple[str, float]], most: int) -> None:
    cache, newest = AnswerCache(entries=most, size=3 * ENTRY_BYTES), dict[str, float]()
    for name, reward in puts:
        cache.put(name.encode(), reward)
        newest[name] = reward
        assert len(cache) <= min(most, 3)
        assert cache.get(name.encode()) == (reward if most else None)
    assert all(cache.get(name.encode()) in (None, reward) for name, reward in newest.items())
