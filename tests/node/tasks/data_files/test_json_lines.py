"""JSON Lines: long lines, doubled keys, half characters, and files that are something else."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.tasks.api.interface import TaskError
from node.tasks.data_files.json_lines import JsonLines
from node.tasks.data_files.rows import MAX_ROW_CHARACTERS
from protocol.core.visible import HIDDEN


def read(path: Path, *wanted: str) -> list[tuple[int, dict[str, Any]]]:
    return [(row.number, dict(row.fields)) for row in JsonLines(path).rows(wanted or ("prompt", "answer"))]


def refused(path: Path, data: bytes, *wanted: str) -> str:
    path.write_bytes(data)
    with pytest.raises(TaskError) as caught:
        read(path, *wanted)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_what_is_asked_for_is_kept_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"prompt": "a", "answer": 1, "other": [2]}\r\n\n  \n{"prompt": "b", "answer": null}')
    assert read(path) == [(1, {"prompt": "a", "answer": 1}), (4, {"prompt": "b", "answer": None})]


def test_a_line_of_nine_megabytes_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    line = json.dumps({"prompt": "a", "answer": "b", "trace": "x" * 9_000_000})
    path.write_text(line + "\n" + line)
    assert [fields for _, fields in read(path)] == [{"prompt": "a", "answer": "b"}] * 2


def test_a_line_longer_than_any_prompt_is_refused(tmp_path: Path) -> None:
    good, long = b'{"prompt": "a"}\n', b'{"prompt": "' + b"x" * MAX_ROW_CHARACTERS + b'"}'
    said = refused(tmp_path / "t.jsonl", good + long)
    assert f"t.jsonl:2: longer than {MAX_ROW_CHARACTERS} bytes. Correct the line, or remove it." in said


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"prompt": "a", "answer": 1, "answer": 2}', "answer"),
        (b'{"prompt": "a", "answer": 1, "ans\\u0077er": 2}', "answer"),
        (b'{"prompt": [{"role": "user", "content": "a", "content": "b"}], "answer": 1}', "content"),
        (b'{"prompt": "a", "answer": {"b": {"c": 1, "c": 2}}}', "c"),
    ],
)
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, line: bytes, key: str) -> None:
    said = refused(tmp_path / "t.jsonl", b'{"prompt": "a"}\n' + line)
    assert f"t.jsonl:2: has the key `{key}` twice in one object. Correct the line" in said


def test_what_is_ignored_may_have_a_key_twice(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"prompt": "a", "more": {"b": 1, "b": 2}, "x": 1, "x": 2, "n": ' + b"9" * 5000 + b"}")
    assert read(path) == [(1, {"prompt": "a"})]


@pytest.mark.parametrize("text", ["\\ud800", "a\\ud83dx", "\\udc00 and more", "\\ud800\\ud800\\udc00"])
def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path, text: str) -> None:
    said = refused(tmp_path / "t.jsonl", b'{"prompt": "a"}\n{"prompt": "%s"}' % text.encode())
    assert "t.jsonl:2: `\\ud" in said
    assert "is half of a surrogate pair, which is not a character. Correct the line" in said


def test_whole_pairs_and_written_backslashes_are_text(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"prompt": "\\ud83d\\ude00 \\\\ud800"}')
    assert read(path) == [(1, {"prompt": "\N{GRINNING FACE} \\ud800"})]


def test_the_nested_fields_of_a_line_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"question": "a", "extra": {"final": 1}}')
    (row,) = JsonLines(path).rows(("answer",))
    with pytest.raises(ValueError, match=r"its fields are `question`, `extra`, `extra\.final`"):
        row.require("answer", "answer")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"PAR1abc", "t.jsonl: is not a JSON Lines file. It is a Parquet file: write parquet: before its name."),
        (b"\x1f\x8b\x08", "is compressed with gzip: unpack it first"),
        (b"PK\x03\x04", "is a ZIP archive"),
        (b'[{"prompt": "a"}]', "Write one object per line, as `jq -c .[]` does with a list."),
        (b"[\n{", "Write one object per line"),
        (b"", 'holds no lines. Write one object per line: {"prompt": "...", ...}.'),
        (b'{"prompt": NaN}', "t.jsonl:1: not JSON"),
    ],
)
def test_a_file_of_another_kind_is_told(tmp_path: Path, data: bytes, says: str) -> None:
    assert says in refused(tmp_path / "t.jsonl", data)


def test_a_directory_is_told_with_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    with pytest.raises(TaskError, match=r"saved: cannot be read: Is a directory\. Name a JSON Lines file\."):
        read(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text("{}")
    with pytest.raises(
        TaskError, match=r"Is a directory\. It is a data set that save_to_disk wrote: write dataset: before"
    ):
        read(tmp_path / "saved")


@given(st.dictionaries(st.sampled_from("abc"), st.text() | st.integers() | st.booleans() | st.none()))
def test_a_line_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "one.jsonl"
    path.write_text(json.dumps(fields), "utf-8")
    assert read(path, "a", "b", "c") == [(1, fields)]


PIECES = [b'{"prompt"', b'"answer"', b":", b",", b"}", b"[", b"]", b'"a"', b"\\ud800", b"\n", b"1e9", b"null", b"\xff"]


@given(st.binary() | st.lists(st.sampled_from(PIECES)).map(b"".join))
@example(data=b'{"a\\n\\u202eb": 1, "a\\n\\u202eb": 1}')
def test_whatever_a_file_holds_it_is_rows_or_one_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(data)
    try:
        read(path)
    except TaskError as error:
        told = str(error)
    else:
        told = str(path)
    assert told.startswith(str(path))
    assert not {character for character in told if unicodedata.category(character) in HIDDEN}
