"""Make tasks from a data file, in which each row has a prompt (text or chat messages) and an answer under any names.

The kinds differ only in the file's format: `jsonl`, `csv`, `parquet`, and `dataset` for a directory that `save_to_disk`
of Hugging Face datasets wrote. `node.tasks.kinds.problem_files` reads, divides and cleans the file. The option `match`
says how an answer is compared: `exact` (except for white space around it), as a number (`node.tasks.answers.numbers`),
as mathematics (`node.tasks.answers.math_equality`), or elsewhere, by a judge or a service
(`node.tasks.kinds.asked_elsewhere`).

Invariants:

- A completion that does not end with a stop id within its budget gets 0.
- A reference that nobody could ever answer is an error with its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path

from node.runtime.user_paths import as_path
from node.tasks.answers.math_equality import (
    marks_answer,
    reference_of,
    require_math_verify,
    same_mathematics,
    wording,
)
from node.tasks.answers.numbers import last_number, reference_number
from node.tasks.api.interface import Chat, Completion, Option, Problem, Task, TaskArguments, TaskError, TaskKind
from node.tasks.data_files.delimited import TAB, open_delimited
from node.tasks.data_files.json_lines import open_json_lines
from node.tasks.data_files.parquet import open_parquet
from node.tasks.data_files.rows import DataFile, Row
from node.tasks.data_files.saved_dataset import SavedDataset
from node.tasks.kinds.asked_elsewhere import ELSEWHERE, JudgedTask, RowProblem, ServedTask, judge_of, service_of
from node.tasks.kinds.problem_files import (
    ANSWER,
    FILE_OPTIONS,
    PROMPT,
    ProblemFile,
    PromptRow,
    held_out_path,
    names_in,
    names_of,
    prompt_of,
    read_problems,
    read_row,
)

KEYS = {"prompt": "prompt", "answer": "answer"}
"""The options that name the fields of a row."""


class _Row(PromptRow):
    answer: str | int | float


class _RowToJudge(PromptRow):
    answer: str | int | float | None = None


@dataclass(frozen=True, kw_only=True)
class JsonlTask(ProblemFile):
    """A task of the rows of a file. `match` is "exact", "numeric" or "math"."""

    name: str
    match: str
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/{self.digest}/{self.match}/{len(self.kept_back)}/{self.trained}{self.names}"

    @property
    def is_cheap(self) -> bool:
        """False for "math", because expressions may be arbitrarily hard to compare."""
        return self.match != "math"

    def require(self) -> None:
        """Raise TaskError if mathematics cannot be compared on this machine."""
        if self.match == "math":
            require_math_verify()

    def in_form(self, problem: Problem, completion: Completion) -> bool:
        """Return whether the completion has a readable answer: a number, or a marked answer. "exact" needs no form."""
        del problem
        match self.match:
            case "numeric":
                return last_number(completion.text) is not None
            case "math":
                return marks_answer(completion.text)
            case _:
                return True

    def reward(self, problem: Problem, completion: Completion) -> float:
        if not completion.finished or problem.answer is None:
            return 0.0
        match self.match:
            case "numeric":
                value = last_number(completion.text)
                return float(value is not None and value == reference_number(problem.answer))
            case "math":
                return float(same_mathematics(problem.answer, completion.text))
            case _:
                return float(completion.text.strip() == problem.answer.strip())


def _read_problem(row: Row, *, names: Mapping[str, str], match: str, chat: Chat) -> Problem:
    """Return the problem in a row. Raises ValueError, which says what is wrong."""
    names = names_in(row, names)
    if match in ELSEWHERE:
        told = read_row(row, _RowToJudge, KEYS, names)
        prompt, template = prompt_of(told, chat, names["prompt"])
        known = None if told.answer is None else _text(told.answer, names["answer"])
        return RowProblem(prompt=prompt, answer=known, chat=template, row=row.number)
    read = read_row(row, _Row, KEYS, names)
    name = names["answer"]
    answer = _text(read.answer, name)
    prompt, template = prompt_of(read, chat, names["prompt"])
    if not answer.strip():
        raise ValueError(f"`{name}` is empty")
    if match == "numeric" and reference_number(answer) is None:
        why = "is more than a number" if any(map(str.isdigit, answer)) else "holds no number"
        mark = ", or a mark such as #### or \\boxed{} before it"
        raise ValueError(f"`{name}` {why}, and match=numeric needs one number{mark}: {answer[:40]!r}")
    if match == "math":
        try:
            reference_of(answer)
        except ValueError as error:
            raise ValueError(str(error).replace("`answer`", f"`{name}`")) from error
    return Problem(prompt=prompt, answer=answer, chat=template)


def _text(answer: str | int | float, name: str) -> str:
    """Return a reference as text. A number gets no exponent, so readers of answers need not know that form.

    Raises ValueError.
    """
    if isinstance(answer, str | int):
        return str(answer)
    if not math.isfinite(answer):
        raise ValueError(f"`{name}` is {answer}, which is not a number that could be an answer")
    return format(Decimal(str(answer)), "f")


def _right(problem: Problem, match: str) -> object:
    """Return a value that is equal for two references if, and only if, the same answers are right for both."""
    if match in ELSEWHERE:
        return problem.answer
    assert problem.answer is not None, "every row has one"
    match match:
        case "numeric":
            return reference_number(problem.answer)
        case "math":
            return wording(reference_of(problem.answer))
        case _:
            return problem.answer.strip()


OpenFile = Callable[[TaskArguments, Path], DataFile]
"""Opens the file at a path, by the options in `arguments`. Raises TaskError."""


OpenHeldOut = Callable[[TaskArguments], DataFile | None]
"""Opens the held-out file that `arguments` name; None if the held-out problems come from the file itself. Raises
TaskError."""


def _build(arguments: TaskArguments, *, kind: str, open_file: OpenFile, open_held_out: OpenHeldOut) -> Task:
    match, chat = arguments.text("match"), Chat(arguments.text("chat"))
    names = names_of(arguments, KEYS)
    fields = read_problems(
        arguments,
        open_file(arguments, arguments.directory / as_path(arguments.argument)),
        open_held_out(arguments),
        names,
        lambda row: _read_problem(row, names=names, match=match, chat=chat),
        lambda problem: _right(problem, match),
    )
    if match == "judge":
        return JudgedTask(name=kind, judge=judge_of(arguments), **fields)
    if match == "service":
        return ServedTask(name=kind, service=service_of(arguments), **fields)
    return JsonlTask(name=kind, match=match, **fields)


def _kind(
    name: str,
    summary: str,
    open_file: OpenFile,
    *more: Option,
    argument: str = "PATH",
    open_held_out: OpenHeldOut | None = None,
) -> TaskKind:
    def open_named(arguments: TaskArguments) -> DataFile | None:
        path = held_out_path(arguments)
        return None if path is None else open_file(arguments, path)

    return TaskKind(
        name=name,
        summary=summary,
        build=partial(_build, kind=name, open_file=open_file, open_held_out=open_held_out or open_named),
        argument=argument,
        options=(PROMPT, ANSWER, MATCH, *more, *FILE_OPTIONS),
    )


def _open_lines(arguments: TaskArguments, path: Path) -> DataFile:
    return open_json_lines(path)


def _open_parquet(arguments: TaskArguments, path: Path) -> DataFile:
    return open_parquet(path)


def _open_dataset(arguments: TaskArguments, path: Path) -> DataFile:
    return SavedDataset(path, arguments.text("split"))


def _held_out_of_dataset(arguments: TaskArguments) -> DataFile | None:
    """Return another split of the same data set, or another data set."""
    split, path = arguments.text("held_out_split"), held_out_path(arguments)
    if not split:
        return None if path is None else SavedDataset(path, "")
    if path is None and split == arguments.text("split"):
        raise TaskError(f"held_out_split={split}: is the split to train on. Name another one.")
    return SavedDataset(path or arguments.directory / as_path(arguments.argument), split)


def _open_delimited(arguments: TaskArguments, path: Path) -> DataFile:
    given = arguments.text("delimiter")
    delimiter = TAB if given == "tab" else given
    if len(delimiter) > 1 or (delimiter and delimiter in '"\r\n'):
        raise TaskError(f"delimiter={given}: must be one character, or the word tab.")
    return open_delimited(path, delimiter)


MATCH = Option(
    key="match",
    default="exact",
    help="how to compare the answer, or whom to ask",
    choices=("exact", "numeric", "math", *ELSEWHERE),
)

DELIMITER = Option(key="delimiter", default="", help="between cells: one character or tab; default: comma, in .tsv tab")

SPLIT = Option(key="split", default="", help="the split to train on, for example train")

HELD_OUT_SPLIT = Option(key="held_out_split", default="", help="the split to hold out, for example test")

JSONL = _kind("jsonl", 'a file of lines {"prompt": ..., "answer": ...}', _open_lines)

CSV = _kind("csv", "a CSV or TSV file whose first line names the fields", _open_delimited, DELIMITER)

PARQUET = _kind("parquet", "one Parquet file, or several", _open_parquet)

DATASET = _kind(
    "dataset",
    "a data set that save_to_disk of Hugging Face datasets wrote",
    _open_dataset,
    SPLIT,
    HELD_OUT_SPLIT,
    argument="DIRECTORY",
    open_held_out=_held_out_of_dataset,
)
