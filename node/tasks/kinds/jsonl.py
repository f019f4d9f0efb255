"""Tasks from a file: one JSON object a line with `prompt` (text, or a list of chat messages) and `answer`.

What always holds: an answer that does not end with a stop id within its budget is worth 0; a reference that could
never be answered is refused with its line. Matching is `exact` (but for white space around it), `numeric`
(`node.tasks.answers.numbers`) or `math` (`node.tasks.answers.math_equality`). The file is read, divided and cleaned by
`node.tasks.kinds.problem_files`.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from node.tasks.answers.math_equality import reference_of, require_math_verify, same_mathematics, wording
from node.tasks.answers.numbers import last_number, reference_number
from node.tasks.api.interface import Chat, Completion, Option, Problem, Task, TaskArguments, TaskKind
from node.tasks.kinds.problem_files import FILE_OPTIONS, ProblemFile, PromptRow, prompt_of, read_problems, read_row


class _Row(PromptRow):
    answer: str | int | float


@dataclass(frozen=True, kw_only=True)
class JsonlTask(ProblemFile):
    """A task of the lines of a file; see the module's paragraph. `match` is "exact", "numeric" or "math"."""

    name: str
    match: str
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        return f"jsonl/{self.digest}/{self.match}/{len(self.kept_back)}/{self.trained}"

    @property
    def is_cheap(self) -> bool:
        """Whether it is asked in the node; mathematics may be arbitrarily hard to compare."""
        return self.match != "math"

    def require(self) -> None:
        """Raises TaskError where mathematics cannot be compared."""
        if self.match == "math":
            require_math_verify()

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


def _read_problem(line: bytes, *, match: str, chat: Chat) -> Problem:
    """Raises ValueError that says what is wrong."""
    row = read_row(line, _Row)
    answer = _text(row.answer)
    prompt, template = prompt_of(row, chat)
    if not answer.strip():
        raise ValueError("`answer` is empty")
    if match == "numeric" and reference_number(answer) is None:
        why = "is more than a number" if any(map(str.isdigit, answer)) else "holds no number"
        mark = ", or a mark as #### or \\boxed{} before it"
        raise ValueError(f"`answer` {why}, and match=numeric needs one number{mark}: {answer[:40]!r}")
    if match == "math":
        reference_of(answer)
    return Problem(prompt=prompt, answer=answer, chat=template)


def _text(answer: str | int | float) -> str:
    """A reference as text; a number without an exponent, which no reader of answers needs to know."""
    return format(Decimal(str(answer)), "f") if isinstance(answer, float) else str(answer)


def _right(problem: Problem, match: str) -> object:
    """What is the same for two references exactly where the same answers are right."""
    assert problem.answer is not None, "every line has one"
    match match:
        case "numeric":
            return reference_number(problem.answer)
        case "math":
            return wording(reference_of(problem.answer))
        case _:
            return problem.answer.strip()


def _build_jsonl(arguments: TaskArguments) -> Task:
    match, chat = arguments.text("match"), Chat(arguments.text("chat"))
    fields = read_problems(
        arguments,
        lambda line: _read_problem(line, match=match, chat=chat),
        lambda problem: _right(problem, match),
    )
    return JsonlTask(name="jsonl", match=match, **fields)


JSONL = TaskKind(
    name="jsonl",
    summary='a file of lines {"prompt": ..., "answer": ...}',
    build=_build_jsonl,
    argument="PATH",
    options=(
        Option(key="match", default="exact", help="how the answer is compared", choices=("exact", "numeric", "math")),
        *FILE_OPTIONS,
    ),
)
