"""Read directories that `save_to_disk` of Hugging Face datasets wrote. `state.json` names files with Arrow streams.

A directory of several splits has `dataset_dict.json`, and one such directory for each split. The package datasets is
not needed, and no code of the directory is run: its files are JSON and Arrow.

Invariants:

- Only files in the directory itself are read. A name that leads elsewhere is an error.
- The digest is that of the data files' bytes, in the order of `state.json`, each preceded by its size.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from learner.artifacts.regular_file import open_file, read_file
from learner.artifacts.text_files import parse_json
from node.tasks.api.interface import TaskError
from node.tasks.api.options import suggestion
from node.tasks.data_files.arrow_tables import ArrowRows, load_pyarrow, one_line_of
from node.tasks.data_files.formats import SAVED, advice
from node.tasks.data_files.parquet import PIECE_BYTES
from node.tasks.data_files.rows import DataFile, Row, name_text
from protocol.core.codec import ready

STATE, SPLITS = SAVED

MAX_STATE_BYTES = 1 << 24
"""Maximum bytes of `state.json`. That of a data set with 100,000 files has about 7 MB."""


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    files: list[_File] = msgspec.field(name="_data_files")
    indices: list[_File] | None = msgspec.field(name="_indices_data_files", default=None)


class _Splits(msgspec.Struct):
    splits: list[str]


class SavedDataset(DataFile):
    """A saved data set. `split`: the split to read; "" for a directory without splits."""

    def __init__(self, path: Path, split: str) -> None:
        super().__init__(path)
        self._split = split

    def rows(self, wanted: Collection[str]) -> Iterator[Row]:
        rows = ArrowRows(self, wanted)
        directory = self._find_split()
        found = False
        for path in self._data_files(directory):
            for batch, schema in self._batches(path, rows):
                found = found or batch.num_rows > 0
                yield from rows.rows_of(batch, schema)
        if not found:
            raise TaskError(f"{directory}: holds no rows. Name a data set, or a split, that has some.")

    def _find_split(self) -> Path:
        """Return the directory of the data set itself. Raises TaskError."""
        if not self.path.is_dir():
            why = "is a file, not a directory" if self.path.exists() else "is not there"
            what_next = advice(self.path, "Name the directory that save_to_disk of datasets wrote.")
            raise TaskError(f"{self.path}: {why}. {what_next}")
        if not (self.path / SPLITS).exists():
            if self._split:
                raise TaskError(f"{self.path}: has no splits, only rows. Leave split= out.")
            return self.path
        splits = self._read_json(self.path / SPLITS, _Splits).splits
        shown = ", ".join(map(name_text, splits)) or "none"
        if not self._split and len(splits) != 1:
            raise TaskError(
                f"{self.path}: has several splits: {shown}. "
                f"Name one, as in split={name_text((splits or ['train'])[0])}."
            )
        chosen = self._split or splits[0]
        if chosen not in splits or not _is_inside(chosen):
            raise TaskError(f"{self.path}: has no split {chosen!r}{suggestion(chosen, splits)}. Its splits: {shown}.")
        return self.path / chosen

    def _data_files(self, directory: Path) -> list[Path]:
        if not (directory / STATE).exists():
            what_next = advice(directory, "Write it with Dataset.save_to_disk of datasets.")
            raise TaskError(f"{directory}: is not a saved data set, because it has no {STATE}. {what_next}")
        state = self._read_json(directory / STATE, _State)
        if state.indices:
            raise TaskError(
                f"{directory}: a file of indices selects its rows, as old versions of datasets wrote it. "
                "Load it, call flatten_indices(), and save it again."
            )
        if bad := next((one.filename for one in state.files if not _is_inside(one.filename)), ""):
            raise TaskError(f"{directory / STATE}: names a file {bad[:80]!r} elsewhere. Save the data set again.")
        return [directory / one.filename for one in state.files]

    def _batches(self, path: Path, rows: ArrowRows) -> Iterator[tuple[Any, Any]]:
        """Yield batches of the columns to read, each with the schema of all columns. Raises TaskError."""
        arrow = load_pyarrow(self.path)
        try:
            with open_file(path) as file:
                self._digest(file)
                file.seek(0)
                with arrow.ipc.open_stream(file) as stream:
                    chosen = rows.columns(stream.schema.names)
                    yield from ((batch.select(chosen), stream.schema) for batch in stream)
        except (arrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else one_line_of(error)
            raise TaskError(f"{path}: cannot be read as an Arrow stream: {why}. Save the data set again.") from error

    def _digest(self, file: BinaryIO) -> None:
        self.digest.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
        while piece := file.read(PIECE_BYTES):
            self.digest.update(piece)

    def _read_json(self, path: Path, kind: type[Any]) -> Any:
        try:
            return msgspec.convert(parse_json(read_file(path, MAX_STATE_BYTES)), ready(kind))
        except OSError as error:
            raise TaskError(f"{path}: cannot be read: {error.strerror}. Save the data set again.") from error
        except ValueError as error:
            raise TaskError(f"{path}: is not as save_to_disk writes it: {error}. Save the data set again.") from error


def _is_inside(name: str) -> bool:
    """Return whether `name` is the name of something in the directory itself."""
    return bool(name) and name not in (".", "..") and Path(name).name == name and "\0" not in name
