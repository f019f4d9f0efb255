"""Read Parquet files: only the columns that a task needs, a few rows at a time.

Invariants:

- The digest is that of the file's bytes, and the file that is read is the one that was digested.
- A file that cannot be read is a TaskError, wherever the damage is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from learner.artifacts.regular_file import open_file
from node.tasks.api.interface import TaskError
from node.tasks.data_files.arrow_tables import ROWS_AT_ONCE, ArrowRows, load_pyarrow, one_line_of
from node.tasks.data_files.formats import advice, advice_of_name
from node.tasks.data_files.rows import DataFile, Row
from node.tasks.data_files.several_files import open_files

PIECE_BYTES = 1 << 20
"""Bytes to read at once, for the digest and from each column."""


class Parquet(DataFile):
    """A Parquet file."""

    def rows(self, wanted: Collection[str]) -> Iterator[Row]:
        rows = ArrowRows(self, wanted)
        try:
            file = open_file(self.path)
        except OSError as error:
            what_next = advice(self.path, "Name a Parquet file.")
            raise TaskError(f"{self.path}: cannot be read: {error.strerror}. {what_next}") from error
        with file:
            while piece := file.read(PIECE_BYTES):
                self.digest.update(piece)
            found = False
            for batch, schema in self._batches(file, rows):
                found = found or batch.num_rows > 0
                yield from rows.rows_of(batch, schema)
        if not found:
            raise TaskError(f"{self.path}: holds no rows. Name a file with a prompt and an answer in each row.")

    def _batches(self, file: BinaryIO, rows: ArrowRows) -> Iterator[tuple[Any, Any]]:
        """Yield batches of the columns to read, each with the schema of all columns. Raises TaskError."""
        arrow = load_pyarrow(self.path)
        from pyarrow.parquet import ParquetFile

        try:
            # No memory map: if the file were cut off while it is read, that would crash the process.
            parquet = ParquetFile(
                file, memory_map=False, pre_buffer=False, buffer_size=PIECE_BYTES, page_checksum_verification=True
            )
            schema = parquet.schema_arrow
            yield from (
                (batch, schema)
                for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=rows.columns(schema.names), use_threads=False)
            )
        except (arrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
            what_next = advice(self.path, advice_of_name(self.path)) if "magic" in str(error) else ""
            raise TaskError(
                f"{self.path}: cannot be read as Parquet: {one_line_of(error)}. "
                f"{what_next or 'Download or write the file again.'}"
            ) from error


def open_parquet(path: Path) -> DataFile:
    """Return the file at `path`, or the files that it names. Raises TaskError."""
    return open_files(path, (".parquet",), Parquet)
