"""Read text and JSON that people provide: configurations, problems, logs, the files of a model directory.

Editors and shells add a byte order mark. Anybody can nest brackets so deeply that a parser gives up with
RecursionError, which is no ValueError and would end a program with a traceback. So every such file is read here.

Invariants:

- A byte order mark at the beginning of UTF-8 is no part of the text.
- Unreadable input raises ValueError, whose message says in words what is wrong.
- A returned JSON value is nested at most MAX_NESTING deep, so later code can walk through it.
"""

from __future__ import annotations

import codecs
import json
import tomllib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from protocol.core.codec import ready

MAX_NESTING = 256
"""Levels of lists and objects in one JSON value. Configurations have about ten; Python's stack ends at about 1,000."""

TOO_DEEP = "its brackets are nested too deeply"

_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

R = TypeVar("R")


class NotText(ValueError):
    """Bytes are no UTF-8 text. The message continues a sentence that begins with the name of the file."""


def without_mark(data: bytes) -> bytes:
    """Return `data` without the byte order mark that UTF-8 may begin with."""
    return data.removeprefix(codecs.BOM_UTF8)


def text_of(data: bytes) -> str:
    """Return the text in `data`, which is UTF-8 with or without a byte order mark. Raises NotText."""
    if data.startswith(_OTHER_MARKS):
        raise NotText("is UTF-16 text, not UTF-8; save it as UTF-8")
    try:
        return without_mark(data).decode()
    except UnicodeDecodeError as error:
        raise NotText(f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return the table in a TOML file. Raises NotText, or another ValueError."""
    text = text_of(data)
    return _of_bounded_depth(lambda: tomllib.loads(text))


def parse_json(data: bytes) -> Any:
    """Return the value in a JSON file. Raises NotText, or another ValueError."""
    text = text_of(data)
    return _of_bounded_depth(lambda: json.loads(text))


def parse_config(data: bytes) -> Any:
    """Return the value in a config.json. A byte order mark is an error, because transformers does not read it. Raises
    as `parse_json`."""
    if data.startswith(codecs.BOM_UTF8):
        raise NotText("begins with a byte order mark, which transformers does not read; save it as UTF-8 without one")
    return parse_json(data)


def parse_line(line: bytes, kind: type[R]) -> R:
    """Return a line of JSON as a value of `kind`, a type that msgspec knows. Raises ValueError."""
    try:
        return _of_bounded_depth(lambda: msgspec.json.decode(without_mark(line), type=ready(kind)))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except msgspec.ValidationError as error:
        raise ValueError(_plain(str(error))) from None
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _of_bounded_depth(parse: Callable[[], R]) -> R:
    try:
        value = parse()
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if _depth_exceeds(value, MAX_NESTING):
        raise ValueError(TOO_DEEP)
    return value


def _depth_exceeds(value: Any, limit: int) -> bool:
    """Return whether lists and objects are nested more than `limit` deep. Goes level by level, to avoid recursion."""
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _plain(message: str) -> str:
    """Return msgspec's message without its type names; `$` is the line itself."""
    return message.replace("`object`", "an object").replace(" - at `$.", " - in field `")
