"""How records, greetings and terms name the format of weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.versions.formats import (
    INT4,
    INT8,
    MOST_FORMATS,
    QUANTIZED,
    STORED,
    format_of,
    taken_formats,
    told_format,
    told_formats,
)


def test_what_is_as_published_is_not_said() -> None:
    assert told_format(STORED) == {}
    assert format_of({}) == STORED
    assert told_formats([STORED]) == {}
    assert taken_formats({}) == (STORED,)


def test_what_is_said_is_heard() -> None:
    assert told_format(INT8) == {QUANTIZED: b"int8"}
    assert format_of(told_format(INT4)) == INT4
    for forms in ((STORED, INT8), (INT4,), (INT8, INT4, STORED)):
        assert taken_formats(told_formats(forms)) == forms


@given(word=st.binary(max_size=4096))
def test_words_of_strangers_are_short_and_do_nothing(word: bytes) -> None:
    heard = [format_of({QUANTIZED: word}), *taken_formats({QUANTIZED: word})]
    assert all(one.isprintable() and len(one) < 1000 for one in heard)
    assert len(heard) <= 1 + MOST_FORMATS
