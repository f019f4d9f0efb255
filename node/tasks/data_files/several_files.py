"""Read several files of one format as one, such as the parts of a large data set.

A path names them by a pattern for the file's name (`train-*.parquet`), or by their directory.

Invariants:

- The files are read in the order of their names, so the same files always give the same rows in the same order.
- Rows are numbered through all files. A message about a row names its file, and its number in that file.
- If a file has a `*` or `?` in its own name, the path means that file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from node.tasks.api.interface import TaskError
from node.tasks.data_files.rows import MAX_TOTAL_CHARACTERS, DataFile, Row, characters, too_much

MAX_FILES = 10_000
"""Maximum number of files. Data sets of the Hugging Face hub have a few thousand at most."""

OpenFile = Callable[[Path], DataFile]
"""Return the file at a path. It is read only when its rows are needed."""


class SeveralFiles(DataFile):
    """Several files. `files`: at least one, in order."""

    def __init__(self, path: Path, files: Sequence[DataFile]) -> None:
        super().__init__(path)
        self._files = files
        self._begin = [0]
        """Number of rows before each file that was begun."""
        self.unit = files[0].unit

    def rows(self, wanted: Collection[str]) -> Iterator[Row]:
        number = held = 0
        for file in self._files:
            before = number
            if file is not self._files[0]:
                self._begin.append(before)
            for row in file.rows(wanted):
                number = before + row.number
                if (held := held + characters(row.fields)) > MAX_TOTAL_CHARACTERS:
                    raise self.reject(number, too_much(MAX_TOTAL_CHARACTERS))
                yield replace(row, number=number)
            self.digest.update(file.digest.digest())

    def place(self, number: int) -> str:
        part = bisect_right(self._begin, number - 1) - 1
        return self._files[part].place(number - self._begin[part])


def open_files(path: Path, suffixes: Sequence[str], open_one: OpenFile) -> DataFile:
    """Return the file at `path`, or the files that it names. Files in a directory count if they end with one of
    `suffixes`.

    Raises TaskError if a pattern matches none, or if there are too many.
    """
    found = files_of(path, suffixes)
    return SeveralFiles(path, [open_one(one) for one in found]) if found else open_one(path)


def files_of(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Return the files that a pattern or a directory names, in order; none if `path` is a file. Raises TaskError."""
    is_pattern = any(sign in path.name for sign in "*?") and not path.exists()
    if is_pattern:
        found = sorted(one for one in path.parent.glob(path.name) if one.is_file())
        if not found:
            raise TaskError(f"{path}: names no file in {path.parent}. Correct the pattern, or name a file.")
    elif path.is_dir():
        found = sorted(one for one in path.iterdir() if one.suffix in suffixes and one.is_file())
    else:
        found = []
    if len(found) > MAX_FILES:
        raise TaskError(f"{path}: names {len(found)} files; the maximum is {MAX_FILES}. Join some of them.")
    return found
