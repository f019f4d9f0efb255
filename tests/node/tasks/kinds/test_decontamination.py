"""Problems that must not be trained on are left out, and counted."""

from __future__ import annotations

import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.api.interface import TaskError
from node.tasks.kinds.decontamination import MAX_GRAMS, normalise, read_date, read_excluded, text_hash
from node.tasks.kinds.jsonl import JsonlTask
from node.tasks.registry import open_task

DAYS = ["2023-05-01", "2024-01-31", "2024-06-01T12:00:00Z", "2024-07", "2025"]


def rows(*days: str) -> list[dict[str, Any]]:
    return [{"prompt": f"What is {number} plus one?", "answer": number + 1, "date": d} for number, d in enumerate(days)]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines), "utf-8")
    return path


def opened(base: Path, options: str, lines: list[dict[str, Any]] | None = None) -> JsonlTask:
    write(base / "t.jsonl", rows(*DAYS) if lines is None else lines)
    task = open_task(f"jsonl:t.jsonl:{options}", directory=base)
    assert isinstance(task, JsonlTask)
    return task


def numbers(problems: Any) -> list[int]:
    return [int(problem.prompt.split()[2]) for problem in problems]


def test_only_what_is_dated_before_is_trained_on(tmp_path: Path) -> None:
    task = opened(tmp_path, "before=2024-06-01,held_out=0")
    assert numbers(task.training) == [0, 1]
    assert task.kept_back == ()
    (note,) = task.notes
    assert note.endswith("t.jsonl: 2 problems to train on, 0 held out; left out: 3 dated 2024-06-01 or later")


def test_what_is_dated_from_a_day_on_is_held_out_and_between_the_two_days_neither(tmp_path: Path) -> None:
    task = opened(tmp_path, "held_out_from=2024-07-31")
    assert (numbers(task.training), numbers(task.kept_back)) == ([0, 1, 2], [3, 4]), "a month counts as its last day"
    task = opened(tmp_path, "held_out_from=2025-01-01,before=2024-02")
    assert (numbers(task.training), numbers(task.kept_back)) == ([0, 1], [4])
    assert task.left_out == "2 dated 2024-02-29 or later"


def test_a_prompt_that_is_held_out_is_never_trained_on_under_an_earlier_date(tmp_path: Path) -> None:
    lines = [*rows("2023-01-01", "2023-01-01"), rows("2025-01-01")[0]]
    task = opened(tmp_path, "held_out_from=2025-01-01", lines)
    assert (numbers(task.training), numbers(task.kept_back)) == ([1], [0])
    with pytest.raises(TaskError, match="no line is left to train on; left out: 1 that are held out under a later"):
        opened(tmp_path, "held_out_from=2025-01-01", [lines[0], lines[2]])
    assert {problem.prompt for problem in task.training}.isdisjoint(problem.prompt for problem in task.kept_back)


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["what is 1 PLUS one", ""], [0, 2, 3, 4]),
        ([text_hash("What is 3 plus one?").upper()], [0, 1, 2, 4]),
        ([{"hash": text_hash("What is 3 plus one?")}, {"text": "What is 4 plus one?", "id": 3}], [0, 1, 2]),
        ([{"prompt": [{"role": "user", "content": "What is 2 plus one?"}]}], [0, 1, 3, 4]),
        (["is 2 plus one"], [0, 1, 2, 3, 4]),
    ],
)
def test_texts_and_hashes_in_a_file_are_not_trained_on(tmp_path: Path, lines: list[Any], left: list[int]) -> None:
    write(tmp_path / "bench.txt", lines)
    task = opened(tmp_path, "exclude=bench.txt,held_out=0")
    assert numbers(task.training) == left
    assert task.left_out == (f"{5 - len(left)} in bench.txt" if len(left) < 5 else "")


def test_a_system_prompt_around_a_problem_makes_it_no_other(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    lines = [
        {"prompt": [system, {"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in rows(*DAYS)
    ]
    asked = {"prompt": [{**system, "content": "Think."}, {"role": "user", "content": "What is 2 plus one?"}]}
    write(tmp_path / "bench.txt", ["What is 1 plus one?", asked, "Be brief."])
    task = opened(tmp_path, "exclude=bench.txt,held_out=0", lines)
    said = [problem.prompt[1].content for problem in task.training if not isinstance(problem.prompt, str)]
    assert [int(text.split()[2]) for text in said] == [0, 3, 4]


def test_so_many_words_in_a_row_make_a_text_an_excluded_one(tmp_path: Path) -> None:
    write(tmp_path / "bench.txt", ["Tell me: is 2 plus one more than is 3?", "of"])
    assert numbers(opened(tmp_path, "exclude=bench.txt,held_out=0,ngram=4").training) == [0, 1, 3, 4]
    assert opened(tmp_path, "exclude=bench.txt,held_out=0,ngram=9").size == 5, "they have fewer words"
    with pytest.raises(TaskError, match=r"no line is left to train on; left out: 5 in bench\.txt"):
        opened(tmp_path, "exclude=bench.txt,held_out=0,ngram=2")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "bench.txt:2: not JSON"),
        ({"id": 3}, "bench.txt:2: has none of the keys `hash`, `text` and `prompt`"),
        ({"hash": "12"}, "bench.txt:2: `hash` is not 64 hexadecimal digits"),
        ("?!", "bench.txt:2: holds a text without letters or digits"),
        ({"prompt": 7}, "bench.txt:2: `prompt` is neither text nor a list of messages"),
        ({"prompt": [{"role": "user"}]}, "bench.txt:2: `prompt` holds a message without `content`"),
    ],
)
def test_a_bad_line_of_the_excluded_is_named(tmp_path: Path, line: Any, says: str) -> None:
    write(tmp_path / "bench.txt", ["fine", line])
    with pytest.raises(TaskError) as caught:
        opened(tmp_path, "exclude=bench.txt")
    assert says in str(caught.value)


def test_files_that_exclude_nothing_are_mistakes(tmp_path: Path) -> None:
    (tmp_path / "bench.txt").write_bytes(b"\n\xff\n")
    with pytest.raises(TaskError, match=r"bench\.txt:2: not UTF-8 at byte 0"):
        opened(tmp_path, "exclude=bench.txt")
    write(tmp_path / "bench.txt", [""])
    with pytest.raises(TaskError, match="holds no lines"):
        opened(tmp_path, "exclude=bench.txt")
    with pytest.raises(TaskError, match=r"absent\.txt: cannot be read"):
        opened(tmp_path, "exclude=absent.txt")


@pytest.mark.parametrize(
    ("day", "says"),
    [
        (None, "t.jsonl:2: `date` is missing, but before= and held_out_from= need it"),
        ("soon", "t.jsonl:2: 'soon' is not a date; write YYYY-MM-DD"),
        ("2024-02-30", "t.jsonl:2: '2024-02-30' is not a day of the calendar"),
        (20240101, "t.jsonl:2: '20240101' is not a date"),
    ],
)
def test_a_line_without_a_day_is_named(tmp_path: Path, day: Any, says: str) -> None:
    lines = rows("2023-01-01", "2023-01-01")
    lines[1]["date"] = day
    with pytest.raises(TaskError) as caught:
        opened(tmp_path, "before=2024-01-01", lines)
    assert says in str(caught.value)
    assert opened(tmp_path, "held_out=0", lines).size == 2, "a date is needed only where one is asked for"


def test_a_bad_day_in_the_spec_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="before=yesterday: 'yesterday' is not a date"):
        opened(tmp_path, "before=yesterday")


def test_another_field_may_hold_the_day(tmp_path: Path) -> None:
    lines = [{"prompt": "What is 0", "answer": 1, "year": 2024}, {"prompt": "What is 1", "answer": 1, "year": 2025}]
    assert numbers(opened(tmp_path, "date=year,held_out_from=2025", lines).kept_back) == [1]


def test_pass_rates_that_were_measured_before_come_with_the_problems(tmp_path: Path) -> None:
    lines = [{**row, "rate": rate} for row, rate in zip(rows(*DAYS), [0.5, None, 1, 0, 0.25], strict=True)]
    task = opened(tmp_path, "held_out=0,pass_rate=rate", lines)
    assert task.pass_rates is not None
    assert [None if math.isnan(rate) else rate for rate in task.pass_rates] == [0.5, None, 1.0, 0.0, 0.25]
    assert opened(tmp_path, "held_out=0", lines).pass_rates is None
    with pytest.raises(TaskError, match=r"t\.jsonl:2: `rate` is 2, but a pass rate is a number from 0 to 1"):
        opened(tmp_path, "pass_rate=rate", [lines[0], {**lines[1], "rate": 2}])
    with pytest.raises(TaskError, match="no line to train on has the field 'rates'"):
        opened(tmp_path, "pass_rate=rates", lines)


def test_what_is_left_out_changes_the_fingerprint(tmp_path: Path) -> None:
    write(tmp_path / "bench.txt", ["what is 1 plus one"])
    specs = ["held_out=0", "held_out=0,exclude=bench.txt", "held_out=0,before=2024-01-01"]
    assert len({opened(tmp_path, options).fingerprint for options in specs}) == 3


@given(st.text())
def test_normalising_is_idempotent_and_forgets_case_and_spacing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert text_hash(f"  {text}\n!") == text_hash(text)


@given(st.dates())
def test_days_read_back(day: date) -> None:
    assert read_date(day.isoformat()) == day
    assert read_date(f"{day.isoformat()}T23:59") == day


def test_n_grams_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.tasks.kinds.decontamination.MAX_GRAMS", 3)
    write(tmp_path / "bench.txt", ["a b c", "d e f"])
    with pytest.raises(TaskError, match=r"bench\.txt:2: more than 3 n-grams up to here"):
        read_excluded(tmp_path / "bench.txt", 2)
    assert MAX_GRAMS > 3
