"""Make problems from the rows of the data sets of a `verifiers` environment.

A row has a prompt, and what else its rollout and its rewards need. A problem names its row by number and data set; the
other fields stay in the data set.

Invariants:

- If the environment has a data set for evaluation, that is held out. Otherwise a fraction of the different prompts is
  held out: those with the lowest digests.
- A held-out prompt is never trained on, whichever rows contain it.
- A row whose prompt cannot be used is an error at the start, with its number.
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
"""Maximum rows of one data set. Every process that holds the task reads each row at the start, some 20,000 a second."""

INFO, TOOLS, OLD_TOOLS, PROMPT = "info", "tool_defs", "oai_tools", "prompt"
"""Fields of a row, and of its `info`."""


@dataclass(frozen=True, kw_only=True)
class RowProblem(Problem):
    """The problem in row `number` of a data set: that for evaluation if `is_evaluation`, else that for training."""

    number: int
    is_evaluation: bool


@dataclass(frozen=True, kw_only=True)
class EnvironmentRows:
    """Rows of an environment's data sets. `train`, `evaluation`: sequences of mappings; `evaluation` is None if the
    environment has none. `training`, `kept_back`: numbers of rows. `digest`: of all rows."""

    who: str
    train: Any
    evaluation: Any
    training: Sequence[int]
    kept_back: Sequence[int]
    digest: str
    tools: tuple[Tool, ...]

    def row(self, problem: RowProblem) -> Mapping[str, Any]:
        """Return all fields of a problem's row."""
        found: Mapping[str, Any] = (self.evaluation if problem.is_evaluation else self.train)[problem.number]
        return found

    def problem(self, index: int) -> RowProblem:
        """Return the training problem of that index."""
        return self._problem(self.training[index % len(self.training)], is_evaluation=False)

    def held_out(self, index: int) -> RowProblem:
        """Return the held-out problem of that index. Raises TaskError if there is none."""
        if not self.kept_back:
            raise TaskError(
                f"{self.who} has no held-out rows. It needs a data set for evaluation (eval_dataset), or two different "
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
    """Return the rows of both data sets, divided into training and held out. Raises TaskError."""
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
    """Return `share` of the digests, at least one but never all; none if `share` is 0."""
    count = 0 if share == 0 else min(max(1, round(share * len(digests))), len(digests) - 1)
    return set(sorted(digests)[: max(count, 0)])


def _digests(who: str, rows: Any, *, is_evaluation: bool) -> list[tuple[bytes, bytes]]:
    """Return for each row the digests of its prompt and of all its fields. Raises TaskError."""
    if rows is None:
        return []
    if len(rows) > MAX_ROWS:
        raise TaskError(f"{who} has {len(rows):,} rows; the maximum is {MAX_ROWS:,}. Select some of them.")
    found = []
    for number, row in enumerate(rows):
        where = _where(who, number, is_evaluation)
        prompt = read_prompt(row.get(PROMPT), where)
        if not isinstance(prompt, str) and prompt[-1].role == "assistant":
            raise TaskError(f"{where} has a prompt that ends with a message of the assistant. Leave that message out.")
        _tools_of(row, where)
        told = json.dumps(row, sort_keys=True, default=_text_for)
        found.append((_digest(repr(prompt)), _digest(told)))
    return found


def _text_for(value: Any) -> str:
    """Return a text for what JSON cannot write: days and times as text. For anything else it is the type, because the
    text of an object may contain its memory address."""
    return str(value.isoformat()) if hasattr(value, "isoformat") else type(value).__name__


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _where(who: str, number: int, is_evaluation: bool) -> str:
    return f"row {number} of the {'evaluation' if is_evaluation else 'training'} data set of {who}"


def _tools_of(row: Mapping[str, Any], where: str) -> tuple[Tool, ...] | None:
    """Return the tools that the row itself names, or None if it names none."""
    info = row.get(INFO)
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            info = None
    tools = info.get(TOOLS) or info.get(OLD_TOOLS) if isinstance(info, Mapping) else None
    return read_tools(tools, where) if tools else None
