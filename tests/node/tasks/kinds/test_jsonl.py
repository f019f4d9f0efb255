"""Problems of data files: the fields' names, the same options for every format, and answers that nobody could give."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.tasks.api.interface import Chat, ChatMessage, Completion, TaskError
from node.tasks.gate import Gate
from node.tasks.kinds.jsonl import JsonlTask
from node.tasks.registry import list_tasks, open_task

Rows = list[dict[str, Any]]


def write_jsonl(path: Path, rows: Rows) -> str:
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"jsonl:{path.name}.jsonl"


def write_csv(path: Path, rows: Rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.with_suffix(".csv").write_text(text.getvalue(), "utf-8")
    return f"csv:{path.name}.csv"


def write_parquet(path: Path, rows: Rows) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return f"parquet:{path.name}.parquet"


def write_dataset(path: Path, rows: Rows) -> str:
    path.mkdir(exist_ok=True)
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(path / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return f"dataset:{path.name}"


Write = Callable[[Path, Rows], str]
FORMATS = {"jsonl": write_jsonl, "csv": write_csv, "parquet": write_parquet, "dataset": write_dataset}
every_format = pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
OBJECTS = {name: write for name, write in FORMATS.items() if name != "csv"}
with_objects = pytest.mark.parametrize("write", OBJECTS.values(), ids=OBJECTS)


def opened(base: Path, write: Write, rows: Rows, options: str) -> JsonlTask:
    task = open_task(f"{write(base / 'data', rows)}:{options or 'match=exact'}", directory=base)
    assert isinstance(task, JsonlTask)
    return task


def refused(base: Path, write: Write, rows: Rows, options: str) -> str:
    with pytest.raises(TaskError) as caught:
        opened(base, write, rows, options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def said(text: str) -> Completion:
    return Completion(text=text, finished=True)


GSM8K = [
    {
        "question": "Natalia sold clips to 48 of her friends in April, and half as many in May. How many altogether?",
        "answer": "She sold 48/2 = <<48/2=24>>24 clips in May.\nShe sold 48+24 = <<48+24=72>>72 altogether.\n#### 72",
    },
    {
        "question": "Weng earns $12 an hour for babysitting. Yesterday, she did 50 minutes. How much did she earn?",
        "answer": "She earns 12/60 = $<<12/60=0.2>>0.2 a minute.\nSo she earned 0.2 x 50 = $<<0.2*50=10>>10.\n#### 10",
    },
    {"question": "How many days are there in 3 years?", "answer": "365 * 3 = 1095\n#### 1,095"},
]


@every_format
def test_a_file_as_gsm8k_is_trains_as_it_is(tmp_path: Path, write: Write) -> None:
    task = opened(tmp_path, write, GSM8K, "prompt=question,match=numeric,held_out=0.34")
    assert (task.size, task.num_held_out) == (2, 1)
    assert Gate(task).is_cheap
    problems = [task.problem(0), task.problem(1), task.held_out(0)]
    assert {problem.prompt for problem in problems} == {row["question"] for row in GSM8K}
    for problem in problems:
        assert problem.answer is not None
        right = problem.answer.rpartition("#### ")[2]
        assert task.reward(problem, said(f"Let us see. So it is \\boxed{{{right}}}.")) == 1.0
        assert task.reward(problem, said(f"#### {right}.0")) == 1.0
        assert task.reward(problem, said("#### 7")) == 0.0
        assert task.reward(problem, said("")) == 0.0


@every_format
def test_all_options_are_those_of_every_format(tmp_path: Path, write: Write) -> None:
    rows = [{"q": f"what is {n}?", "a": str(n), "day": f"2024-01-{n + 1:02d}", "rate": 0.5} for n in range(9)]
    (tmp_path / "bench.txt").write_text("What is 2?\n")
    options = "prompt=q,answer=a,chat=never,date=day,before=2024-01-05,held_out_from=2024-01-07,exclude=bench.txt"
    task = opened(tmp_path, write, rows, f"{options},pass_rate=rate")
    assert [problem.answer for problem in task.training] == ["0", "1", "3"]
    assert [problem.answer for problem in task.kept_back] == ["6", "7", "8"]
    assert task.pass_rates == (0.5, 0.5, 0.5)
    assert task.training[0].chat is Chat.NEVER
    assert "3 problems to train on, 3 held out; left out: 1 in bench.txt, 2 dated 2024-01-05 or later" in task.notes[0]


@every_format
def test_the_same_rows_are_the_same_problems_in_every_format(tmp_path: Path, write: Write) -> None:
    rows = [{"prompt": f"what is {n}?", "answer": n} for n in range(20)]
    task, plain = opened(tmp_path, write, rows, "held_out=0.2"), opened(tmp_path, write_jsonl, rows, "held_out=0.2")
    assert (task.training, task.kept_back, task.trained) == (plain.training, plain.kept_back, plain.trained)
    again = opened(tmp_path, write, rows, "held_out=0.2")
    other = opened(tmp_path, write, [*rows[:-1], {"prompt": "what is 19?", "answer": 18}], "held_out=0.2")
    assert task.fingerprint == again.fingerprint != other.fingerprint


@with_objects
def test_another_field_for_the_answer_is_another_task(tmp_path: Path, write: Write) -> None:
    rows = [{"prompt": f"what is {n}?", "answer": str(n), "extra": {"final": str(n + 1)}} for n in range(4)]
    one, other = opened(tmp_path, write, rows, ""), opened(tmp_path, write, rows, "answer=extra.final")
    assert one.digest == other.digest
    assert one.fingerprint != other.fingerprint
    assert {(problem.prompt, problem.answer) for problem in other.training} < {
        (f"what is {n}?", f"{n + 1}") for n in range(4)
    }


@with_objects
def test_conversations_are_prompts(tmp_path: Path, write: Write) -> None:
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "6*7?"}]
    rows = [{"messages": talk, "reward_model": {"ground_truth": "42", "style": "rule"}}]
    wanted = tuple(ChatMessage(role=one["role"], content=one["content"]) for one in talk)
    for options in ("answer=reward_model.ground_truth", "prompt=messages,answer=reward_model.ground_truth"):
        problem = opened(tmp_path, write, rows, f"{options},held_out=0").problem(0)
        assert (problem.prompt, problem.answer, problem.chat) == (wanted, "42", Chat.ALWAYS)


@with_objects
def test_a_conversation_that_holds_its_answer_is_refused(tmp_path: Path, write: Write) -> None:
    talk = [{"role": "user", "content": "6*7?"}, {"role": "assistant", "content": "42"}]
    told = refused(tmp_path, write, [{"messages": talk, "answer": "42"}], "")
    assert "1: `messages` ends with a message of the assistant. Leave its last message out" in told


@every_format
def test_a_field_that_is_missing_is_named_with_those_that_are_there(tmp_path: Path, write: Write) -> None:
    rows = [{"question": "a", "answers": "b"}]
    told = refused(tmp_path, write, rows, "prompt=question")
    assert "has no field `answer` (did you mean `answers`?); its fields are `question`, `answers`." in told
    assert "Name the field in the spec, as in answer=answers, or correct the row." in told
    told = refused(tmp_path, write, rows, "prompt=question,answer=final,date=day,before=2024-01-01")
    assert "has no field `final`; its fields are `question`, `answers`" in told


@every_format
def test_a_date_that_is_missing_is_named_with_what_is_there(tmp_path: Path, write: Write) -> None:
    told = refused(tmp_path, write, [{"prompt": "a", "answer": "b", "day": "2024"}], "before=2025-01-01")
    assert "`date` is missing, but before= and held_out_from= need it; its fields are `prompt`, `answer`, `day`" in told
    assert "as in date=FIELD" in told


@pytest.mark.parametrize(
    ("match", "answer", "says"),
    [
        ("numeric", "I do not know", "`gold` holds no number, and match=numeric needs one number"),
        ("numeric", "3 or 4", "`gold` is more than a number"),
        ("math", "$$", "`gold`"),
        ("math", r"\boxed{}", "`gold`"),
        ("math", r"\frac{1}{2", "`gold`"),
        ("math", "There is no such $n$.", "`gold` is prose that marks no answer"),
        ("exact", "  ", "`gold` is empty"),
    ],
)
@every_format
def test_an_answer_that_nobody_could_give_is_refused_with_its_row(
    tmp_path: Path, write: Write, match: str, answer: str, says: str
) -> None:
    rows = [{"prompt": "1+1?", "gold": "2"}, {"prompt": "and now?", "gold": answer}]
    told = refused(tmp_path, write, rows, f"answer=gold,match={match}")
    number = 3 if write is write_csv else 2
    place = ", row 2: " if write in (write_parquet, write_dataset) else f":{number}: "
    assert place in told
    assert says in told
    assert "Correct the" in told


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "row 1: `answer` is empty."),
        (float("inf"), "row 1: `answer` is inf, which is not a number that could be an answer."),
        ([1, 2], "row 1: has a list in field `answer`, where a number or text belongs."),
        ({"final": 1}, "row 1: has an object in field `answer`, where a number or text belongs."),
        (True, "row 1: has true or false in field `answer`, where a number or text belongs."),
    ],
)
@pytest.mark.parametrize("write", [write_parquet, write_dataset], ids=["parquet", "dataset"])
def test_a_column_of_another_type_is_told(tmp_path: Path, write: Write, value: object, says: str) -> None:
    assert says in refused(tmp_path, write, [{"prompt": "a", "answer": value}], "")


def test_whole_numbers_of_a_column_with_gaps_are_whole(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a", "b"], "answer": pa.array([72.0, 0.5])}), tmp_path / "t.parquet")
    task = open_task("parquet:t.parquet:held_out=0", directory=tmp_path)
    assert [task.problem(index).answer for index in range(2)] == ["72", "0.5"]


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("t.tsv", "", "prompt\tanswer\na,b\tc\n"),
        ("t.csv", "delimiter=tab", "prompt\tanswer\na,b\tc\n"),
        ("t.csv", "delimiter=;", "prompt;answer\na,b;c\n"),
        ("t.tsv", "delimiter=;", "prompt;answer\na,b;c\n"),
    ],
)
def test_cells_are_divided_by_what_the_name_or_the_spec_says(
    tmp_path: Path, name: str, options: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    problem = open_task(f"csv:{name}:{options or 'held_out=0'}", directory=tmp_path).problem(0)
    assert (problem.prompt, problem.answer) == ("a,b", "c")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("csv:t.csv:delimiter=ab", "delimiter=ab: must be one character, or the word tab."),
        ("jsonl:t.jsonl:answer=", "answer= names no field. Name one, or leave it out."),
        (
            "csv:t.csv:question=q",
            "no key 'question'. If 'question' is the field with the prompt, write prompt=question. ",
        ),
        ("parquet:t.parquet:promt=q", "task 'parquet' has no key 'promt' (did you mean 'prompt'?)"),
        ("dataset", "task 'dataset' needs DIRECTORY"),
    ],
)
def test_a_wrong_option_is_told(spec: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        open_task(spec, directory=tmp_path)
    assert says in str(caught.value)


def test_a_split_of_a_data_set_is_an_option(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    for split in ("train", "test"):
        write_dataset(tmp_path / "saved" / split, [{"prompt": split, "answer": split}])
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert open_task("dataset:saved:split=test", directory=tmp_path).problem(0).answer == "test"


def test_pyarrow_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TaskError, match=r"are read with pyarrow, .* Type: .*tasks"):
        open_task("parquet:t.parquet", directory=tmp_path)


def test_the_listing_tells_every_format() -> None:
    listing = list_tasks()
    for name in ("jsonl:PATH[", "csv:PATH[", "parquet:PATH[", "dataset:DIRECTORY["):
        assert f"\n{name}:prompt=prompt,answer=answer,match=exact," in f"\n{listing}".replace("[:", "[:")


@every_format
def test_a_file_of_its_own_is_held_out_whole_and_nothing_else(tmp_path: Path, write: Write) -> None:
    exam = write(tmp_path / "exam", [{"prompt": "2+2", "answer": "4"}, {"prompt": "3+3", "answer": "6"}])
    rows = [{"prompt": f"{n}+{n}", "answer": str(2 * n)} for n in range(1, 21)]
    task = opened(tmp_path, write, rows, f"held_out_file={exam.partition(':')[2]},held_out=0.5")
    assert [task.held_out(index).prompt for index in range(task.num_held_out)] == ["2+2", "3+3"]
    assert [task.problem(index).prompt for index in range(task.size)] == [
        f"{n}+{n}" for n in range(1, 21) if n not in (2, 3)
    ]
    assert "left out: 2 whose prompts are held out" in task.notes[0]


def test_the_file_that_is_held_out_counts_in_the_fingerprint(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d"}]
    found = set()
    for answer in "xy":
        exam = write_jsonl(tmp_path / "exam", [{"prompt": "e", "answer": answer}])
        found.add(opened(tmp_path, write_jsonl, rows, f"held_out_file={exam.partition(':')[2]}").fingerprint)
    assert len(found) == 2


def test_days_need_not_stand_in_the_file_that_is_held_out(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "b", "date": "2024"}, {"prompt": "c", "answer": "d", "date": "2026"}]
    write_jsonl(tmp_path / "exam", [{"prompt": "e", "answer": "f"}])
    task = opened(tmp_path, write_jsonl, rows, "held_out_file=exam.jsonl,before=2025")
    assert (task.size, task.num_held_out) == (1, 1)
    with pytest.raises(TaskError, match="leave one of them out"):
        opened(tmp_path, write_jsonl, rows, "held_out_file=exam.jsonl,held_out_from=2025")


def test_a_bad_row_of_the_file_that_is_held_out_names_that_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "exam", [{"prompt": "e"}])
    with pytest.raises(TaskError, match=r"exam\.jsonl:1: has no field `answer`"):
        opened(tmp_path, write_jsonl, [{"prompt": "a", "answer": "b"}], "held_out_file=exam.jsonl")


def test_parts_of_a_data_set_are_one_task(tmp_path: Path) -> None:
    for part, letter in enumerate("ab"):
        write_parquet(tmp_path / f"train-{part}", [{"prompt": letter * n, "answer": letter} for n in range(1, 4)])
    write_parquet(tmp_path / "test-0", [{"prompt": "c", "answer": "c"}])
    spec = "parquet:train-*.parquet:held_out_file=test-*.parquet"
    task = open_task(spec, directory=tmp_path)
    assert isinstance(task, JsonlTask)
    prompts = [task.problem(index).prompt for index in range(task.size)]
    assert (prompts, task.num_held_out) == (["a", "aa", "aaa", "b", "bb", "bbb"], 1)


def test_another_split_is_held_out(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    for split, letters in (("train", "abc"), ("test", "cd")):
        write_dataset(directory / split, [{"prompt": letter, "answer": letter} for letter in letters])
    (directory / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    task = open_task("dataset:data:split=train,held_out_split=test", directory=tmp_path)
    assert isinstance(task, JsonlTask)
    assert [task.problem(index).prompt for index in range(task.size)] == ["a", "b"]
    assert task.num_held_out == 2
    with pytest.raises(TaskError, match="held_out_split=train: is the split to train on"):
        open_task("dataset:data:split=train,held_out_split=train", directory=tmp_path)
    with pytest.raises(TaskError, match="has no split 'exam'"):
        open_task("dataset:data:split=train,held_out_split=exam", directory=tmp_path)


def test_an_object_in_place_of_an_answer_is_told_with_a_field_inside_it(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "meta": {"final": "1", "source": "x"}}]
    assert "Name a field inside it, as in answer=meta.final." in refused(tmp_path, write_parquet, rows, "answer=meta")
