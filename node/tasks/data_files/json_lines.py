"""Read JSON Lines: one object per line, UTF-8, with or without a byte order mark. Blank lines are skipped.

Invariants:

- The digest is that of the lines that are not blank, in order. Blank lines and byte order marks do not change it.
- If a task reads a field, a duplicate key in that place is an error, because parsers differ in which value they take.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_line, without_mark
from node.tasks.api.interface import TaskError
from node.tasks.data_files.formats import advice
from node.tasks.data_files.rows import MAX_ROW_CHARACTERS, BadRow, DataFile, Row, heads, name_text
from node.tasks.data_files.several_files import open_files

_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")

_Fields = dict[str, msgspec.Raw]


class JsonLines(DataFile):
    """A JSON Lines file."""

    unit = "line"

    def rows(self, wanted: Collection[str]) -> Iterator[Row]:
        asked = heads(wanted)
        for number, line in self._lines():
            try:
                row = _read_row(number, line, asked)
            except ValueError as error:
                raise self._reject_line(number, line, error) from error
            self.digest.update(line + b"\n")
            yield row

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (number from 1, content) of each line that is not blank."""
        try:
            data = read_file(self.path)
        except OSError as error:
            what_next = advice(self.path, "Name a JSON Lines file.")
            raise TaskError(f"{self.path}: cannot be read: {error.strerror}. {what_next}") from error
        found = False
        # A byte order mark can be at the beginning of any line, because files are made by joining others.
        for number, ended in enumerate(io.BytesIO(data), start=1):
            if (line := without_mark(ended.removesuffix(b"\n"))).strip():
                found = True
                yield number, line
        if not found:
            raise TaskError(f'{self.path}: holds no lines. Write one object per line: {{"prompt": "...", ...}}.')

    def _reject_line(self, number: int, line: bytes, error: ValueError) -> TaskError:
        if number == 1 and (what_next := advice(self.path, "")):
            return TaskError(f"{self.path}: is not a JSON Lines file. {what_next}")
        if number == 1 and line.lstrip().startswith(b"["):
            error = BadRow(str(error), "Write one object per line, as `jq -c .[]` does with a list")
        return self.reject(number, error)


def _read_row(number: int, line: bytes, asked: frozenset[str]) -> Row:
    """Return the row in a line. Raises ValueError, which says what is wrong."""
    if len(line) > MAX_ROW_CHARACTERS:
        raise ValueError(f"longer than {MAX_ROW_CHARACTERS} bytes")
    try:
        found = parse_line(line, _Fields)
        fields = {name: parse_line(bytes(raw), object) for name, raw in found.items() if name in asked}
    except ValueError as error:
        if half := _half_of_a_pair(line):
            raise ValueError(f"`{half}` is half of a surrogate pair, which is not a character") from error
        raise
    if doubled := _doubled_key(line, asked):
        raise ValueError(f"has the key `{name_text(doubled)}` twice in one object")
    return Row(number=number, fields=fields, names=tuple(found), nested=partial(_nested, found))


def _nested(found: _Fields) -> list[str]:
    """Return the names of the fields inside the objects of a line."""
    objects = {name: raw for name, raw in found.items() if bytes(raw).startswith(b"{")}
    return [f"{name}.{inner}" for name, raw in objects.items() for inner in parse_line(bytes(raw), _Fields)]


def _half_of_a_pair(line: bytes) -> str:
    """Return the first half of a surrogate pair without its other half, as it is written; "" if there is none."""
    pair = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
    halves = _HALF.findall(pair.sub(b"", line.replace(b"\\\\", b"")))
    return halves[0].decode() if halves else ""


class _Doubled(dict[str, Any]):
    """An object with duplicate keys, which `keys_twice` lists."""

    keys_twice: frozenset[str]


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    doubled = _Doubled(value)
    keys = [key for key, _ in pairs]
    doubled.keys_twice = frozenset(key for key in value if keys.count(key) > 1)
    return doubled


# Numbers stay text, because Python refuses numbers of more than 4,300 digits.
_DOUBLES = json.JSONDecoder(object_pairs_hook=_read_object, parse_int=str, parse_float=str)


def _doubled_key(line: bytes, asked: frozenset[str]) -> str:
    """Return a duplicate key of the object in a line if it is in `asked`, or one in an object inside such a field; ""
    if there is none. The line must be valid JSON.
    """
    # Invalid UTF-8 can only be in fields that are ignored.
    whole = _DOUBLES.decode(line.decode(errors="replace"))
    if isinstance(whole, _Doubled) and (mine := whole.keys_twice & asked):
        return min(mine)
    inner = (whole[name] for name in asked if isinstance(whole.get(name), dict | list))
    return next((key for value in inner if (key := _inner_doubled(value))), "")


def _inner_doubled(value: Any) -> str:
    """Return a duplicate key of any object inside `value`. It does not recurse, as the value may be deeply nested."""
    left = [value]
    while left:
        match left.pop():
            case _Doubled() as one:
                return min(one.keys_twice)
            case dict() as one:
                left += one.values()
            case list() as one:
                left += one
    return ""


def open_json_lines(path: Path) -> DataFile:
    """Return the file at `path`, or the files that it names. Raises TaskError."""
    return open_files(path, (".jsonl", ".json"), JsonLines)
