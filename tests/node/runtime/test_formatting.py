"""Write figures for people."""

from __future__ import annotations

import pytest

from node.runtime import formatting as words


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (415_000, "415 kB"),
        (8_040_000, "8.04 MB"),
        (64.36e9, "64.4 GB"),
        (5e13, "50,000 GB"),
    ],
)
def test_decimal_sizes_have_three_digits_and_the_unit_that_fits(num_bytes: float, shown: str) -> None:
    assert words.decimal_size(num_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 s"), (0.437, "0.44 s"), (9.99, "9.99 s"), (9.999, "10 s"), (200, "3 min 20 s")]
)
def test_short_durations_are_told_apart(seconds: float, shown: str) -> None:
    assert words.short_duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0.000"), (0.00042, "0.00042"), (0.172, "0.172"), (1234.5, "1,234.5")]
)
def test_hours_of_a_second_and_of_a_month(value: float, shown: str) -> None:
    assert words.in_hours(value) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("", ""),
        ("short", "short"),
        ("one two three four five six", "one two three four\nfive six"),
        ("  an indented text goes on", "  an indented text\n  goes on"),
        ("  1. a point goes on below", "  1. a point goes on\n     below"),
        ("  label  a value of words", "  label  a value of\n         words"),
        ("  id     an_id_that_is_longer", "  id     an_id_that_is_longer"),
        ("a word_that_is_longer_than_a_line", "a\nword_that_is_longer_than_a_line"),
        ("then type `volery join x` here", "then type\n`volery join x` here"),
        ("It is missing. Type: volery engines install vllm", "It is missing.\nType: volery engines install vllm"),
    ],
)
def test_a_line_is_folded_at_words_and_commands_stay_whole(line: str, shown: str) -> None:
    assert words.folded(line, 20) == shown


def test_a_label_leaves_half_of_the_line() -> None:
    assert words.folded("  a very long label  with a value of many words", 24) == (
        "  a very long label\n            with a value\n            of many\n            words"
    )
