"""CSV: cells with anything in them, and files that are not as the first line says."""

from __future__ import annotations

import csv
import io
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.tasks.api.interface import TaskError
from node.tasks.data_files.delimited import Delimited
from protocol.core.visible import HIDDEN


def read(path: Path, delimiter: str = ",") -> list[tuple[int, dict[str, Any]]]:
    return [(row.number, dict(row.fields)) for row in Delimited(path, delimiter).rows(("prompt", "answer"))]


def test_cells_hold_quotes_delimiters_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    first = b'\xef\xbb\xbfid,prompt,answer\r\n1,"say ""hi"",\r\nthen\nstop",yes\r\n'
    path.write_bytes(first + b'\r\n,,\r\n2,plain,"a,b"\r\n3,no answer,\r\n')
    assert read(path) == [
        (2, {"prompt": 'say "hi",\r\nthen\nstop', "answer": "yes"}),
        (7, {"prompt": "plain", "answer": "a,b"}),
        (8, {"prompt": "no answer"}),
    ]


def test_a_cell_may_have_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt,answer,trace\na,b," + "x" * 9_000_000 + "\n")
    assert read(path) == [(2, {"prompt": "a", "answer": "b"})]


@pytest.mark.parametrize("delimiter", ["\t", ";", "|"])
def test_cells_are_divided_as_asked(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"prompt{delimiter}answer\n1,5{delimiter}2\n")
    assert read(path, delimiter) == [(2, {"prompt": "1,5", "answer": "2"})]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "t.csv: holds no rows. Write a line of names, as prompt,answer, and a row below it."),
        (b"prompt,answer\n", "holds no rows"),
        (b"prompt,answer\na,b\nc\n", "t.csv:3: has 1 cell, but the first line names 2. Put a cell"),
        (b"prompt,answer\na,b,c\n", "t.csv:2: has 3 cells, but the first line names 2."),
        (b'prompt,answer\n"a\nb",c\nd,"e\n', "t.csv:4: is not a CSV row: unexpected end of data. Write a quote"),
        (b'prompt,answer\na,"b"c\n', "t.csv:2: is not a CSV row: "),
        (b"prompt;answer\na;b\n", "t.csv:1: has one column, `prompt;answer`, and seems to be divided by ';'."),
        (b"prompt;answer\na;b\n", "Write delimiter=; in the spec."),
        (b"prompt\tanswer\na\tb\n", "Write delimiter=tab in the spec."),
        (b"What is 1+1?,2\nWhat is 2+2?,4\n", "t.csv:1: names none of the columns to read; its columns are `What is"),
        (b"What is 1+1?,2\nWhat is 2+2?,4\n", "Let the first line name the columns"),
        (
            b'{"prompt": "a", "answer": "b"}\n',
            "t.csv:1: names no columns, and seems to be JSON. Write jsonl: before its name.",
        ),
        (b"prompt,answer,answer\na,b,c\n", "t.csv:1: has two columns `answer`. Rename one of the two."),
        (b"prompt,answer\na,b\nc\0,d\n", "t.csv:3: contains a NUL, which is not text. Correct the line"),
        (b"prompt,answer\na,b\nit\x92s,d\n", "t.csv:3: is not UTF-8 text at byte 0x92. Save the file as UTF-8; if it"),
        ("prompt,answer\na,b\n".encode("utf-16"), "t.csv: is UTF-16 text. Save it as UTF-8."),
        (b"PAR1 is how it begins\n", "t.csv: is not a CSV file. It is a Parquet file: write parquet: before its name."),
    ],
)
def test_what_is_no_csv_is_told(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(TaskError) as caught:
        read(tmp_path / "t.csv")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"cannot be read: Is a directory\. Name a CSV file\."):
        read(tmp_path)
    (tmp_path / "train-0.parquet").write_bytes(b"")
    with pytest.raises(TaskError, match=r"It holds Parquet files: write parquet: before its name\."):
        read(tmp_path)


CELL = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)


@given(st.lists(st.tuples(CELL, CELL).filter(lambda cells: any(cell.strip() for cell in cells)), min_size=1))
def test_what_python_writes_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("prompt", "answer"), *rows])
    path = tmp_path_factory.getbasetemp() / "one.csv"
    path.write_bytes(text.getvalue().encode())
    wanted = [{name: cell for name, cell in zip(("prompt", "answer"), row, strict=True) if cell} for row in rows]
    assert [fields for _, fields in read(path)] == wanted


@given(
    st.binary()
    | st.lists(st.sampled_from([b"prompt", b"answer", b",", b'"', b"\n", b"\r", b"a", b"\xff"])).map(b"".join)
)
@example(data=b'"\x01\n\x01"')
def test_whatever_a_file_holds_it_is_rows_or_one_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(data)
    try:
        read(path)
    except TaskError as error:
        told = str(error)
    else:
        told = str(path)
    assert told.startswith(str(path))
    assert not {character for character in told if unicodedata.category(character) in HIDDEN}
