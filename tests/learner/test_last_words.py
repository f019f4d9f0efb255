"""How ends are told, and what was said before them."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.last_words import LAST_WORDS, LINE_CHARS, how_ended, last_words


@pytest.mark.parametrize(
    ("returncode", "told"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL; if nobody did that, the machine ran out of memory"),
        (-40, "was killed by signal 40"),
    ],
)
def test_a_signal_has_its_name(returncode: int, told: str) -> None:
    assert how_ended(returncode) == told


def test_the_last_that_are_not_blank_are_quoted_oldest_first() -> None:
    assert last_words([]) == last_words(["", "  "]) == ()
    assert last_words(["before"] * 9 + ["one", "  two", "", "three ", " "]) == ("one", "two", "three")


@given(st.lists(st.text()))
def test_however_much_was_said_it_is_bounded(lines: list[str]) -> None:
    said = last_words(lines)
    assert len(said) <= LAST_WORDS
    assert all(line.strip() and len(line) <= LINE_CHARS for line in said)
    assert bool(said) == any(line.strip() for line in lines)
