"""Propose the `[task] spec` of a data file, for `volery init --data`: look at its columns and at its answers.

A person who has a file of problems should not have to learn the grammar of specs first. The names are those that data
sets usually have (`USUAL_NAMES`), and the comparison is the strictest that fits every answer. The task is then opened
like the learner opens it, so a proposal is one that works.

Invariants:

- Nothing is copied or written.
- A file without a fitting column is refused with a sentence that names its columns.
- A proposed spec opens: every row can be used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from learner.artifacts.regular_file import open_file
from node.runtime.errors import UsageError, shortened
from node.runtime.user_paths import real_path
from node.tasks.answers.extraction import answer_in
from node.tasks.answers.math_equality import reference_of
from node.tasks.answers.numbers import reference_number
from node.tasks.api.interface import TaskError
from node.tasks.data_files.delimited import ENDINGS, TAB, open_delimited, usual_delimiter
from node.tasks.data_files.formats import SAVED, advice
from node.tasks.data_files.json_lines import open_json_lines
from node.tasks.data_files.parquet import open_parquet
from node.tasks.data_files.rows import MAX_NAME_TOLD, MISSING, USUAL_NAMES, DataFile, name_text, names_text
from node.tasks.data_files.several_files import files_of
from node.tasks.registry import open_task
from protocol.core.visible import one_line

KINDS = {".jsonl": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
"""Kinds of task by the endings of data files."""

TESTS = ("tests", "asserts", "test_list")
"""Usual names of a field with tests for programs."""

MESSAGES = "messages"
"""The field of a conversation, which stands for `prompt` without being named."""

MARKS = ("\\", "$", "^", "{", "####")
"""Signs of mathematics in an answer."""

MAX_EXACT_CHARS = 64
"""Longest median of answers for which equality is a sensible reward: hardly any completion repeats a longer text."""

OWN_NAMES = {"prompt": "prompt", "answer": "answer", "tests": "tests", "asserts_field": "asserts"}
"""Names of fields that a task looks for if its spec names none."""

LONG_ANSWERS = (
    "The answers in `{}` are long texts, and `exact` pays only for the same text. Consider match=judge, or a task of "
    "your own: volery new task my-task."
)

OTHER_DELIMITERS = f";{TAB}|"
"""Signs that divide the cells of files called .csv, if no comma does."""

MAX_HEADER_BYTES = 1 << 16
"""Bytes of the line of names to look at."""

MAX_LOOKED_AT = 10_000
"""Rows whose answers decide `match`. Then the whole file is opened, so a later row that does not fit is an error."""


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """A proposal. `why`: how the comparison was chosen. `notes`: what the task says about the file."""

    spec: str
    why: str
    notes: tuple[str, ...] = ()
    warning: str = ""


def propose_spec(file: Path, directory: Path) -> DataSpec:
    """Return the proposal for a data file, with its path as a swarm.toml in `directory` names it. Raises UsageError."""
    if not file.exists() and not any(sign in file.name for sign in "*?"):
        raise UsageError(f"--data: {shortened(str(file))} does not exist. Name a file of problems.")
    place = real_path(file.parent) / file.name
    kind = _kind_of(place)
    try:
        names = _names_of(_open(kind, place))
        found = _of_tests(kind, names) or _of_answers(kind, place, names)
        task = open_task(found.spec(str(place)))
    except (TaskError, OSError) as error:
        said = (
            error if isinstance(error, TaskError) else f"{place} cannot be read: {error.strerror}. Name another file."
        )
        raise UsageError(f"--data: {said}") from None
    return DataSpec(
        spec=found.spec(os.path.relpath(place, real_path(directory))),
        why=found.why,
        notes=tuple(getattr(task, "notes", ())),
        warning=found.warning,
    )


@dataclass(frozen=True, kw_only=True)
class _Found:
    """The kind of task and its options, and why."""

    kind: str
    options: Mapping[str, str]
    why: str
    warning: str = ""

    def spec(self, path: str) -> str:
        """Return the spec. Fields that have the task's own names are left out."""
        told = [f"{key}={value}" for key, value in self.options.items() if value != OWN_NAMES.get(key)]
        return f"{self.kind}:{path}" + (f":{','.join(told)}" if told else "")


def _kind_of(file: Path) -> str:
    """Return the kind of task that reads the file, the directory or the pattern. Raises UsageError."""
    if ":" in str(file):
        raise UsageError(f"--data: {file} has a colon in its path, which a spec cannot name. Rename it.")
    if file.is_dir() and any((file / name).is_file() for name in SAVED):
        raise UsageError(
            f"--data: {file} is a data set that save_to_disk wrote. Leave --data out, and set [task] spec = "
            f'"dataset:PATH:split=train" with the columns: see `volery tasks`.'
        )
    endings = {one.suffix for one in file.iterdir()} if file.is_dir() else {file.suffix.lower()}
    kinds = {KINDS[ending] for ending in endings if ending in KINDS}
    if len(kinds) != 1:
        otherwise = f"Name a file that ends with one of {', '.join(KINDS)}, or a directory with files of one kind."
        raise UsageError(f"--data: {shortened(str(file))} has no known format. {advice(file, otherwise)}")
    return kinds.pop()


def _delimiter_of(path: Path) -> str:
    """Return what divides the cells, as the first line of the first file shows; "" for what its name says."""
    file = next(iter(files_of(path, ENDINGS)), path)
    usual = usual_delimiter(file)
    with open_file(file) as opened:
        header = opened.readline(MAX_HEADER_BYTES).decode(errors="replace")
    return "" if usual in header else next((sign for sign in OTHER_DELIMITERS if sign in header), "")


def _open(kind: str, file: Path) -> DataFile:
    match kind:
        case "csv":
            return open_delimited(file, _delimiter_of(file))
        case "parquet":
            return open_parquet(file)
        case _:
            return open_json_lines(file)


def _names_of(file: DataFile) -> list[str]:
    """Return the names of the first row's fields, and of fields inside these. Raises TaskError."""
    for row in file.rows(()):
        return [*row.names, *row.nested()]
    raise TaskError(f"{file.path} holds no rows. Write a prompt and an answer in each row.")


def _of_tests(kind: str, names: Sequence[str]) -> _Found | None:
    """Return the proposal for problems whose answers are programs; None if no field holds tests."""
    tests = next((name for name in TESTS if name in names), None)
    if tests is None or kind != "jsonl" or "answer" in names:
        return None
    options = _prompt(names)
    if options is None and "text" in names:  # as MBPP calls it
        options = {"prompt": "text"}
    if options is None:
        return None
    options["tests" if tests == "tests" else "asserts_field"] = tests
    if "code" in names:
        options["answer"] = "code"
    return _Found(kind="code", options=options, why=f"`{tests}` holds tests for programs")


def _of_answers(kind: str, file: Path, names: Sequence[str]) -> _Found:
    """Return the proposal for problems with a reference answer. Raises UsageError, TaskError."""
    prompt, answer = _prompt(names), _column("answer", names)
    if prompt is None or answer is None:
        raise _no_column("prompt" if prompt is None else "answer", kind, file, names)
    answers = [str(value) for value in _values(_open(kind, file), answer)]
    match, why = _match_of(answers, answer)
    is_long = match == "exact" and sorted(map(len, answers))[len(answers) // 2] > MAX_EXACT_CHARS
    options = {**prompt, "answer": answer, "match": match}
    if kind == "csv" and (delimiter := _delimiter_of(file)):
        options["delimiter"] = "tab" if delimiter == TAB else delimiter
    return _Found(kind=kind, options=options, why=why, warning=LONG_ANSWERS.format(answer) if is_long else "")


def _prompt(names: Sequence[str]) -> dict[str, str] | None:
    """Return the option that names the prompt, none if a conversation stands for it; None if there is no prompt."""
    if MESSAGES in names and "prompt" not in names:
        return {}
    found = _column("prompt", names)
    return None if found is None else {"prompt": found}


def _column(key: str, names: Sequence[str]) -> str | None:
    """Return the column that the option `key` should name: the task's own name, else a usual one, in any case."""
    by_folded = {name.casefold(): name for name in reversed(names)}
    for wanted in (key, *USUAL_NAMES[key]):
        if (found := by_folded.get(wanted)) is not None and not any(sign in found for sign in ",:="):
            return found
    return None


def _no_column(key: str, kind: str, file: Path, names: Sequence[str]) -> UsageError:
    usual = ", ".join((key, *USUAL_NAMES[key]))
    return UsageError(
        f"--data: {shortened(str(file))} has no column for the {key}. Its columns are {names_text(names)}; it is "
        f"looked for in {usual}. Rename the column, or leave --data out and name it in [task] spec, as in "
        f'"{kind}:{file.name}:prompt=COLUMN,answer=COLUMN".'
    )


def _values(file: DataFile, name: str) -> Iterator[Any]:
    for row in islice(file.rows((name,)), MAX_LOOKED_AT):
        value = row.get(name)
        if value is not MISSING and value is not None:
            yield value


def _match_of(answers: Sequence[str], column: str) -> tuple[str, str]:
    """Return the strictest comparison that fits all answers, and why it was chosen. Raises TaskError."""
    if not answers:
        raise TaskError(f"`{column}` is empty in every row. Write an answer in each row.")
    told = f"`{name_text(column)}`"
    others = [text for text in answers if reference_number(text) is None]
    seen = f"all {len(answers):,} answers" if len(answers) < MAX_LOOKED_AT else f"the first {len(answers):,} answers"
    if not others:
        return "numeric", f"{seen} in {told} are numbers"
    if sum(map(_is_mathematics, answers)) > len(answers) / 2 and all(map(_can_be_compared, answers)):
        return "math", f"{seen} in {told} can be read as mathematics, such as {_shown(others[0])}"
    return "exact", f"answers in {told} are texts, such as {_shown(others[0])}"


def _shown(text: str) -> str:
    return f'"{one_line(text, MAX_NAME_TOLD)}"'


def _is_mathematics(text: str) -> bool:
    marked = answer_in(text, lambda _: True)
    return marked is not None or reference_number(text) is not None or any(mark in text for mark in MARKS)


def _can_be_compared(text: str) -> bool:
    try:
        reference_of(text)
    except ValueError:
        return False
    return True
