"""The problems of a `verifiers` environment, from the rows of its data sets.

A row has a prompt, and whatever else its rollout and its rewards want to know. A row is named by its number and its
side; its other fields stay in the data set.

Invariants:
- Where the environment has a data set for evaluation, that is what is held out. Otherwise a share of the different
  prompts is, those of the lowest digests.
- A prompt that is held out is never trained on, in whichever rows it stands.
- A row whose prompt cannot be asked is refused at the start, with its number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from node.tasks.adapters.verifiers.messages import read_prompt, read_tools
from node.tasks.api.interface import Chat, Problem, TaskError, Tool

MAX_ROWS = 1_000_000
"""Of one data set: each row is read once at the start, in every process that holds the task, some 20,000 a second."""

INFO, TOOLS, OLD_TOOLS, PROMPT = "info", "tool_defs", "oai_tools", "prompt"
"""Fields of a row, and of its `info`."""


@dataclass(frozen=True, kw_only=True)
class RowProblem(Problem):
    """The problem of row `number` of a data set: the one for evaluation, if `is_evaluation`."""

    number: int
    is_evaluation: bool


@dataclass(frozen=True, kw_only=True)
class EnvironmentRows:
    """Rows of an environment's data sets. `train` and `evaluation` are sequences of mappings; the latter is None where
    the environment has none. `training` and `kept_back` are numbers of rows. `digest` is that of all rows."""

    who: str
    train: Any
    evaluation: Any
    training: Sequence[int]
    kept_back: Sequence[int]
    digest: str
    tools: tuple[Tool, ...]

    def row(self, problem: RowProblem) -> Mapping[str, Any]:
        """All fields of a problem's row."""
        found: Mapping[str, Any] = (self.evaluation if problem.is_evaluation else self.train)[problem.number]
        return found

    def problem(self, index: int) -> RowProblem:
        """The training problem of that index."""
        return self._problem(self.training[index % len(self.training)], is_evaluation=False)

    def held_out(self, index: int) -> RowProblem:
        """The held-out problem of that index. Raises TaskError where there is none."""
        if not self.kept_back:
            raise TaskError(
                f"{self.who} holds no row out. It needs a data set for evaluation (eval_dataset), or two different "
                "prompts and held_out above 0."
            )
        number = self.kept_back[index % len(self.kept_back)]
        return self._problem(number, is_evaluation=self.evaluation is not None)

    def _problem(self, number: int, *, is_evaluation: bool) -> RowProblem:
        row = (self.evaluation if is_evaluation else self.train)[number]
        where = _where(self.who, number, is_evaluation)
        prompt = read_prompt(row[PROMPT], where)
        tools = _tools_of(row, where)
        return RowProblem(
            prompt=prompt,
            chat=Chat.NEVER if isinstance(prompt, str) else Chat.ALWAYS,
            tools=self.tools if tools is None else tools,
            number=number,
            is_evaluation=is_evaluation,
        )


def read_rows(who: str, train: Any, evaluation: Any, tools: tuple[Tool, ...], share: float) -> EnvironmentRows:
    """The rows of both data sets, divided. Raises TaskError."""
    digests = [_digests(who, train, is_evaluation=False), _digests(who, evaluation, is_evaluation=True)]
    prompts, kept = ([prompt for prompt, _ in one] for one in digests)
    if evaluation is None:
        held_out = _lowest(set(prompts), share)
        kept_back = [number for number, prompt in enumerate(prompts) if prompt in held_out]
    else:
        held_out, kept_back = set(kept), list(range(len(kept)))
    training = [number for number, prompt in enumerate(prompts) if prompt not in held_out]
    if not training:
        raise TaskError(f"{who} has no row to train on: it has {len(prompts)}, and all their prompts are held out.")
    whole = hashlib.blake2b(digest_size=8)
    for one in digests:
        whole.update(len(one).to_bytes(8))
        for _, row in one:
            whole.update(row)
    return EnvironmentRows(
        who=who,
        train=train,
        evaluation=evaluation,
        training=training,
        kept_back=kept_back,
        digest=whole.hexdigest(),
        tools=tools,
    )


def _lowest(digests: set[bytes], share: float) -> set[bytes]:
    """`share` of them, at least one, but never all; none when `share` is 0."""
    count = 0 if share == 0 else min(max(1, round(share * len(digests))), len(digests) - 1)
    return set(sorted(digests)[: max(count, 0)])


def _digests(who: str, rows: Any, *, is_evaluation: bool) -> list[tuple[bytes, bytes]]:
    """Of each row that of its prompt, and that of all its fields. Raises TaskError."""
    if rows is None:
        return []
    if len(rows) > MAX_ROWS:
        raise TaskError(f"{who} has {len(rows):,} rows, and may have {MAX_ROWS:,}. Select some of them.")
    found = []
    for number, row in enumerate(rows):
        where = _where(who, number, is_evaluation)
        prompt = read_prompt(row.get(PROMPT), where)
        if not isinstance(prompt, str) and prompt[-1].role == "assistant":
            raise TaskError(f"{where} has a prompt that ends with a message of the assistant. Leave that out.")
        _tools_of(row, where)
        told = json.dumps(row, sort_keys=True, default=_told)
        found.append((_digest(repr(prompt)), _digest(told)))
    return found


def _told(value: Any) -> str:
    """What JSON cannot write: days and times; of all else the type, since a text may hold where it lies in memory."""
    return str(value.isoformat()) if hasattr(value, "isoformat") else type(value).__name__


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _where(who: str, number: int, is_evaluation: bool) -> str:
    return f"row {number} of the {'evaluation' if is_evaluation else 'training'} data set of {who}"


def _tools_of(row: Mapping[str, Any], where: str) -> tuple[Tool, ...] | None:
    """The tools that the row names itself; None where it names none."""
    info = row.get(INFO)
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            info = None
    tools = info.get(TOOLS) or info.get(OLD_TOOLS) if isinstance(info, Mapping) else None
    return read_tools(tools, where) if tools else None
