"""Several files as one: their order, the place of a row, and how many there may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.tasks.api.interface import TaskError
from node.tasks.data_files import several_files
from node.tasks.data_files.json_lines import JsonLines
from node.tasks.data_files.rows import DataFile
from node.tasks.data_files.several_files import open_files


def write(path: Path, *prompts: str) -> None:
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))


def opened(path: Path) -> DataFile:
    return open_files(path, (".jsonl",), JsonLines)


def prompts(file: DataFile) -> list[str]:
    return [row.fields["prompt"] for row in file.rows(("prompt",))]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    write(tmp_path / "train-1.jsonl", "c")
    write(tmp_path / "train-0.jsonl", "a", "b")
    write(tmp_path / "test-0.jsonl", "d")
    (tmp_path / "README.md").write_text("no data")
    return tmp_path


def test_a_pattern_names_files_in_the_order_of_their_names(parts: Path) -> None:
    assert prompts(opened(parts / "train-*.jsonl")) == ["a", "b", "c"]
    assert prompts(opened(parts / "t*-?.jsonl")) == ["d", "a", "b", "c"]


def test_a_directory_is_all_its_files_of_that_ending(parts: Path) -> None:
    (parts / "more.jsonl").mkdir()
    assert prompts(opened(parts)) == ["d", "a", "b", "c"]


def test_rows_are_counted_through_and_placed_in_their_own_file(parts: Path) -> None:
    (parts / "train-0.jsonl").write_text('\n{"prompt": "a"}\n\n{"prompt": "b"}\n')
    file = opened(parts / "train-*.jsonl")
    numbers = [row.number for row in file.rows(("prompt",))]
    assert numbers == [2, 4, 5]
    places = [f"{parts}/train-0.jsonl:2", f"{parts}/train-0.jsonl:4", f"{parts}/train-1.jsonl:1"]
    assert [file.place(number) for number in numbers] == places
    assert str(file.reject(5, ValueError("is bad"))).startswith(f"{places[2]}: is bad.")


def test_the_digest_changes_with_any_file_and_with_their_order(parts: Path) -> None:
    digests = set()
    for first, second in (("ab", "c"), ("abx", "c"), ("ab", "cx"), ("c", "ab")):
        write(parts / "train-0.jsonl", *first)
        write(parts / "train-1.jsonl", *second)
        file = opened(parts / "train-*.jsonl")
        list(file.rows(("prompt",)))
        digests.add(file.digest.hexdigest())
    assert len(digests) == 4


def test_a_file_with_a_star_in_its_own_name_is_that_file(parts: Path) -> None:
    write(parts / "train-*.jsonl", "itself")
    assert prompts(opened(parts / "train-*.jsonl")) == ["itself"]


def test_a_pattern_that_names_nothing_says_where_it_looked(parts: Path) -> None:
    with pytest.raises(TaskError, match=r"valid-\*\.jsonl: names no file in .*Correct the pattern"):
        opened(parts / "valid-*.jsonl")


def test_a_directory_without_such_files_is_rejected_as_a_file_would_be(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read"):
        prompts(opened(tmp_path))


def test_more_files_than_may_be_are_rejected(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_files, "MAX_FILES", 2)
    with pytest.raises(TaskError, match="names 3 files; the maximum is 2"):
        opened(parts)


def test_all_files_together_hold_no_more_than_memory_may(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_files, "MAX_TOTAL_CHARACTERS", 2)
    with pytest.raises(TaskError, match=r"train-1\.jsonl:1: the rows up to here hold more than 2 characters"):
        prompts(opened(parts / "train-*.jsonl"))
