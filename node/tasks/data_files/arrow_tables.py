"""Read the rows of Arrow's record batches like JSON, for Parquet files and saved data sets.

pyarrow is an optional package, and is imported at the first such file. It runs no code of a file and unpickles nothing.
Each batch is validated before a value is taken from it.

Invariants:

- A null is a missing field, also inside objects, because a column of Arrow has a place for every row.
- A whole number stays whole in any storage. Tools store whole numbers as floats as soon as one value is missing.
- Bytes are read as UTF-8 text. Days and times become ISO 8601 text, in UTC if they have a time zone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any

from learner.artifacts.text_files import MAX_NESTING, TOO_DEEP
from node.installation.extras import line_of_extra
from node.tasks.api.interface import TaskError
from node.tasks.data_files.rows import (
    MAX_ROW_CHARACTERS,
    MAX_TOTAL_CHARACTERS,
    DataFile,
    Row,
    characters,
    heads,
    too_much,
)
from protocol.core.visible import one_line

ROWS_AT_ONCE = 64
"""Rows of Parquet to read at once. They are decoded together, so the longest possible rows take a GiB. Larger batches
are no faster (200,000 rows of 200 characters: 0.07 s for 64, 0.05 s for 8,192)."""

MAX_BATCH_BYTES = ROWS_AT_ONCE * MAX_ROW_CHARACTERS
"""Maximum bytes of the columns to read in one batch. A data set's batches are as its writer made them, usually 1,000
rows."""

MAX_EXACT = 2**53
"""Above it, not every whole number is a float, so a float may stand for several."""


def load_pyarrow(path: object) -> Any:
    """Return the module pyarrow. Raises TaskError, which says how to install it."""
    try:
        import pyarrow
    except ImportError as error:
        raise TaskError(
            f"{path}: Parquet and Arrow files are read with pyarrow, which cannot be imported: {error}. "
            f"Type: {line_of_extra('tasks')}"
        ) from error
    return pyarrow


def one_line_of(error: BaseException) -> str:
    """Return an error of Arrow as one line."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return one_line(first, 200).rstrip(". ")


class ArrowRows:
    """The rows of all batches of one file, numbered from 1."""

    def __init__(self, file: DataFile, wanted: Collection[str]) -> None:
        self._file = file
        self._asked = heads(wanted)
        self._pyarrow = load_pyarrow(file.path)
        self._number = 0
        self._characters = 0

    def columns(self, names: Iterable[str]) -> list[str]:
        """Return the columns of `names` to read. Raises TaskError if one of them occurs twice."""
        names = list(names)
        chosen = [name for name in dict.fromkeys(names) if name in self._asked]
        if twice := next((name for name in chosen if names.count(name) > 1), ""):
            raise TaskError(f"{self._file.path}: has two columns `{twice}`. Rename one of the two.")
        return chosen

    def rows_of(self, batch: Any, schema: Any) -> Iterator[Row]:
        """Yield the rows of a batch of the columns to read. `schema` has all columns. Raises TaskError."""
        self._validate(batch)  # first, because counting the bytes of a damaged batch would crash the process
        if batch.nbytes > MAX_BATCH_BYTES:
            raise TaskError(
                f"{self._file.path}: the batch that begins with row {self._number + 1} has {batch.nbytes} bytes in the "
                f"columns to read; the maximum is {MAX_BATCH_BYTES}. Write the file again in smaller batches."
            )
        columns = {name: self._values(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        names, nested = tuple(schema.names), partial(_nested_names, schema)
        for index in range(batch.num_rows):
            self._number += 1
            try:
                fields = self._fields({name: values[index] for name, values in columns.items()})
            except ValueError as error:
                raise self._file.reject(self._number, error) from error
            yield Row(number=self._number, fields=fields, names=names, nested=nested)

    def _validate(self, batch: Any) -> None:
        """Raise TaskError if the batch is damaged. It names the first damaged row, or else all rows."""
        try:
            batch.validate(full=True)
        except self._pyarrow.ArrowException as error:
            bad = [index for index in range(batch.num_rows) if not self._is_whole(batch.slice(index, 1))]
            fix = "Download or write the file again, with text in UTF-8"
            first, last = self._number + 1, self._number + batch.num_rows
            # Nested columns are validated as a whole, whichever row is given.
            if 0 < len(bad) < batch.num_rows:
                first = last = first + bad[0]
            where = self._file.place(first) if first == last else f"{self._file.path}, rows {first} to {last}"
            raise TaskError(f"{where}: damaged, or not UTF-8 text: {one_line_of(error)}. {fix}.") from error

    def _is_whole(self, batch: Any) -> bool:
        try:
            batch.validate(full=True)
        except self._pyarrow.ArrowException:
            return False
        return True

    def _values(self, column: Any) -> list[Any]:
        """Return the values of a column. Raises TaskError."""
        arrow = self._pyarrow
        if isinstance(column, arrow.ExtensionArray):
            column = column.storage
        try:
            kind = column.type
            if arrow.types.is_timestamp(kind):
                column = column.cast(arrow.timestamp(kind.unit)).cast(arrow.string())
            elif arrow.types.is_temporal(kind):
                column = column.cast(arrow.string())
            elif arrow.types.is_float32(kind) or arrow.types.is_float16(kind):
                # Through text, because 0.1 has other digits as a 64-bit float.
                return [None if value is None else float(value) for value in column.cast(arrow.string()).to_pylist()]
            values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
            return values
        except (arrow.ArrowException, ValueError, OverflowError, KeyError, RecursionError) as error:
            raise TaskError(
                f"{self._file.path}: rows {self._number + 1} to {self._number + len(column)} cannot be read as values: "
                f"{one_line_of(error)}. Store the column as text or numbers."
            ) from error

    def _fields(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a row. Raises ValueError, which says what is wrong."""
        fields = {name: plain(value, 0) for name, value in values.items()}
        held = sum(map(characters, fields.values()))
        if held > MAX_ROW_CHARACTERS:
            raise ValueError(f"longer than {MAX_ROW_CHARACTERS} characters")
        self._characters += held
        if self._characters > MAX_TOTAL_CHARACTERS:
            raise too_much(MAX_TOTAL_CHARACTERS)
        return {name: value for name, value in fields.items() if value is not None}


def _nested_names(schema: Any) -> list[str]:
    """Return the names of the fields inside columns that are objects."""
    inside = [(column.name, column.type) for column in schema if hasattr(column.type, "names")]
    return [f"{outer}.{name}" for outer, kind in inside for name in kind.names]


def plain(value: Any, depth: int) -> Any:
    """Return a value of Arrow as JSON has it. Raises ValueError, which says what is wrong."""
    if depth > MAX_NESTING:
        raise ValueError(TOO_DEEP)
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return None if math.isnan(value) else int(value) if _is_whole(value) else value
        case dict():
            inner = {str(key): plain(one, depth + 1) for key, one in value.items()}
            return {key: one for key, one in inner.items() if one is not None}
        case list():
            return [plain(one, depth + 1) for one in value]
        case bytes():
            return _text(value)
        case Decimal():
            return format(value, "f")
        case datetime() | date() | time():
            return value.isoformat()
    raise ValueError(f"has a value of type {type(value).__name__}, which is neither text nor a number")


def _is_whole(value: float) -> bool:
    return value.is_integer() and abs(value) <= MAX_EXACT


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"has bytes that are not UTF-8 text (byte {error.start})") from error
