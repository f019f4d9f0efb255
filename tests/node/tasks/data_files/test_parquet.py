"""Parquet files: the columns that are asked for, and whatever can be wrong with a file."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.api.interface import TaskError
from node.tasks.data_files.arrow_tables import ROWS_AT_ONCE
from node.tasks.data_files.parquet import Parquet
from node.tasks.data_files.rows import Row

ROWS = [{"prompt": f"what is {n}?", "answer": n, "trace": [{"x": str(n)}]} for n in range(3 * ROWS_AT_ONCE + 1)]


def written(rows: list[dict[str, Any]], **options: Any) -> bytes:
    data = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), data, **options)
    return data.getvalue()


WHOLE = written(ROWS, row_group_size=100)


def read(path: Path, *wanted: str) -> list[Row]:
    return list(Parquet(path).rows(wanted or ("prompt", "answer")))


def test_only_the_columns_that_are_asked_for_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(WHOLE)
    found = read(path)
    assert [row.fields for row in found] == [{"prompt": row["prompt"], "answer": row["answer"]} for row in ROWS]
    assert [row.number for row in found] == [*range(1, len(ROWS) + 1)]
    assert found[0].names == ("prompt", "answer", "trace")


def test_rows_without_any_of_the_columns_say_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(written([{"question": "a", "reward_model": {"ground_truth": "1", "style": "rule"}}]))
    (row,) = read(path)
    with pytest.raises(ValueError, match=r"its fields are `question`, `reward_model`, `reward_model\.ground_truth`"):
        row.require("answer", "answer")


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_the_digest_is_that_of_the_bytes(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(data := written(ROWS, compression=compression))
    file = Parquet(path)
    assert len(list(file.rows(("prompt",)))) == len(ROWS)
    assert file.digest.hexdigest() == hashlib.blake2b(data, digest_size=16).hexdigest()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "t.parquet: cannot be read as Parquet: Parquet file size is 0 bytes. Download or write the file again."),
        (b"PAR1", "smaller than the minimum file footer"),
        (WHOLE[:-9], "cannot be read as Parquet: "),
        (WHOLE[: len(WHOLE) // 2], "cannot be read as Parquet: "),
        (b'{"prompt": "a", "answer": "b"}\n', "cannot be read as Parquet: "),
        (b"\x1f\x8b\x08 and so on and on", "It is compressed with gzip: unpack it first, with gunzip."),
        (written([]), "t.parquet: holds no rows."),
        (written([{"prompt": "a"}])[:4] + bytes(40) + WHOLE[-8:], "cannot be read as Parquet: "),
    ],
)
def test_what_is_no_parquet_is_told(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "t.parquet").write_bytes(data)
    with pytest.raises(TaskError) as caught:
        read(tmp_path / "t.parquet")
    assert says in str(caught.value)
    assert str(caught.value).count("\n") == 0


def test_a_directory_a_pipe_and_nothing_are_told(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"cannot be read: Is a directory\. Name a Parquet file\."):
        read(tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(TaskError, match=r"It is a data set that save_to_disk wrote: write dataset: before its name"):
        read(tmp_path)
    with pytest.raises(TaskError, match="cannot be read: No such file or directory"):
        read(tmp_path / "nowhere.parquet")
    os.mkfifo(tmp_path / "pipe.parquet")
    with pytest.raises(TaskError, match="it is a pipe, not a file"):
        read(tmp_path / "pipe.parquet")


def outcome(path: Path, data: bytes) -> list[Row] | str:
    path.write_bytes(data)
    try:
        return read(path, "prompt", "answer", "trace")
    except TaskError as error:
        return str(error)


CHECKED = written(ROWS, row_group_size=100, write_page_checksum=True)


@given(st.integers(0, len(CHECKED) - 1), st.integers(1, 255))
def test_a_byte_that_changed_is_told_or_changes_nothing_but_values(
    tmp_path_factory: pytest.TempPathFactory, at: int, by: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    damaged = bytearray(CHECKED)
    damaged[at] ^= by
    found = outcome(path, bytes(damaged))
    if isinstance(found, str):
        assert str(path) in found
        assert "\n" not in found


@given(st.integers(0, len(CHECKED) - 1))
def test_a_file_that_was_cut_off_is_told(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    path = tmp_path_factory.getbasetemp() / "short.parquet"
    assert isinstance(outcome(path, CHECKED[:length]), str)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("t.csv", "If it is CSV, write csv: before its name."),
        ("t.jsonl", "If it is JSON Lines, write jsonl: before its name."),
    ],
)
def test_text_is_told_by_its_name(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / name).write_text("prompt,answer\na,b\n" * 4, encoding="utf-8")
    with pytest.raises(TaskError, match=says):
        read(tmp_path / name)
