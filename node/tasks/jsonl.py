"""Tasks from a file: one JSON object a line with `prompt` (text, or a list of chat messages) and `answer`.

What always holds: a file with a bad line is refused before training starts, naming the line; prompts that occur
several times lie on one side only, training or held out; index i asks training line i % size. Matching is
`exact` (but for white space around it) or `numeric`: the value after "####" or in \\boxed{}, else the last number,
whatever its formatting. Other fields of a line are ignored, so that data sets can be used as they are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import msgspec

from node.tasks.port import Chat, ChatMessage, Completion, Option, Problem, Task, TaskArguments, TaskError, TaskKind

ROLES = frozenset({"system", "user", "assistant"})

MAX_LINE_BYTES = 16 * 1024 * 1024
"""No prompt that fits into a lease needs more; a file without line ends is noticed before it fills the memory twice."""

MAX_NUMERAL_CHARS = 64
MAX_EXPONENT = 99
"""Larger numerals are no answers: 1e999999999 as an exact fraction would take all memory, and strangers write them."""


class _Message(msgspec.Struct):
    role: str
    content: str


class _Row(msgspec.Struct):
    prompt: str | list[_Message]
    answer: str | int | float


# --- numbers in text --------------------------------------------------------------------------------------------------

_FRACTION = re.compile(r"(?<!\d)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
_MARKED = re.compile(r"####\s*([^\n]{1,256})|\\boxed\{([^{}\n]{1,256})\}")
_NUMERAL = re.compile(
    r"""
    (?: (?<![\w.)]) [-+] )?                                # a sign, but not the minus of "5-3"
    \$?                                                    # "$5" and "-$5"; in "$-5" it stands outside
    (?: (?: \d{1,3}(?:,\d{3})+(?!\d) | \d+ ) (?:\.\d+)?    # 1,234.5 and 1234.5
      | \.\d+ )                                            # .5
    (?: [eE][-+]?\d+ )?
    (?: /\d+ )?
    """,
    re.VERBOSE | re.ASCII,
)


def last_number(text: str) -> Fraction | None:
    """The value a text gives as its answer, exactly; None when it holds no readable number."""
    plain = _FRACTION.sub(r"\1/\2", text.replace("\N{MINUS SIGN}", "-"))
    marked = _MARKED.findall(plain)
    if marked:
        plain = marked[-1][0] or marked[-1][1]
    numerals = _NUMERAL.findall(plain)
    return _value(numerals[-1]) if numerals else None


def _value(numeral: str) -> Fraction | None:
    cleaned = re.sub(r"[,$]", "", numeral)
    exponent = re.search(r"[eE][-+]?(\d+)", cleaned)
    if len(cleaned) > MAX_NUMERAL_CHARS or (exponent and int(exponent[1]) > MAX_EXPONENT):
        return None
    above, _, below = cleaned.partition("/")
    try:
        return Fraction(above) / Fraction(below or "1")
    except ZeroDivisionError:
        return None


# --- the task ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JsonlTask:
    """A task of the lines of a file; see the module's paragraph. `digest` is that of the file's bytes."""

    name: str
    path: Path
    numeric: bool
    digest: str
    training: tuple[Problem, ...]
    kept_back: tuple[Problem, ...]
    pass_rates: tuple[float, ...] | None = None
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        how = "numeric" if self.numeric else "exact"
        return f"jsonl/{self.digest}/{how}/{len(self.kept_back)}/{self.size}"

    @property
    def size(self) -> int:
        return len(self.training)

    def problem(self, index: int) -> Problem:
        return self.training[index % self.size]

    def held_out(self, index: int) -> Problem:
        if not self.kept_back:
            raise TaskError(f"{self.path}: no line is held out; it needs two different prompts, and held_out above 0")
        return self.kept_back[index % len(self.kept_back)]

    def reward(self, problem: Problem, completion: Completion) -> float:
        if not completion.finished or problem.answer is None:
            return 0.0
        if self.numeric:
            value = last_number(completion.text)
            return float(value is not None and value == last_number(problem.answer))
        return float(completion.text.strip() == problem.answer.strip())


def _read_lines(path: Path) -> list[tuple[int, bytes]]:
    """(number from 1, content) of the lines that are not blank."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror}. Name a JSON Lines file as jsonl:PATH.") from error
    lines = [(number, line) for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
    if not lines:
        raise TaskError(f'{path}: holds no lines. Write one object a line: {{"prompt": "...", "answer": "..."}}')
    return lines


def _read_row(line: bytes) -> _Row:
    """Raises ValueError that says what is wrong."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"longer than {MAX_LINE_BYTES} bytes")
    try:
        return msgspec.json.decode(line, type=_Row)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    except msgspec.ValidationError as error:
        raise ValueError(_plain(str(error))) from error
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from error


def _plain(message: str) -> str:
    """msgspec's words without its names of types: `$` is the line itself."""
    return message.replace("`object`", "an object").replace(" - at `$.", " - in field `")


def _read_problem(line: bytes, *, numeric: bool, chat: Chat) -> Problem:
    """Raises ValueError that says what is wrong."""
    row = _read_row(line)
    answer = str(row.answer)
    if not row.prompt:
        raise ValueError("`prompt` is empty")
    if not answer.strip():
        raise ValueError("`answer` is empty")
    if numeric and last_number(answer) is None:
        raise ValueError(f"`answer` holds no number, and match=numeric needs one: {answer[:40]!r}")
    if isinstance(row.prompt, str):
        return Problem(prompt=row.prompt, answer=answer, chat=chat)
    return Problem(prompt=tuple(map(_message, row.prompt)), answer=answer, chat=Chat.ALWAYS)


def _message(message: _Message) -> ChatMessage:
    if message.role not in ROLES:
        raise ValueError(f"`prompt` has a message of role {message.role!r}; roles are {', '.join(sorted(ROLES))}")
    return ChatMessage(role=message.role, content=message.content)


def _prompt_digest(problem: Problem) -> bytes:
    return hashlib.blake2b(repr(problem.prompt).encode(), digest_size=16).digest()


def split_problems(problems: Sequence[Problem], share: float) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """(training, held out): `share` of the different prompts, at least one, is held out: those of the lowest digests.

    Nothing is held out when `share` is 0 or all prompts are the same; training never becomes empty.
    """
    digests = [_prompt_digest(problem) for problem in problems]
    different = sorted(set(digests))
    count = 0 if share == 0 else min(max(1, round(share * len(different))), len(different) - 1)
    held_out = set(different[:count])
    training = tuple(p for p, digest in zip(problems, digests, strict=True) if digest not in held_out)
    return training, tuple(p for p, digest in zip(problems, digests, strict=True) if digest in held_out)


def _build_jsonl(arguments: TaskArguments) -> Task:
    path = arguments.directory / Path(arguments.argument).expanduser()
    numeric, chat = arguments.text("match") == "numeric", Chat(arguments.text("chat"))
    problems: list[Problem] = []
    digest = hashlib.blake2b(digest_size=16)
    for number, line in _read_lines(path):
        try:
            problems.append(_read_problem(line, numeric=numeric, chat=chat))
        except ValueError as error:
            raise TaskError(f"{path}:{number}: {error}. Correct the line, or remove it.") from error
        digest.update(line + b"\n")
    training, kept_back = split_problems(problems, arguments.number("held_out"))
    return JsonlTask(
        name="jsonl",
        path=path,
        numeric=numeric,
        digest=digest.hexdigest(),
        training=training,
        kept_back=kept_back,
    )


JSONL = TaskKind(
    name="jsonl",
    summary='a file of lines {"prompt": ..., "answer": ...}',
    build=_build_jsonl,
    argument="PATH",
    options=(
        Option(key="match", default="exact", help="how the answer is compared", choices=("exact", "numeric")),
        Option(
            key="chat", default="auto", help="use of the model's chat template", choices=tuple(c.value for c in Chat)
        ),
        Option(key="held_out", default=0.1, help="share of the prompts that is held out", minimum=0, maximum=0.9),
    ),
)
