"""Ask for programs: one JSON object per line with a prompt and tests, all of which the policy's program must pass.

By default asserts run in the policy's own process, after its program. They end by printing a random word that nobody
knew before, so a program that exits early passes nothing. But a program that searches its process could find that word,
or return an object that claims to equal anything. With `asserts=apart` the asserts run in a sandbox of their own
(`node.tasks.sandbox.isolated_asserts`), where the program can do neither. Then they can only test plain data.

Invariants:

- A program runs in `node.tasks.sandbox.bubblewrap` or not at all.
- The expected output never enters the sandbox. Each test of input and output runs in a sandbox of its own.
- The reward is 0 unless the completion ends with a stop id, and the program ends in time and with exit code 0.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from node.runtime.user_paths import as_path
from node.tasks.answers.code_blocks import program_of
from node.tasks.api.interface import Chat, Completion, Option, Problem, Task, TaskArguments, TaskKind
from node.tasks.data_files.json_lines import JsonLines
from node.tasks.data_files.rows import Row, names_text
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
from node.tasks.sandbox.bubblewrap import SandboxLimits, require_sandbox, run
from node.tasks.sandbox.isolated_asserts import run_asserts

KEYS = {"prompt": "prompt", "tests": "tests", "asserts": "asserts_field", "answer": "answer"}
"""The options that name the fields of a line. The option `asserts` is another one: it says where asserts run."""

MAX_TESTS = 256
"""Maximum tests of one problem. The sandbox alone takes some 30 ms each, so more would use all of a verifier's time."""


class _Test(msgspec.Struct, kw_only=True):
    """The input of a program, and the output that it must print. White space at the ends of lines and of the text is
    ignored."""

    input: str = ""
    output: str


class _Row(PromptRow, kw_only=True):
    tests: list[_Test] = msgspec.field(default_factory=list)
    asserts: list[str] | str = ""
    answer: str | None = None


@dataclass(frozen=True, kw_only=True)
class CodeProblem(Problem):
    """A problem with tests. `tests`: (input, output). `asserts`: a program that fails if something is wrong, or ""."""

    tests: tuple[tuple[str, str], ...]
    asserts: str


@dataclass(frozen=True, kw_only=True)
class CodeTask(ProblemFile):
    """Problems whose answers are programs.

    `total_s`: seconds for all tests of a completion. `partial`: the reward is the fraction of passed tests. `bare`: a
    completion without a block is a program as a whole. `apart`: asserts run where the program cannot reach them.
    """

    name: str
    limits: SandboxLimits
    total_s: float
    partial: bool
    bare: bool
    apart: bool = False
    python: str = ""
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        how = f"{'share' if self.partial else 'all'}{'/bare' if self.bare else ''}{'/apart' if self.apart else ''}"
        return f"code/{self.digest}/{how}/{len(self.kept_back)}/{self.trained}{self.names}"

    def require(self) -> None:
        """Raise TaskError if programs cannot be run."""
        require_sandbox(self.python, self.limits)

    def in_form(self, problem: Problem, completion: Completion) -> bool:
        """Return whether the completion has a program, which is not compiled."""
        del problem
        return program_of(completion.text, bare=self.bare) is not None

    def reward(self, problem: Problem, completion: Completion) -> float:
        assert isinstance(problem, CodeProblem), "a problem of this task"
        program = program_of(completion.text, bare=self.bare)
        if not completion.finished or program is None:
            return 0.0
        until = time.monotonic() + self.total_s
        total = len(problem.tests) + bool(problem.asserts)
        passed = 0
        for number in range(total):
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            limits = replace(self.limits, time_s=min(self.limits.time_s, left_s))
            if number < len(problem.tests):
                passed += self._prints(program, *problem.tests[number], limits)
            else:
                passed += self._holds(program, problem.asserts, limits)
            if not self.partial and passed <= number:
                return 0.0
        return passed / total if self.partial else float(passed == total)

    def _prints(self, program: str, given: str, wanted: str, limits: SandboxLimits) -> bool:
        ran = run(program, stdin=given.encode(), limits=limits, python=self.python)
        return ran.exit_code == 0 and _lines(ran.output.decode(errors="replace")) == _lines(wanted)

    def _holds(self, program: str, asserts: str, limits: SandboxLimits) -> bool:
        word = secrets.token_hex(16)
        if self.apart:
            ran = run_asserts(program, asserts, word, limits=limits, python=self.python)
        else:
            ran = run(program, tests=f"{asserts}\nprint('\\n{word}')\n", limits=limits, python=self.python)
        return ran.exit_code == 0 and ran.output.decode(errors="replace").rstrip().endswith(word)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _read_problem(line: Row, *, names: Mapping[str, str], chat: Chat) -> CodeProblem:
    """Return the problem in a line. Raises ValueError, which says what is wrong."""
    names = names_in(line, names)
    row = read_row(line, _Row, KEYS, names)
    prompt, template = prompt_of(row, chat, names["prompt"])
    asserts = row.asserts if isinstance(row.asserts, str) else "\n".join(row.asserts)
    if not row.tests and not asserts.strip():
        there = names_text(line.names)
        raise ValueError(f"has neither `{names['tests']}` nor `{names['asserts']}`; its fields are {there}")
    if len(row.tests) > MAX_TESTS:
        raise ValueError(f"has {len(row.tests)} tests; the maximum is {MAX_TESTS}")
    try:
        compile(asserts, "asserts", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: from nested brackets
        raise ValueError(f"`{names['asserts']}` is not Python: {str(error) or 'it is nested too deeply'}") from error
    tests = tuple((test.input, test.output) for test in row.tests)
    return CodeProblem(prompt=prompt, answer=row.answer, chat=template, tests=tests, asserts=asserts)


def _right(problem: Problem) -> object:
    """Return a value that is equal for two lines if, and only if, the same programs are right for both."""
    assert isinstance(problem, CodeProblem), "a problem of this task"
    return problem.tests, problem.asserts


def _build_code(arguments: TaskArguments) -> Task:
    chat = Chat(arguments.text("chat"))
    names = names_of(arguments, KEYS)
    file = JsonLines(arguments.directory / as_path(arguments.argument))
    held_out = None if (path := held_out_path(arguments)) is None else JsonLines(path)
    fields: dict[str, Any] = read_problems(
        arguments, file, held_out, names, lambda line: _read_problem(line, names=names, chat=chat), _right
    )
    return CodeTask(
        name="code",
        limits=SandboxLimits(
            time_s=arguments.number("time_s"),
            memory_mb=arguments.integer("memory_mb"),
            processes=arguments.integer("processes"),
        ),
        total_s=arguments.number("total_s"),
        partial=arguments.text("reward") == "share",
        bare=arguments.text("bare") == "yes",
        apart=arguments.text("asserts") == "apart",
        python=arguments.text("python"),
        **fields,
    )


CODE = TaskKind(
    name="code",
    summary='a file of lines {"prompt": ..., "tests": [{"input", "output"}], "asserts": [...]}; programs in a sandbox',
    build=_build_code,
    argument="PATH",
    options=(
        PROMPT,
        Option(key="tests", default="tests", help="the field with tests of input and output"),
        Option(key="asserts_field", default="asserts", help="the field with asserts"),
        ANSWER,
        Option(key="reward", default="all", help="1 if all tests pass, or passed fraction", choices=("all", "share")),
        Option(key="asserts", default="inside", help="in the program's process, or apart", choices=("inside", "apart")),
        Option(key="time_s", default=5.0, help="seconds for each test", minimum=0.1, maximum=600),
        Option(key="total_s", default=20.0, help="seconds for all tests of a completion", minimum=0.1, maximum=3600),
        Option(key="memory_mb", default=512, help="memory of each process of a program", minimum=64, maximum=65_536),
        Option(key="processes", default=8, help="processes and threads of a program", minimum=1, maximum=256),
        Option(
            key="bare",
            default="no",
            help="yes: a completion without a code block is a program as a whole",
            choices=("no", "yes"),
        ),
        Option(key="python", default="", help="the interpreter; default: /usr/bin/python3"),
        *FILE_OPTIONS,
    ),
)
