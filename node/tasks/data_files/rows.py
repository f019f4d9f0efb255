"""Define a row of a data file: find the fields that a task needs by name, and report a row that cannot be used.

A name is that of a field, or a path into nested ones. `extra.final` is the field of that name if there is one, or else
`final` inside the object `extra`. Users of other trainers write answers like this (`reward_model.ground_truth`).

Invariants:

- In every format, a value is None, a bool, a number, text, a list, or a mapping with text keys.
- Every error about a row is a TaskError with the file, the row's number, the reason and the next step. It is one line,
  whatever the file holds.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from node.tasks.api.interface import TaskError
from protocol.core.visible import one_line, visible

MAX_ROW_CHARACTERS = 16 * 1024 * 1024
"""Maximum characters in the fields of a row that a task reads. No prompt that fits into a lease needs more. A file
without line ends is noticed before it fills the memory twice."""

MAX_TOTAL_CHARACTERS = 1 << 30
"""The same for all rows together, because all stay in memory: as many as a JSON Lines file may have bytes."""

MAX_NAMES_TOLD = 20
"""Fields that a message lists. A message should fit on a line, and few data sets have more columns."""

MAX_NAME_TOLD = 40
"""Characters of a name that a message shows."""

USUAL_NAMES = {
    "prompt": ("question", "problem", "query", "instruction", "input"),
    "answer": (
        *("final_answer", "expected_answer", "ground_truth", "reward_model.ground_truth"),
        *("result", "gold", "target", "label", "solution", "output"),
    ),
}
"""Names that data sets usually give to the field of an option, as a hint if no similar name is found."""

MISSING: Any = object()
"""Stands for a field that a row does not have. None is a value."""


class BadRow(ValueError):
    """A row cannot be used. `fix`: the next step, if it is not simply to correct the row."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row. `number`: counted from 1. `fields`: the wanted fields that it has. `names`: of all its fields.

    `nested`: returns the names of fields inside these, for messages.
    """

    number: int
    fields: Mapping[str, Any]
    names: Sequence[str]
    nested: Callable[[], Sequence[str]] = tuple

    def get(self, name: str) -> Any:
        """Return the value of the field, or MISSING if the row has none of that name."""
        return _find(self.fields, name)

    def require(self, name: str, key: str) -> Any:
        """Return the value of the field that the option `key` names. Raises BadRow, which lists the row's fields."""
        value = self.get(name)
        if value is not MISSING:
            return value
        if name in self.names:
            raise BadRow(f"`{name}` is empty")
        outer, _, inner = name.rpartition(".")
        around = self.get(outer) if outer else MISSING
        if around is not MISSING and not isinstance(around, Mapping):
            raise BadRow(f"has no field `{name}`, because `{outer}` is {kind_of(around)}, not an object")
        names = [*self.names, *self.nested()]
        usual = [name for name in USUAL_NAMES.get(key, ()) if name in names]
        close = (get_close_matches(name, names, n=1) or get_close_matches(inner, names, n=1) or [*usual, ""])[0]
        hint = f" (did you mean `{close}`?)" if close else ""
        fix = f"Name the field in the spec, {f'as in {key}={close}' if close else f'with {key}='}, or correct the row"
        raise BadRow(f"has no field `{name}`{hint}; its fields are {names_text(names) or 'none'}", fix)


def prefixes(name: str) -> list[str]:
    """Return the fields in which `name` may be found, longest first: `a.b` itself, then `a`."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _find(fields: Mapping[str, Any], name: str) -> Any:
    if name in fields:
        return fields[name]
    for outer in prefixes(name)[1:]:
        value, rest = fields.get(outer), name[len(outer) + 1 :]
        if isinstance(value, Mapping) and (found := _find(value, rest)) is not MISSING:
            return found
    return MISSING


def names_text(names: Sequence[str]) -> str:
    """Return the names as text for a message, or the first ones if there are many."""
    shown = ", ".join(f"`{name_text(name)}`" for name in names[:MAX_NAMES_TOLD])
    return shown + (f" and {len(names) - MAX_NAMES_TOLD} more" if len(names) > MAX_NAMES_TOLD else "")


def name_text(name: str) -> str:
    """Return a name that a file holds, or the start of a long one, as text for a message."""
    return one_line(name, MAX_NAME_TOLD)


def kind_of(value: Any) -> str:
    """Return the kind of a value, as a word with its article."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true or false"
    kinds = ((str, "text"), (int | float, "a number"), (Mapping, "an object"), (Sequence, "a list"))
    return next((word for kind, word in kinds if isinstance(value, kind)), type(value).__name__)


def characters(value: Any) -> int:
    """Return the approximate number of characters in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(characters, value.values()))
    return sum(map(characters, value)) if isinstance(value, list) else 8


def too_much(most: int) -> BadRow:
    """Return the error for rows that together have more than `most` characters."""
    fix = "Leave rows out, because all rows stay in memory"
    return BadRow(f"the rows up to here hold more than {most} characters", fix)


class DataFile(ABC):
    """A file whose rows are read once, from first to last. `digest`: of what has been read so far."""

    unit = "row"
    """The word for a row in messages, which says how rows are counted: "row", or "line" of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digest = hashlib.blake2b(digest_size=16)

    @abstractmethod
    def rows(self, wanted: Collection[str]) -> Iterator[Row]:
        """Yield all rows, with the fields in which the names of `wanted` may be found. Raises TaskError."""

    def place(self, number: int) -> str:
        """Return the file and the place of the row of that number, for messages."""
        return f"{self.path}:{number}" if self.unit == "line" else f"{self.path}, row {number}"

    def reject(self, number: int, error: ValueError) -> TaskError:
        """Return the error for a row that cannot be used."""
        fix = error.fix if isinstance(error, BadRow) else ""
        told = visible(f"{error}. {fix or f'Correct the {self.unit}, or remove it'}.").replace("\n", "\\n")
        return TaskError(f"{self.place(number)}: {told}")


def heads(wanted: Collection[str]) -> frozenset[str]:
    """Return the fields in which the names of `wanted` may be found."""
    return frozenset(outer for name in wanted for outer in prefixes(name))
