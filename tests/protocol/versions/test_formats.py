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
    format_extension,
    format_of,
    formats_extension,
    taken_formats,
)


def test_what_is_as_published_is_not_said() -> None:
    assert format_extension(STORED) == {}
    assert format_of({}) == STORED
    assert formats_extension([STORED]) == {}
    assert taken_formats({}) == (STORED,)


def test_what_is_said_is_heard() -> None:
    assert format_extension(INT8) == {QUANTIZED: b"int8"}
    assert format_of(format_extension(INT4)) == INT4
    for forms in ((STORED, INT8), (INT4,), (INT8, INT4, STORED)):
        assert taken_formats(formats_extension(forms)) == forms


@given(word=st.binary(max_size=4096))
def test_words_of_strangers_are_short_and_do_nothing(word: bytes) -> None:
    heard = [format_of({QUANTIZED: word}), *taken_formats({QUANTIZED: word})]
    assert all(one.isprintable() and len(one) < 1000 for one in heard)
    assert len(heard) <= 1 + MOST_FORMATS
