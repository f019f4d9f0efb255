"""Values of Arrow's become those of JSON, whatever the column's type."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from learner.artifacts.text_files import TOO_DEEP
from node.tasks.api.interface import TaskError
from node.tasks.data_files import arrow_tables
from node.tasks.data_files.arrow_tables import ArrowRows, plain
from node.tasks.data_files.rows import DataFile, Row


class File(DataFile):
    def rows(self, wanted: object) -> Any:
        raise NotImplementedError


def rows(*arrays: Any, names: str = "ab") -> list[Row]:
    batch = pa.RecordBatch.from_arrays(list(arrays), list(names[: len(arrays)]))
    reader = ArrowRows(File(Path("t.parquet")), tuple(names))
    return list(reader.rows_of(batch.select(reader.columns(batch.schema.names)), batch.schema))


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (pa.array(["a"]), "a"),
        (pa.array(["a"], pa.large_string()), "a"),
        (pa.array(["a"], pa.string_view()), "a"),
        (pa.array(["a"]).dictionary_encode(), "a"),
        (pa.array([b"\xc3\xa9"]), "\u00e9"),
        (pa.array([72], pa.int8()), 72),
        (pa.array([2**63], pa.uint64()), 2**63),
        (pa.array([72.0]), 72),
        (pa.array([0.1], pa.float32()), 0.1),
        (pa.array([2.5], pa.float16()), 2.5),
        (pa.array([1e300]), 1e300),
        (pa.array([Decimal("0.50")]), "0.50"),
        (pa.array([True]), True),
        (pa.array([date(2024, 6, 1)]), "2024-06-01"),
        (pa.array([datetime(2024, 6, 1, 12)]), "2024-06-01 12:00:00.000000"),
        (pa.array([1], pa.timestamp("ns")), "1970-01-01 00:00:00.000000001"),
        (
            pa.array([datetime(2024, 6, 1, 23, tzinfo=UTC)], pa.timestamp("s", "America/New_York")),
            "2024-06-01 23:00:00",
        ),
        (pa.array([{"role": "user", "content": "a", "name": None}]), {"role": "user", "content": "a"}),
        (pa.array([[{"day": date(2024, 6, 1), "n": 2.0}]]), [{"day": "2024-06-01", "n": 2}]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), {"k": 1}),
        (pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}'])), '{"a": 1}'),
    ],
)
def test_a_value_is_as_json_would_have_it(array: Any, value: object) -> None:
    (row,) = rows(array)
    assert row.fields == {"a": value}
    assert type(row.fields["a"]) is type(value)


@pytest.mark.parametrize("array", [pa.array(["a", None]), pa.array([1.0, float("nan")]), pa.array([[1], None])])
def test_a_null_is_a_field_that_is_missing(array: Any) -> None:
    found = rows(array)
    assert ["a" in row.fields for row in found] == [True, False]
    with pytest.raises(ValueError, match="`a` is empty"):
        found[1].require("a", "prompt")


def test_rows_are_numbered_through_and_name_their_nested_fields() -> None:
    reader = ArrowRows(File(Path("t.parquet")), ("a.x",))
    batch = pa.RecordBatch.from_pylist([{"a": {"x": 1, "y": 2}, "b": 3}] * 2)
    found = [row for _ in range(2) for row in reader.rows_of(batch.select(reader.columns(["a", "b"])), batch.schema)]
    assert [(row.number, row.get("a.x")) for row in found] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    with pytest.raises(
        ValueError, match=r"has no field `a\.z` \(did you mean `a\..`\?\); its fields are `a`, `b`, `a\.x`"
    ):
        found[0].require("a.z", "answer")


def test_text_that_is_no_utf8_is_named_by_its_row() -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff")]
    )
    with pytest.raises(TaskError, match=r"t\.parquet, row 2: damaged, or not UTF-8 text: .*UTF8"):
        rows(bad)
    with pytest.raises(TaskError, match=r"t\.parquet, row 1: has bytes that are not UTF-8 text \(byte 0\)"):
        rows(pa.array([b"\xff"]))


def test_what_has_no_form_in_json_is_refused() -> None:
    with pytest.raises(TaskError, match="row 1: has a value of type timedelta, which is neither text nor a number"):
        rows(pa.array([[timedelta(1)]]))
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    with pytest.raises(ValueError, match=TOO_DEEP):
        plain(deep, 0)


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(TaskError, match=r"t\.parquet: has two columns `a`\. Rename one of the two\."):
        rows(pa.array([1]), pa.array([2]), names="aa")
    reader = ArrowRows(File(Path("t.parquet")), ("a",))
    assert reader.columns(["a", "x", "x"]) == ["a"], "nobody asks which x it is"


def test_rows_hold_no_more_than_memory_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_tables, "MAX_ROW_CHARACTERS", 10)
    monkeypatch.setattr(arrow_tables, "MAX_TOTAL_CHARACTERS", 15)
    with pytest.raises(TaskError, match="row 2: longer than 10 characters"):
        rows(pa.array(["a", "b" * 11]))
    with pytest.raises(TaskError, match=r"row 3: the rows up to here hold more than 15 characters\. Leave rows out"):
        rows(pa.array(["a" * 6] * 4))
    monkeypatch.setattr(arrow_tables, "MAX_BATCH_BYTES", 20)
    with pytest.raises(TaskError, match="the batch that begins with row 1 has 40 bytes"):
        rows(pa.array(["a" * 6] * 4))
