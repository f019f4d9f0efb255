"""Directories that `save_to_disk` wrote: one data set or several splits, and what can be wrong with them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.api.interface import TaskError
from node.tasks.data_files.rows import Row
from node.tasks.data_files.saved_dataset import SavedDataset

ROWS = [{"prompt": f"what is {n}?", "answer": n, "trace": ["x"] * n} for n in range(10)]


def stream(rows: list[dict[str, Any]]) -> bytes:
    table, data = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(data, table.schema) as writer:
        writer.write_table(table, 4)
    return data.getvalue()


def save(directory: Path, *parts: list[dict[str, Any]], **state: Any) -> Path:
    """As save_to_disk writes it, a file for each part."""
    directory.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, rows in zip(names, parts, strict=True):
        (directory / name).write_bytes(stream(rows))
    files = [{"filename": name} for name in names]
    (directory / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "0", **state}))
    (directory / "dataset_info.json").write_text("{}")
    return directory


def read(path: Path, split: str = "") -> list[Row]:
    return list(SavedDataset(path, split).rows(("prompt", "answer")))


def refused(path: Path, split: str = "") -> str:
    with pytest.raises(TaskError) as caught:
        read(path, split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rows_of_several_files_are_numbered_through(tmp_path: Path) -> None:
    found = read(save(tmp_path / "saved", ROWS[:3], ROWS[3:]))
    assert [(row.number, row.fields["prompt"], row.fields["answer"]) for row in found] == [
        (n + 1, f"what is {n}?", n) for n in range(10)
    ]
    assert found[0].names == ("prompt", "answer", "trace")
    assert "trace" not in found[0].fields


def test_a_split_is_named_unless_there_is_one(tmp_path: Path) -> None:
    save(tmp_path / "both" / "train", ROWS)
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert len(read(tmp_path / "both")) == 10
    save(tmp_path / "both" / "test", ROWS[:2])
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert [len(read(tmp_path / "both", split)) for split in ("train", "test")] == [10, 2]
    assert "both: has several splits: train, test. Name one, as in split=train." in refused(tmp_path / "both")
    said = refused(tmp_path / "both", "tests")
    assert "has no split 'tests' (did you mean 'test'?). Its splits: train, test." in said
    assert "both/train: has no splits, only rows. Leave split= out." in refused(tmp_path / "both" / "train", "train")


def test_the_digest_is_that_of_the_rows_and_not_of_what_is_said_about_them(tmp_path: Path) -> None:
    digests = []
    for name, state in [("a", {}), ("b", {"_fingerprint": "1"})]:
        file = SavedDataset(save(tmp_path / name, ROWS, **state), "")
        list(file.rows(("prompt",)))
        digests.append(file.digest.hexdigest())
    other = SavedDataset(save(tmp_path / "c", ROWS[:9]), "")
    list(other.rows(("prompt",)))
    assert digests[0] == digests[1] != other.digest.hexdigest()


def test_what_is_no_saved_data_set_is_told(tmp_path: Path) -> None:
    assert "is not there. Name the directory that save_to_disk of datasets wrote." in refused(tmp_path / "nowhere")
    (tmp_path / "t.parquet").write_bytes(b"PAR1....PAR1")
    said = refused(tmp_path / "t.parquet")
    assert "is a file, not a directory. It is a Parquet file: write parquet: before its name." in said
    assert "it has no state.json. It holds Parquet files: write parquet: before its name" in refused(tmp_path)
    (tmp_path / "t.parquet").unlink()
    assert "a saved data set, because it has no state.json. Write it with Dataset.save_to_disk" in refused(tmp_path)
    assert "holds no rows" in refused(save(tmp_path / "empty", []))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("{", "state.json: is not as save_to_disk writes it: "),
        ("[]", "state.json: is not as save_to_disk writes it: "),
        ('{"_data_files": [{"filename": 3}]}', "state.json: is not as save_to_disk writes it: "),
        ("[" * 5000, "nested too deeply"),
        ('{"_data_files": [{"filename": "../t.arrow"}]}', "names a file '../t.arrow' elsewhere"),
        ('{"_data_files": [{"filename": "/etc/passwd"}]}', "names a file '/etc/passwd' elsewhere"),
        ('{"_data_files": [{"filename": ".."}]}', "elsewhere"),
        (
            '{"_data_files": [{"filename": "gone.arrow"}]}',
            "gone.arrow: cannot be read as an Arrow stream: No such file",
        ),
        ('{"_data_files": [{"filename": "state.json"}]}', "state.json: cannot be read as an Arrow stream: "),
        (
            '{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}',
            "a file of indices selects its rows, as old versions of datasets wrote it. Load it",
        ),
        ('{"_data_files": []}', "holds no rows"),
    ],
)
def test_a_state_that_cannot_be_used_is_told(tmp_path: Path, state: str, says: str) -> None:
    save(tmp_path / "saved", ROWS)
    (tmp_path / "saved" / "state.json").write_text(state)
    assert says in refused(tmp_path / "saved")


@pytest.mark.parametrize("splits", ['{"splits": ["../saved"]}', '{"splits": [3]}', "{}", '{"splits": []}'])
def test_splits_that_cannot_be_used_are_told(tmp_path: Path, splits: str) -> None:
    save(tmp_path / "saved", ROWS)
    (tmp_path / "dict").mkdir()
    (tmp_path / "dict" / "dataset_dict.json").write_text(splits)
    assert str(tmp_path / "dict") in refused(tmp_path / "dict")


WHOLE = stream(ROWS)


def offsets(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


@pytest.mark.parametrize("last", [b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\0\0\0\1"])
def test_an_offset_beyond_the_end_is_no_way_into_memory(tmp_path: Path, last: bytes) -> None:
    texts = [{"prompt": [{"content": "abc"}], "answer": "abc"}] * 4
    whole, of_texts, of_lists = stream(texts), offsets(0, 3, 6, 9, 12), offsets(0, 1, 2, 3, 4)
    places = {whole.index(of_texts): "rows 1 to 4", whole.rindex(of_texts): "row 4", whole.index(of_lists): "row"}
    for at, where in places.items():
        directory = save(tmp_path / str(at), texts)
        damaged = whole[: at + 16] + last + whole[at + 20 :]
        (directory / "data-00000-of-00001.arrow").write_bytes(damaged)
        said = refused(directory)
        assert where in said
        assert "damaged, or not UTF-8 text: " in said


def outcome(directory: Path) -> list[Row] | str:
    try:
        return read(directory)
    except TaskError as error:
        return str(error)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), st.booleans())
def test_damage_is_told_or_changes_nothing_but_values(
    tmp_path_factory: pytest.TempPathFactory, at: int, by: int, cut: bool
) -> None:
    directory = tmp_path_factory.getbasetemp() / "damaged"
    if not directory.exists():
        save(directory, ROWS)
    data = bytearray(WHOLE[:at] if cut else WHOLE)
    if not cut:
        data[at] ^= by
    (directory / "data-00000-of-00001.arrow").write_bytes(data)
    found = outcome(directory)
    if isinstance(found, str):
        assert str(directory) in found
        assert "\n" not in found
    else:
        assert len(found) <= len(ROWS)
