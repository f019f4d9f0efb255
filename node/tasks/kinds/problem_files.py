"""Read problems from a data file: the fields that a task needs, under the names that the spec says.

The rows come from `node.tasks.data_files`, so all formats have the same options. `node.tasks.kinds.decontamination`
finds the rows that must not be trained on; these are left out and counted.

Invariants:

- A file with a wrong row is an error before training starts, with the number of the row.
- A prompt that occurs several times is on one side only, training or held out.
- Index i names training row i % size.
- Other fields of a row are ignored, so data sets can be used as they are.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from node.runtime.user_paths import as_path
from node.tasks.api.interface import Chat, ChatMessage, Option, Problem, TaskArguments, TaskError
from node.tasks.api.options import CHAT
from node.tasks.data_files.rows import MISSING, BadRow, DataFile, Row, names_text
from node.tasks.kinds.decontamination import Excluded, describe_counts, read_date, read_excluded
from protocol.core.codec import ready

ROLES = frozenset({"system", "user", "assistant"})

PROMPT_KEY = "prompt"

MESSAGES = "messages"
"""The field of a conversation in rows without a `prompt`, unless the spec names the field of the prompt."""

TOLD_PAIRS = 3
"""Contradicting pairs of rows to list, enough to find out why."""

R = TypeVar("R")


class Message(msgspec.Struct):
    """One message of a `prompt` that is a list of messages."""

    role: str
    content: str


class PromptRow(msgspec.Struct, kw_only=True):
    """The fields that every row has."""

    prompt: str | list[Message]


@dataclass(frozen=True, kw_only=True)
class ProblemFile:
    """The problems of a file, on both sides.

    `unit`: the word for a row. `digest`: of the file's bytes. `trained`: digest of the training prompts, in order.
    `names`: the fields for which the spec names another name than the task's own. `left_out`: how many rows are on
    neither side, and why, in words. `contradictions`: which rows have the same prompt and different answers.
    """

    path: Path
    unit: str
    digest: str
    trained: str
    names: str
    training: tuple[Problem, ...]
    kept_back: tuple[Problem, ...]
    pass_rates: tuple[float, ...] | None = None
    left_out: str = ""
    contradictions: str = ""

    @property
    def num_held_out(self) -> int:
        return len(self.kept_back)

    @property
    def notes(self) -> tuple[str, ...]:
        left_out = f"; left out: {self.left_out}" if self.left_out else ""
        counts = f"{self.path}: {self.size} problems to train on, {len(self.kept_back)} held out{left_out}"
        return (counts, f"{self.path}: {self.contradictions}") if self.contradictions else (counts,)

    @property
    def size(self) -> int:
        return len(self.training)

    def problem(self, index: int) -> Problem:
        return self.training[index % self.size]

    def held_out(self, index: int) -> Problem:
        """Return the held-out problem of that index. Raises TaskError if there is none."""
        if not self.kept_back:
            raise TaskError(
                f"{self.path}: no {self.unit} is held out; it needs two different prompts, and held_out above 0, or "
                f"{self.unit}s dated held_out_from or later"
            )
        return self.kept_back[index % len(self.kept_back)]


def names_of(arguments: TaskArguments, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the names of a task's fields in the file. `keys`: the options that name them.

    Raises TaskError.
    """
    names = {field: arguments.text(key) for field, key in keys.items()}
    if empty := next((key for field, key in keys.items() if not names[field]), ""):
        raise TaskError(f"{empty}= names no field. Name one, or leave it out.")
    return names


def names_in(row: Row, names: Mapping[str, str]) -> Mapping[str, str]:
    """Return `names` for a row, whose prompt may be the field `messages`, as is usual for conversations."""
    is_elsewhere = names[PROMPT_KEY] == PROMPT_KEY and PROMPT_KEY not in row.names and MESSAGES in row.names
    return {**names, PROMPT_KEY: MESSAGES} if is_elsewhere else names


def read_row(row: Row, kind: type[R], keys: Mapping[str, str], names: Mapping[str, str]) -> R:
    """Return a row as an object of `kind`. Its field `f` is called `names[f]` in the file, set by the option `keys[f]`.

    Raises ValueError, which says what is wrong.
    """
    needed = _required(kind)  # type: ignore[arg-type]  # a TypeVar, which is hashable
    found = {f: row.require(name, keys[f]) if f in needed else row.get(name) for f, name in names.items()}
    values = {field: value for field, value in found.items() if value is not MISSING}
    try:
        return msgspec.convert(values, ready(kind))
    except msgspec.ValidationError as error:
        said = _in_words(str(error), names)
        for field, value in values.items():
            if isinstance(value, Mapping) and f"`{names[field]}`" in said and value:
                inside = f"{names[field]}.{next(iter(value))}"
                raise BadRow(said, f"Name a field inside it, as in {keys[field]}={inside}") from None
        raise ValueError(said) from None


@cache
def _required(kind: Any) -> frozenset[str]:
    """Return the fields that a row of that kind must have."""
    return frozenset(one.name for one in msgspec.structs.fields(kind) if one.required)


_TYPE = re.compile(r"Expected `([^`]+)`, got `([^`]+)`(?: - at `\$\.([^`]+)`)?")

_WORDS = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "array": "a list",
    "object": "an object",
    "bool": "true or false",
}


def _in_words(message: str, names: Mapping[str, str]) -> str:
    """Return msgspec's message in our words, with the file's field names. msgspec's paths begin with the task's."""
    message = re.sub(r"`\$\.(\w+)", lambda found: f"`$.{names.get(found[1], found[1])}", message)
    if found := _TYPE.fullmatch(message):
        wanted = dict.fromkeys(_WORDS.get(one, one) for one in found[1].split(" | ") if one != "null")
        got = _WORDS.get(found[2], found[2])
        return f"has {got} in field `{found[3]}`, where {' or '.join(wanted)} belongs"
    return message.replace(" - at `$.", " - in field `")


def prompt_of(row: PromptRow, chat: Chat, name: str = PROMPT_KEY) -> tuple[str | tuple[ChatMessage, ...], Chat]:
    """Return the prompt of a row, and its use of a chat template. `name`: its field in the file. Raises ValueError."""
    if not row.prompt:
        raise ValueError(f"`{name}` is empty")
    if isinstance(row.prompt, str):
        return row.prompt, chat
    if row.prompt[-1].role == "assistant":
        fix = "Leave its last message out, because the policy would read the answer in the prompt"
        raise BadRow(f"`{name}` ends with a message of the assistant", fix)
    return tuple(map(_message, row.prompt)), Chat.ALWAYS


def _message(message: Message) -> ChatMessage:
    if message.role not in ROLES:
        raise ValueError(f"the prompt has a message of role {message.role!r}; roles are {', '.join(sorted(ROLES))}")
    return ChatMessage(role=message.role, content=message.content)


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One row: its problem, and what its other fields say."""

    number: int
    problem: Problem
    day: date | None = None
    pass_rate: float = math.nan
    is_apart: bool = False
    """It is in a file of its own that is held out as a whole."""


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """The options that decide on which side a row is."""

    share: float
    """Fraction of the different prompts to hold out, unless dates or a file of its own decide that."""
    before: date | None
    held_out_from: date | None
    excluded: Excluded | None


def split_lines(lines: Sequence[_Line], rules: _Rules) -> tuple[list[_Line], list[_Line], list[str]]:
    """Return (training, held out, why each of the other rows is on neither side).

    Rows of a held-out file are held out. Otherwise rows dated `held_out_from` or later are, if that is given, or else
    `share` of the different prompts: at least one, those with the lowest digests. A held-out prompt is never trained
    on, whatever the date or file of its other copies. Neither is a row that is excluded or not dated before `before`.
    """
    digests = [_prompt_digest(line.problem) for line in lines]
    reasons = [_why_not(line, rules) for line in lines]
    is_named = any(line.is_apart for line in lines)
    chosen = [line.is_apart or _is_late(line, rules.held_out_from) for line in lines]
    held_out = {digest for digest, is_chosen in zip(digests, chosen, strict=True) if is_chosen}
    if not is_named and rules.held_out_from is None:
        held_out = _lowest({digest for digest, why in zip(digests, reasons, strict=True) if not why}, rules.share)
        chosen = [True] * len(lines)
    training, kept_back, left_out = [], [], []
    for digest, line, is_chosen, why_not in zip(digests, lines, chosen, reasons, strict=True):
        if digest in held_out and is_chosen:
            kept_back.append(line)
        elif digest in held_out:
            left_out.append("whose prompts are held out" if is_named else "that are held out under a later date")
        elif why_not:
            left_out.append(why_not)
        else:
            training.append(line)
    return training, kept_back, left_out


def _lowest(digests: set[bytes], share: float) -> set[bytes]:
    """Return `share` of the digests, at least one but never all; none if `share` is 0."""
    count = 0 if share == 0 else min(max(1, round(share * len(digests))), len(digests) - 1)
    return set(sorted(digests)[: max(count, 0)])


def _is_late(line: _Line, first: date | None) -> bool:
    return first is not None and line.day is not None and line.day >= first


def _why_not(line: _Line, rules: _Rules) -> str:
    """Return why a row must not be trained on; "" if it may."""
    if _is_late(line, rules.before):
        return f"dated {rules.before} or later"
    if rules.excluded is not None and line.problem.prompt in rules.excluded:
        return f"in {rules.excluded.path.name}"
    return ""


def _prompt_digest(problem: Problem) -> bytes:
    return hashlib.blake2b(repr(problem.prompt).encode(), digest_size=16).digest()


def contradictions(lines: Sequence[_Line], right: Callable[[Problem], object], unit: str) -> str:
    """Return a sentence about the rows that have the same prompt and different answers; "" if there are none."""
    first: dict[bytes, _Line] = {}
    others: dict[bytes, int] = {}
    for line in lines:
        digest = _prompt_digest(line.problem)
        before = first.setdefault(digest, line)
        if before is not line and digest not in others and right(before.problem) != right(line.problem):
            others[digest] = line.number
    if not others:
        return ""
    pairs = [f"{first[digest].number} and {number}" for digest, number in others.items()]
    more = f", ..., {len(pairs):,} pairs in all" if len(pairs) > TOLD_PAIRS else ""
    return (
        f"{unit}s that ask the same want different answers ({unit}s {', '.join(pairs[:TOLD_PAIRS])}{more}): what one "
        f"{unit} rewards, the other does not. Leave one {unit} of each"
    )


ReadProblem = Callable[[Row], Problem]
"""Returns the problem of a row. Raises ValueError, which says what is wrong with it."""


def read_problems(
    arguments: TaskArguments,
    file: DataFile,
    held_out: DataFile | None,
    names: Mapping[str, str],
    read: ReadProblem,
    right: Callable[[Problem], object],
) -> dict[str, Any]:
    """Return the fields of the `ProblemFile` of `file`. Raises TaskError.

    Args:
        arguments: the parsed spec, with FILE_OPTIONS among its options.
        file: the data file.
        held_out: a file that is held out as a whole, or None.
        names: the names in the file of the fields that `read` needs.
        read: returns the problem of a row.
        right: returns a value that is equal for two problems if, and only if, the same answers are right for both.
    """
    rules = _read_rules(arguments)
    if held_out is not None and rules.held_out_from is not None:
        raise TaskError("held_out_from= and a held-out file or split both say what is held out: leave one of them out.")
    lines = _read_lines(file, arguments, names, read, dated=bool(rules.before or rules.held_out_from))
    apart: list[_Line] = []
    if held_out is not None:
        apart = [replace(line, is_apart=True) for line in _read_lines(held_out, arguments, names, read, dated=False)]
    training, kept_back, left_out = split_lines([*lines, *apart], rules)
    if not training:
        reasons = describe_counts(left_out) or "all, held out"
        raise TaskError(f"{file.path}: no {file.unit} is left to train on; left out: {reasons}.")
    rates = tuple(line.pass_rate for line in training)
    if (key := arguments.text("pass_rate")) and all(map(math.isnan, rates)):
        raise TaskError(f"{file.path}: no {file.unit} to train on has the field {key!r} that pass_rate= names.")
    return {
        "path": file.path,
        "unit": file.unit,
        "digest": "+".join(one.digest.hexdigest() for one in (file, held_out) if one is not None),
        "trained": hashlib.blake2b(
            b"".join(_prompt_digest(one.problem) for one in training), digest_size=8
        ).hexdigest(),
        "names": "".join(f"/{field}={name}" for field, name in names.items() if field != name),
        "training": tuple(line.problem for line in training),
        "kept_back": tuple(line.problem for line in kept_back),
        "pass_rates": rates if key else None,
        "left_out": describe_counts(left_out),
        "contradictions": contradictions(lines, right, file.unit),
    }


def _read_lines(
    file: DataFile, arguments: TaskArguments, names: Mapping[str, str], read: ReadProblem, *, dated: bool
) -> list[_Line]:
    """Return the rows of a file. Raises TaskError."""
    lines: list[_Line] = []
    unseen = {name for field, name in names.items() if name != field}
    for row in file.rows(_wanted(arguments, names, dated=dated)):
        try:
            lines.append(_read_line(row, read(row), arguments, dated=dated))
        except ValueError as error:
            raise file.reject(row.number, error) from error
        unseen = {name for name in unseen if row.get(name) is MISSING}
    if unseen:
        raise TaskError(f"{file.path}: no {file.unit} has the field `{min(unseen)}`, which the spec names. Correct it.")
    return lines


def held_out_path(arguments: TaskArguments) -> Path | None:
    """Return the file that `held_out_file` names, or None if it names none."""
    name = arguments.text("held_out_file")
    return arguments.directory / as_path(name) if name else None


def _wanted(arguments: TaskArguments, names: Mapping[str, str], *, dated: bool) -> list[str]:
    """Return the names of the fields to read."""
    others: list[str] = [arguments.text("pass_rate"), arguments.text("date") if dated else ""]
    if names.get(PROMPT_KEY) == PROMPT_KEY:
        others.append(MESSAGES)
    return [*names.values(), *filter(None, others)]


def _read_rules(arguments: TaskArguments) -> _Rules:
    """Return the rules that the options say. Raises TaskError."""
    days: dict[str, date | None] = {}
    for key in ("before", "held_out_from"):
        try:
            days[key] = read_date(arguments.text(key)) if arguments.text(key) else None
        except ValueError as error:
            raise TaskError(f"{key}={arguments.text(key)}: {error}") from error
    excluded, name = None, arguments.text("exclude")
    if name:
        excluded = read_excluded(arguments.directory / as_path(name), arguments.integer("ngram"))
    return _Rules(share=arguments.number("held_out"), excluded=excluded, **days)


def _read_line(row: Row, problem: Problem, arguments: TaskArguments, *, dated: bool) -> _Line:
    """Return the row of a problem with its other fields. Raises ValueError, which says what is wrong."""
    key, day, rate = arguments.text("pass_rate"), None, math.nan
    if dated:
        value = row.get(name := arguments.text("date"))
        if value is MISSING or value is None:
            fix = "Name the field that dates a row, as in date=FIELD, or leave the row out"
            there = names_text(row.names)
            raise BadRow(f"`{name}` is missing, but before= and held_out_from= need it; its fields are {there}", fix)
        day = read_date(value)
    if key and (value := row.get(key)) is not MISSING and value is not None:
        rate = _rate(value, key)
    return _Line(number=row.number, problem=problem, day=day, pass_rate=rate)


def _rate(value: Any, key: str) -> float:
    """Return a pass rate. It is a text if all cells of a file are text. Raises ValueError."""
    try:
        rate = math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        rate = math.nan
    if not 0 <= rate <= 1:
        raise ValueError(f"`{key}` is {str(value)[:40]}, but a pass rate is a number from 0 to 1")
    return rate


PROMPT = Option(key="prompt", default=PROMPT_KEY, help="the field with the prompt; a.b is b inside a")
ANSWER = Option(key="answer", default="answer", help="the field with the reference answer")

FILE_OPTIONS = (
    CHAT,
    Option(key="held_out", default=0.1, help="fraction of the prompts to hold out", minimum=0, maximum=0.9),
    Option(key="date", default="date", help="the field that dates a row"),
    Option(key="before", default="", help="train only on rows dated before this day"),
    Option(key="held_out_file", default="", help="a file of the same format to hold out, and nothing else"),
    Option(key="held_out_from", default="", help="hold out the rows dated from this day on, and no others"),
    Option(key="exclude", default="", help="a file of texts, or of their hashes, that must not be trained on"),
    Option(key="ngram", default=0, help="words in sequence that exclude; 0: whole text", minimum=0, maximum=100),
    Option(key="pass_rate", default="", help="the field with a pass rate measured before, 0 to 1"),
)
"""The options of every task of a file, besides the names of its fields."""
