from __future__ import annotations

import pytest

from node.tasks.adapters.text_actions import Numbers, Text, Words, name_colors, words_of
from node.tasks.api.interface import TaskError

MOVES = words_of("left|down|right|up", 4, 0)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("left", 0),
        ("UP!", 3),
        ("Not left. I go down", 1),
        ("lefty", None),
        ("upright", None),
        ("", None),
    ],
)
def test_the_last_word_that_names_an_action_counts(text: str, action: int | None) -> None:
    assert MOVES.read(text) == action


def test_a_longer_word_is_not_taken_for_a_shorter_one() -> None:
    words = words_of("turn|turn left|go-1", 3, 5)
    assert [words.read(text) for text in ("turn left", "turn", "go-1", "go")] == [6, 5, 7, None]
    assert words.hint == "Say one of: turn, turn left, go-1."


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("3", 3),
        ("first 1, then 2", 2),
        ("move 0.", 0),
        ("6", None),
        ("-1", None),
        ("1.5", None),
        ("x3", None),
        ("٣", None),
        ("9" * 5000, None),
        ("", None),
    ],
)
def test_numbers(text: str, action: int | None) -> None:
    assert Numbers(count=6).read(text) == action


def test_numbers_from_another_start() -> None:
    numbers = Numbers(count=3, start=-1)
    assert numbers.hint == "Say a whole number from -1 to 1."
    assert [numbers.read(text) for text in ("-1", "1", "2", "nothing")] == [-1, 1, None, None]


@pytest.mark.parametrize(
    ("words", "said"), [("left|right", "names 2 actions, but there are 4"), ("a|b|c|A", "names an action twice")]
)
def test_words_that_do_not_fit_are_refused(words: str, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        words_of(words, 4, 0)


def test_text_is_taken_as_it_is_or_without_the_space_around_it() -> None:
    class Space:
        min_length, max_length, character_set = 1, 3, frozenset("abc")

        def contains(self, text: str) -> bool:
            return self.min_length <= len(text) <= self.max_length and set(text) <= self.character_set

    action = Text(space=Space())
    assert [action.read(text) for text in ("abc", " ab\n", "abcd", "")] == ["abc", "ab", None, None]
    assert action.hint == "Say 1 to 3 characters of the letters abc."


@pytest.mark.parametrize(
    ("shown", "read"),
    [
        ("\x1b[41mS\x1b[0mFF", "<red>S</red>FF"),
        ("|\x1b[34;1mR\x1b[0m: |\x1b[43m \x1b[0m:", "|<blue>R</blue>: |<yellow> </yellow>:"),
        ("\x1b[2J\x1b[1;1Hboard\x1b[0m", "board"),
        ("\x1b[1mbold\x1b[m", "bold"),
        ("\x1b[38;5;196mx\x1b[0m", "x"),
        ("\x1b]0;title\x07plain\x1b", "plain"),
        ("no colours", "no colours"),
    ],
)
def test_colours_become_words(shown: str, read: str) -> None:
    assert name_colors(shown) == read


def test_words_are_compared_without_capitals() -> None:
    assert Words(words=("Straße",)).read("straße") == 0
