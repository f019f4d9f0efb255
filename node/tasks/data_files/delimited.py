"""Read CSV and TSV files: the first line names the fields, and every other row has as many cells. Cells are text.

Python's own reader is used in its strict mode: a cell in quotes may contain delimiters, line ends and doubled quotes.
Messages name a row by the line where it begins, as an editor counts.

Invariants:

- The file is UTF-8, with or without a byte order mark, and contains no NUL.
- An empty cell is a missing field.
- The digest is that of the file's bytes.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Collection, Iterator
from pathlib import Path

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import without_mark
from node.tasks.api.interface import TaskError
from node.tasks.data_files.formats import advice
from node.tasks.data_files.rows import MAX_ROW_CHARACTERS, BadRow, DataFile, Row, heads, name_text, names_text
from node.tasks.data_files.several_files import open_files

TAB = "\t"

ENDINGS = (".csv", ".tsv")
"""What the names of such files end with."""

_OTHER_DELIMITERS = ";\t|"


class Delimited(DataFile):
    """A CSV or TSV file. `delimiter` is one character."""

    unit = "line"

    def __init__(self, path: Path, delimiter: str) -> None:
        super().__init__(path)
        self._delimiter = delimiter

    def rows(self, wanted: Collection[str]) -> Iterator[Row]:
        asked = heads(wanted)
        cells = self._cells()
        names = self._names(next(cells, (1, []))[1], asked)
        found = False
        for number, row in cells:
            found = True
            if len(row) != len(names):
                raise self.reject(number, _ragged(len(row), len(names)))
            fields = {name: cell for name, cell in zip(names, row, strict=True) if name in asked and cell}
            if sum(map(len, fields.values())) > MAX_ROW_CHARACTERS:
                raise self.reject(number, ValueError(f"longer than {MAX_ROW_CHARACTERS} characters"))
            yield Row(number=number, fields=fields, names=names)
        if not found:
            raise TaskError(f"{self.path}: holds no rows. Write a line of names, as prompt,answer, and a row below it.")

    def _names(self, header: list[str], asked: frozenset[str]) -> tuple[str, ...]:
        names = tuple(name.strip() for name in header)
        if twice := sorted(name for name in asked if names.count(name) > 1):
            fix = "Rename one of the two"
            raise self.reject(1, BadRow(f"has two columns `{twice[0]}`", fix))
        if names and asked and not asked & {*names}:  # without `asked`, only the names are wanted
            raise self.reject(1, self._no_header(names))
        return names

    def _no_header(self, names: tuple[str, ...]) -> BadRow:
        """Return the error for a first line that names none of the needed columns."""
        if names[0].startswith("{"):
            return BadRow("names no columns, and seems to be JSON", "Write jsonl: before its name")
        other = next((mark for mark in _OTHER_DELIMITERS if len(names) == 1 and mark in names[0]), "")
        if other:
            shown = f"has one column, `{name_text(names[0])}`, and seems to be divided by {other!r}"
            return BadRow(shown, f"Write delimiter={'tab' if other == TAB else other} in the spec")
        first = name_text(names[0])
        fix = f"Let the first line name the columns, and say in the spec which to read, as in prompt={first}"
        return BadRow(f"names none of the columns to read; its columns are {names_text(names)}", fix)

    def _cells(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line where it begins, cells) of each row that is not blank."""
        data = self._bytes()
        text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=self._delimiter, strict=True)
        # This sets it for the whole process, but always to the same value. Python's own limit is 128 KiB.
        csv.field_size_limit(MAX_ROW_CHARACTERS)
        while True:
            number = reader.line_num + 1
            try:
                row = next(reader, None)
            except csv.Error as error:
                fix = 'Write a quote inside a cell twice (""), and close every cell that begins with one'
                raise self.reject(number, BadRow(f"is not a CSV row: {error}", fix)) from error
            except UnicodeDecodeError as error:
                raise self._no_text(data) from error
            if row is None:
                return
            if any(cell.strip() for cell in row):
                yield number, row

    def _bytes(self) -> bytes:
        """Return the bytes of the file, without NUL. Raises TaskError."""
        try:
            data = read_file(self.path)
        except OSError as error:
            what_next = advice(self.path, "Name a CSV file.")
            raise TaskError(f"{self.path}: cannot be read: {error.strerror}. {what_next}") from error
        self.digest.update(data)
        if what_next := advice(self.path, ""):
            raise TaskError(f"{self.path}: is not a CSV file. {what_next}")
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise TaskError(f"{self.path}: is UTF-16 text. Save it as UTF-8.")
        if (where := data.find(b"\0")) >= 0:
            raise self.reject(_line_of(data, where), ValueError("contains a NUL, which is not text"))
        return data

    def _no_text(self, data: bytes) -> TaskError:
        """Return the error with the place where the text is not UTF-8. The reader reads ahead, so it does not know."""
        try:
            without_mark(data).decode()
        except UnicodeDecodeError as error:
            byte = f"0x{error.object[error.start]:02x}"
            fix = "Save the file as UTF-8; if it came from Windows: iconv -f CP1252 -t UTF-8"
            number = _line_of(error.object, error.start)
            return self.reject(number, BadRow(f"is not UTF-8 text at byte {byte}", fix))
        raise AssertionError("the reader found bytes that are not text")


def _line_of(data: bytes, where: int) -> int:
    """Return the line of a byte, counted from 1."""
    return data.count(b"\n", 0, where) + 1


def _ragged(cells: int, columns: int) -> BadRow:
    return BadRow(
        f"has {cells} {'cell' if cells == 1 else 'cells'}, but the first line names {columns}",
        "Put a cell with a delimiter or a line end inside it into quotes, or correct the row",
    )


def open_delimited(path: Path, delimiter: str = "") -> DataFile:
    """Return the file at `path`, or the files that it names. Raises TaskError.

    delimiter: between cells; "": a tab in a .tsv, a comma in every other file.
    """
    return open_files(path, ENDINGS, lambda one: Delimited(one, delimiter or usual_delimiter(one)))


def usual_delimiter(file: Path) -> str:
    """Return what divides the cells of a file with this name."""
    return TAB if file.suffix.lower() == ".tsv" else ","
