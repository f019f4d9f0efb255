"""Read the two forms of a pool as raw rows: TOML with a `[[machine]]` for each, and CSV with the same columns.

Invariants:

- Each row carries its name in messages. Only the form is checked here, not the values.
- An error is a UsageError that names the file and the line, and what to do.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_toml, text_of
from node.commands.plan.pool_keys import COLUMNS, quoted_value
from node.runtime.errors import UsageError

MAX_FILE_BYTES = 1 << 20
"""Most bytes of a pool: ten thousand rows. A larger file is not a pool."""

LISTS = ("machine", "absence", "change")
"""Tables that a TOML file may repeat."""


@dataclass(frozen=True)
class Row:
    where: str
    values: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Tables:
    swarm: Mapping[str, object]
    machines: Sequence[Row]
    absences: Sequence[Row] = ()
    changes: Sequence[Row] = ()


def read_tables(path: Path) -> Tables:
    """Return the contents of the file, read by its ending. Raises UsageError."""
    readers: dict[str, Callable[[Path, bytes], Tables]] = {".toml": _read_toml, ".csv": _read_csv}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"{path} ends neither in .toml nor in .csv. Name a pool of machines in one of these forms.")
    try:
        return reader(path, _bytes_of(path))
    except NotText as error:
        raise UsageError(f"{path} {error}.") from None


def _bytes_of(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} has more than {MAX_FILE_BYTES} bytes, so it is not a pool of machines.")
        return read_file(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Name a pool of machines.") from None


def _read_toml(path: Path, data: bytes) -> Tables:
    try:
        raw = parse_toml(data)
    except NotText:
        raise
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    for name in raw:
        if name not in ("swarm", *LISTS):
            known = ", ".join(["[swarm]", *(f"[[{one}]]" for one in LISTS)])
            raise UsageError(f"{path}: unknown table {quoted_value(name)}. Known are: {known}.")
    swarm = raw.get("swarm", {})
    if not isinstance(swarm, dict):
        raise UsageError(f"{path}: swarm is not a table; begin it with [swarm].")
    machines, absences, changes = (_list(path, raw, name) for name in LISTS)
    return Tables(swarm=swarm, machines=machines, absences=absences, changes=changes)


def _list(path: Path, raw: Mapping[str, Any], name: str) -> list[Row]:
    rows = raw.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: {name} is not a list of tables; begin each {name} with [[{name}]].")
    return [Row(f"{path}, {name} {number}", row) for number, row in enumerate(rows, start=1)]


def _read_csv(path: Path, data: bytes) -> Tables:
    reader = csv.reader(io.StringIO(text_of(data), newline=""), skipinitialspace=True, strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error}. From there on the file is not valid CSV.") from None
    if not rows:
        return Tables(swarm={}, machines=[])
    _, header = rows[0]
    if doubled := {name for name in header if header.count(name) > 1}:
        raise UsageError(f"{path}, line {rows[0][0]}: the column {quoted_value(min(doubled))} appears twice.")
    known = {key.name: key for key in COLUMNS}
    if unknown := [name for name in header if name not in known]:
        parted = " Columns are separated by commas." if len(header) == 1 else ""
        raise UsageError(
            f"{path}, line {rows[0][0]}: unknown column {quoted_value(unknown[0])}.{parted} Known are: "
            f"{', '.join(known)}."
        )
    return Tables(swarm={}, machines=list(_csv_rows(path, header, rows[1:])))


def _csv_rows(path: Path, header: Sequence[str], rows: Sequence[tuple[int, list[str]]]) -> Iterator[Row]:
    for number, row in rows:
        where = f"{path}, line {number}"
        if len(row) > len(header):
            raise UsageError(
                f"{where}: {len(row)} cells under {len(header)} columns. Write decimals with a point, not a comma."
            )
        yield Row(where, dict(zip(header, row, strict=False)))
