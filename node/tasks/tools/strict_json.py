"""Parse JSON that a policy wrote, into a value or a sentence that says what is wrong.

Invariants:

- Nothing raises, and the time depends only on the length of the text.
- The sentences are our own, and every limit is checked here. So a text gives the same value or sentence on every
  machine and with every Python, which the replay of an episode needs.
- A value has no NaN, no infinity, no duplicate key, no half of a surrogate pair, and at most MAX_DEPTH levels.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

MAX_DEPTH = 64
"""Maximum levels of brackets. Arguments of tools have a handful; Python's parser gives up at about a thousand."""

MAX_DIGITS = 1000
"""Maximum digits of a whole number. The conversion takes time that grows with their square."""

PARTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}\[\]]', re.DOTALL)
"""Strings, which may contain brackets, and brackets. Nothing can match in two ways, so it never backtracks."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A parsed value, and the position in the text after it."""

    value: Any
    end: int


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """The mistake in the JSON, as a clause, and the position in the text after it, as far as that is known."""

    why: str
    end: int


def read_value(text: str, start: int) -> Value | Wrong:
    """Return the object or list that begins at `start`, which must be "{" or "["."""
    found = _end_of(text, start)
    if isinstance(found, Wrong):
        return found
    try:
        value = json.loads(
            text[start:found],
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=_int,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except _Refused as refused:
        return Wrong(why=str(refused), end=found)
    except UnicodeEncodeError:
        return Wrong(why="holds half of a surrogate pair", end=found)
    except ValueError:
        return Wrong(why="is not JSON", end=found)
    return Value(value=value, end=found)


def _end_of(text: str, start: int) -> int | Wrong:
    """Return the position after the bracket that closes the one at `start`."""
    depth = 0
    for part in PARTS.finditer(text, start):
        if (mark := part[0]) in ("{", "["):
            depth += 1
        elif mark in ("}", "]"):
            depth -= 1
        if depth > MAX_DEPTH:
            return Wrong(why=f"nests deeper than {MAX_DEPTH} levels", end=len(text))
        if depth <= 0:
            return part.end()
    return Wrong(why="is not JSON: it does not end", end=len(text))


class _Refused(ValueError):
    """JSON that is not accepted; the message says why."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refused("has a key twice")
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise _Refused(f"holds {word}, which is no number of JSON")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused("holds a number that is too large")
    return number


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _Refused("holds a number that is too large")
    return int(text)
