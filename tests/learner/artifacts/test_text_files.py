"""Read text and JSON that people hand in: byte order marks, other encodings, brackets without end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.artifacts.text_files import (
    MAX_NESTING,
    TOO_DEEP,
    NotText,
    parse_json,
    parse_line,
    parse_toml,
    text_of,
    without_mark,
)

MARK = b"\xef\xbb\xbf"


@given(st.text())
def test_a_mark_is_no_part_of_a_text(text: str) -> None:
    assert text_of(MARK + text.encode()) == text
    assert without_mark(MARK + MARK) == MARK, "only the first is one"


@given(st.binary())
def test_what_is_no_text_is_named(data: bytes) -> None:
    try:
        text = text_of(data)
    except NotText as error:
        said = str(error)
    else:
        assert text.encode() == without_mark(data)
        return
    assert said.startswith("is ")
    assert said.endswith("save it as UTF-8")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_called_so(encoding: str) -> None:
    marked = "\N{ZERO WIDTH NO-BREAK SPACE}{}" if encoding != "utf-16" else "{}"
    with pytest.raises(NotText, match="is UTF-16 text, not UTF-8; save it as UTF-8"):
        parse_json(marked.encode(encoding))


class Row(msgspec.Struct):
    a: int = 0


JSON: list[Callable[[bytes], Any]] = [
    parse_json,
    lambda data: parse_line(data, object),
    lambda data: parse_line(b'{"b": ' + data + b"}", Row),
    lambda data: parse_line(b'{"b": ' + data + b"}", dict[str, Any]),
]


@pytest.mark.parametrize("parse", JSON, ids=["whole", "any", "ignored", "field"])
@pytest.mark.parametrize("deep", [5_000, 200_000])
def test_brackets_without_end_are_an_error(parse: Callable[[bytes], Any], deep: int) -> None:
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse(b"[" * deep + b"]" * deep)
    with pytest.raises(ValueError, match=f"{TOO_DEEP}|not JSON|Expecting"):
        parse(b"[" * deep)


@pytest.mark.parametrize("text", ["a = {}", "a = [{}]"])
def test_and_so_they_are_in_toml(text: str) -> None:
    deep = text.format("[" * 5_000 + "]" * 5_000)
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_toml(deep.encode())
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_toml((".".join("a" * 5_000) + " = 1").encode())


def test_the_limit_is_far_below_what_the_stack_holds() -> None:
    """So that the same file is read, or refused, wherever that is asked; and whatever walks a value has room."""
    assert sys.getrecursionlimit() > MAX_NESTING * 3
    deepest = b"[" * MAX_NESTING + b"]" * MAX_NESTING
    assert json.dumps(parse_json(deepest)).encode() == deepest
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_json(b"[" + deepest + b"]")


@given(st.recursive(st.none() | st.integers(-9, 9) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)))
def test_all_else_is_read_as_it_is(value: Any) -> None:
    data = json.dumps(value).encode()
    assert parse_json(data) == parse_json(MARK + data) == parse_line(data, object) == value
