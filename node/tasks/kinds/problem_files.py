"""Problems from a file: one JSON object a line, of which a task reads what it needs.

What always holds: a file with a bad line is refused before training starts, naming the line; prompts that occur
several times lie on one side only, training or held out; index i asks training line i % size. What must not be trained
on is left out, counted, by `node.tasks.kinds.decontamination`. Other fields of a line are ignored, so that data sets
can be used as they are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_line, without_mark
from node.runtime.user_paths import as_path
from node.tasks.api.interface import Chat, ChatMessage, Option, Problem, TaskArguments, TaskError
from node.tasks.api.options import CHAT
from node.tasks.kinds.decontamination import Excluded, describe_counts, read_date, read_excluded

ROLES = frozenset({"system", "user", "assistant"})

MAX_LINE_BYTES = 16 * 1024 * 1024
"""No prompt that fits into a lease needs more; a file without line ends is noticed before it fills the memory twice."""

TOLD_PAIRS = 3
"""Of lines that contradict each other: enough to find out why."""

R = TypeVar("R")


class Message(msgspec.Struct):
    """One message of a `prompt` that is a list of them."""

    role: str
    content: str


class PromptRow(msgspec.Struct, kw_only=True):
    """What every line has."""

    prompt: str | list[Message]


@dataclass(frozen=True, kw_only=True)
class ProblemFile:
    """The problems of a file, on both sides; see the module's paragraph.

    `digest` is that of the file's bytes, `trained` that of the prompts that are trained on, in order. `left_out` says,
    in words, how many lines are neither and why; `contradictions`, which lines ask the same and want other answers.
    """

    path: Path
    digest: str
    trained: str
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
        """Raises TaskError when there is none."""
        if not self.kept_back:
            raise TaskError(
                f"{self.path}: no line is held out; it needs two different prompts, and held_out above 0, or "
                "lines dated held_out_from or later"
            )
        return self.kept_back[index % len(self.kept_back)]


def _read_lines(path: Path) -> list[tuple[int, bytes]]:
    """(number from 1, content) of the lines that are not blank."""
    try:
        data = read_file(path)
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}. Name a JSON Lines file.") from error
    # A mark can stand at the beginning of any line: files are made by joining others.
    lines = [(number, without_mark(line)) for number, line in enumerate(data.split(b"\n"), start=1)]
    lines = [(number, line) for number, line in lines if line.strip()]
    if not lines:
        raise TaskError(f'{path}: holds no lines. Write one object a line: {{"prompt": "...", ...}}.')
    return lines


def read_row(line: bytes, kind: type[R]) -> R:
    """A line as an object with the fields of `kind`. Raises ValueError that says what is wrong."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
    return parse_line(line, kind)


def prompt_of(row: PromptRow, chat: Chat) -> tuple[str | tuple[ChatMessage, ...], Chat]:
    """The prompt of a line, and its use of a chat template. Raises ValueError."""
    if not row.prompt:
        raise ValueError("`prompt` is empty")
    if isinstance(row.prompt, str):
        return row.prompt, chat
    return tuple(map(_message, row.prompt)), Chat.ALWAYS


def _message(message: Message) -> ChatMessage:
    if message.role not in ROLES:
        raise ValueError(f"`prompt` has a message of role {message.role!r}; roles are {', '.join(sorted(ROLES))}")
    return ChatMessage(role=message.role, content=message.content)


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One line: its problem, and what else its fields say of it."""

    number: int
    problem: Problem
    day: date | None = None
    pass_rate: float = math.nan


@dataclass(frozen=True, kw_only=True)
class _Rules:
    """What decides on which side a line lies: the options of a spec, read."""

    share: float
    before: date | None
    held_out_from: date | None
    excluded: Excluded | None


def split_lines(lines: Sequence[_Line], rules: _Rules) -> tuple[list[_Line], list[_Line], list[str]]:
    """(training, held out, why each of the others is neither).

    By date where `held_out_from` is given, else `share` of the different prompts, at least one, those of the lowest
    digests. A prompt that is held out is never trained on, whatever other copies of it are dated; nothing that is
    excluded, or not dated before `before`, is.
    """
    digests = [_prompt_digest(line.problem) for line in lines]
    reasons = [_why_not(line, rules) for line in lines]
    held_out = {digest for digest, line in zip(digests, lines, strict=True) if _is_late(line, rules.held_out_from)}
    if rules.held_out_from is None:
        held_out = _lowest({digest for digest, why in zip(digests, reasons, strict=True) if not why}, rules.share)
    training, kept_back, left_out = [], [], []
    for digest, line, why_not in zip(digests, lines, reasons, strict=True):
        if digest in held_out and (rules.held_out_from is None or _is_late(line, rules.held_out_from)):
            kept_back.append(line)
        elif digest in held_out:
            left_out.append("that are held out under a later date")
        elif why_not:
            left_out.append(why_not)
        else:
            training.append(line)
    return training, kept_back, left_out


def _lowest(digests: set[bytes], share: float) -> set[bytes]:
    """`share` of them, at least one, but never all; none when `share` is 0."""
    count = 0 if share == 0 else min(max(1, round(share * len(digests))), len(digests) - 1)
    return set(sorted(digests)[: max(count, 0)])


def _is_late(line: _Line, first: date | None) -> bool:
    return first is not None and line.day is not None and line.day >= first


def _why_not(line: _Line, rules: _Rules) -> str:
    """Why a line must not be trained on; "" when it may."""
    if _is_late(line, rules.before):
        return f"dated {rules.before} or later"
    if rules.excluded is not None and line.problem.prompt in rules.excluded:
        return f"in {rules.excluded.path.name}"
    return ""


def _prompt_digest(problem: Problem) -> bytes:
    return hashlib.blake2b(repr(problem.prompt).encode(), digest_size=16).digest()


def contradictions(lines: Sequence[_Line], right: Callable[[Problem], object]) -> str:
    """Which prompts stand on several lines that want different answers, in a sentence; "" where none does."""
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
        f"lines that ask the same want different answers (lines {', '.join(pairs[:TOLD_PAIRS])}{more}): what one line "
        "rewards, the other does not. Leave one line of each"
    )


ReadProblem = Callable[[bytes], Problem]
"""The problem of a line. Raises ValueError that says what is wrong with it."""


def read_problems(arguments: TaskArguments, read: ReadProblem, right: Callable[[Problem], object]) -> dict[str, Any]:
    """The fields of the `ProblemFile` that `arguments` names, with FILE_OPTIONS among its options. Raises TaskError.

    `right` of two problems is equal exactly where the same answers are right.
    """
    path = arguments.directory / as_path(arguments.argument)
    rules = _read_rules(arguments)
    lines: list[_Line] = []
    digest = hashlib.blake2b(digest_size=16)
    for number, raw in _read_lines(path):
        try:
            lines.append(_read_line(number, raw, read(raw), arguments, dated=bool(rules.before or rules.held_out_from)))
        except ValueError as error:
            raise TaskError(f"{path}:{number}: {error}. Correct the line, or remove it.") from error
        digest.update(raw + b"\n")
    training, kept_back, left_out = split_lines(lines, rules)
    if not training:
        reasons = describe_counts(left_out) or "all, held out"
        raise TaskError(f"{path}: no line is left to train on; left out: {reasons}.")
    rates = tuple(line.pass_rate for line in training)
    if (key := arguments.text("pass_rate")) and all(map(math.isnan, rates)):
        raise TaskError(f"{path}: no line to train on has the field {key!r} that pass_rate= names.")
    return {
        "path": path,
        "digest": digest.hexdigest(),
        "trained": hashlib.blake2b(
            b"".join(_prompt_digest(one.problem) for one in training), digest_size=8
        ).hexdigest(),
        "training": tuple(line.problem for line in training),
        "kept_back": tuple(line.problem for line in kept_back),
        "pass_rates": rates if key else None,
        "left_out": describe_counts(left_out),
        "contradictions": contradictions(lines, right),
    }


def _read_rules(arguments: TaskArguments) -> _Rules:
    """Raises TaskError."""
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


def _read_line(number: int, raw: bytes, problem: Problem, arguments: TaskArguments, *, dated: bool) -> _Line:
    """What else the line of a problem says. Raises ValueError that says what is wrong."""
    key, day, rate = arguments.text("pass_rate"), None, math.nan
    if dated:
        name = arguments.text("date")
        value = _field(raw, name)
        if value is None:
            raise ValueError(f"`{name}` is missing, and before= and held_out_from= go by it")
        day = read_date(value)
    if key and (value := _field(raw, key)) is not None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"`{key}` is {str(value)[:40]}, and a pass rate is a number from 0 to 1")
        rate = float(value)
    return _Line(number=number, problem=problem, day=day, pass_rate=rate)


def _field(raw: bytes, name: str) -> Any:
    found = parse_line(raw, dict[str, msgspec.Raw]).get(name)
    return None if found is None else parse_line(bytes(found), object)


FILE_OPTIONS = (
    CHAT,
    Option(key="held_out", default=0.1, help="share of the prompts that is held out", minimum=0, maximum=0.9),
    Option(key="date", default="date", help="the field that dates a line"),
    Option(key="before", default="", help="train only on lines dated before this day"),
    Option(key="held_out_from", default="", help="hold out the lines dated from this day on, and no others"),
    Option(key="exclude", default="", help="a file of texts, or of their hashes, that are not trained on"),
    Option(key="ngram", default=0, help="words in a row that make a text an excluded one", minimum=0, maximum=100),
    Option(key="pass_rate", default="", help="a field with a pass rate that was measured before, 0 to 1"),
)
"""What every task of a file takes."""
