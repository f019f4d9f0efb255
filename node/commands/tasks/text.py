"""Format what `volery tasks show` prints, for a terminal and for programs.

Invariants:

- A task's own text stands behind a bar, and no line of it is wider than the screen, so it cannot look like ours.
- The JSON form is ASCII, and has the texts as they are. Its keys are added to, never renamed or removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.cells import chop_cells

from learner.rollouts.reward_parts import RewardPart
from node.commands.tasks.view import ShownProblem, ShownReward, ShownTask, Token, plain
from node.tasks.checks.tokens import SMALL
from node.tasks.tokenizer import DEMO_ALPHABET
from protocol.core.visible import one_line, visible

FORMAT = "volery-tasks/1"

BAR, ANSWERED = "| ", ": "
"""Before what the model reads or says, and before what the task answers."""

FIRST_LINES, LAST_LINES = 40, 20
"""Lines of a long text that are shown: rules come first, the question comes last. The JSON form has all lines."""

FIRST_TOKENS, LAST_TOKENS = 192, 64
"""Tokens of a long text that are shown."""

INDENT = 15
"""Columns before a fact about a task."""

SMALL_READS = (
    f", one token for each of {len(DEMO_ALPHABET)} characters: a-z, 0-9, space, line end, {DEMO_ALPHABET[38:]}"
)
"""What the small tokenizer can read, behind its name."""

LINE_CHARS = 200
"""Most characters of a fact about a task, in one line."""


def as_text(tasks: Sequence[ShownTask], *, width: int) -> str:
    """Return the tasks for a screen of `width` columns."""
    return "\n\n".join("\n".join(_task(task, width)) for task in tasks)


def _task(task: ShownTask, width: int) -> Iterator[str]:
    yield from _told("Task ", f"{one_line(task.name, LINE_CHARS)} (spec {one_line(task.spec, LINE_CHARS)})", width)
    for label, value in _facts(task):
        yield from _told(f"  {label:11}  ", value, width, INDENT)
    for problem in task.problems:
        yield ""
        yield from _problem(problem, task, width)


def _facts(task: ShownTask) -> Iterator[tuple[str, str]]:
    """Yield the facts about a task, each with a label."""
    yield "fingerprint", one_line(task.fingerprint, LINE_CHARS)
    yield "training", _training(task)
    yield "held out", _held_out(task)
    yield "episodes", "several turns" if task.has_turns else "one turn"
    yield "rewards", "computed by the learner itself (cheap task)" if task.is_cheap else "computed by verifiers"
    yield "tokenizer", one_line(task.model, LINE_CHARS) + (SMALL_READS if task.model == str(SMALL) else "")
    yield "stop tokens", _tokens(task.stop_ids)
    yield from (("note", one_line(note, LINE_CHARS)) for note in task.notes)
    if task.lacks:
        yield "lacks", one_line(task.lacks, 2 * LINE_CHARS)


def _training(task: ShownTask) -> str:
    if task.size is not None:
        return f"{task.size:,} problems, trained on in passes"
    return f"unlimited problems, {'one level' if task.levels == 1 else f'{task.levels} levels'} of difficulty"


def _held_out(task: ShownTask) -> str:
    if task.num_held_out is None:
        return "as many problems as [task] held_out says, never trained on"
    return f"{task.num_held_out:,} problems, never trained on" if task.num_held_out else "nothing"


def _problem(problem: ShownProblem, task: ShownTask, width: int) -> Iterator[str]:
    what = "Held-out problem" if problem.held_out else "Problem"
    yield from _told(f"{what} {problem.index}: ", _size(problem, task), width)
    yield from _quoted(problem.text, BAR, width)
    if problem.tokens:
        yield from _told("tokens: ", _tokens(problem.tokens), width, len("tokens: "))
    if problem.answer is None:
        yield from _told(
            "There is no reference answer. ", f"An empty one has reward {_reward_text(problem.empty)}.", width
        )
        return
    reward = f"{_reward_text(problem.reference or problem.empty)}, an empty one {_reward_text(problem.empty)}."
    yield from _told("The reference answer has reward ", reward, width)
    for turn in problem.turns:
        yield from _quoted(turn.said, BAR, width)
        yield from _quoted(plain(turn.answered), ANSWERED, width)
    yield from _quoted(problem.answer, BAR, width)
    if problem.answer_trouble:
        yield from _told("The model cannot write this answer. ", one_line(problem.answer_trouble, LINE_CHARS), width)


def _size(problem: ShownProblem, task: ShownTask) -> str:
    if problem.trouble:
        return f"no tokens. {one_line(problem.trouble, 2 * LINE_CHARS)}"
    if problem.has_room:
        return f"{len(problem.tokens):,} tokens"
    return (
        f"{len(problem.tokens):,} tokens. With [learn] max_new_tokens = {task.limits.turn_tokens} that is more than "
        f"the {task.limits.tokens:,} tokens that are allowed, so training skips the problem"
    )


def _reward_text(reward: ShownReward) -> str:
    if reward.reward is None:
        return f"unknown ({one_line(reward.why, LINE_CHARS)})"
    several = ", ".join(f"{one.name} {_value(one)}" for one in reward.parts)
    return f"{reward.reward:g} ({several})" if several else f"{reward.reward:g}"


def _value(part: RewardPart) -> str:
    return f"{part.value:g}" if part.is_known else "unknown"


def _tokens(tokens: Sequence[Token]) -> str:
    """Return token ids with their spelling: special tokens as they are, others in quotes."""
    left_out = len(tokens) - FIRST_TOKENS - LAST_TOKENS
    if left_out > 0:
        return f"{_tokens(tokens[:FIRST_TOKENS])} ... {left_out} more ... {_tokens(tokens[-LAST_TOKENS:])}"
    return " ".join(f"{one.id}:{one_line(one.text, 40) if one.is_special else repr(one.text)}" for one in tokens)


def _told(lead: str, text: str, width: int, indent: int = 4) -> Iterator[str]:
    """Yield the program's words behind `lead`, in lines of `width` columns. Later lines are indented by `indent`."""
    line, is_begun = lead, False
    for word in visible(text).split(" "):
        joined = f"{line} {word}" if is_begun else f"{line}{word}"
        if is_begun and len(joined) > width:
            yield line
            joined = " " * indent + word
        *full, line = chop_cells(joined, width) or [""]
        yield from full
        is_begun = True
    yield line


def _quoted(text: str, bar: str, width: int) -> Iterator[str]:
    """Yield a task's own text behind a bar, without the middle of a long one."""
    room = max(2, width - len(bar))
    lines = [piece for line in visible(text).split("\n") for piece in chop_cells(line, room) or [""]]
    if (left_out := len(lines) - FIRST_LINES - LAST_LINES) > 0:
        lines = [*lines[:FIRST_LINES], f"({left_out} more lines)", *lines[-LAST_LINES:]]
    yield from (f"{bar}{line}".rstrip() for line in lines)


def as_json(tasks: Sequence[ShownTask]) -> str:
    """Return the tasks as indented JSON."""
    return json.dumps({"format": FORMAT, "tasks": [_exported(task) for task in tasks]}, indent=2)


def _rewards(reward: ShownReward | None) -> dict[str, Any]:
    """Return the named rewards; None for one that is unknown."""
    parts = reward.parts if reward else ()
    return {part.name: {"value": part.value if part.is_known else None, "weight": part.weight} for part in parts}


def _exported(task: ShownTask) -> dict[str, Any]:
    return {
        "spec": task.spec,
        "name": task.name,
        "fingerprint": task.fingerprint,
        "levels": task.levels,
        "size": task.size,
        "num_held_out": task.num_held_out,
        "notes": list(task.notes),
        "has_turns": task.has_turns,
        "is_cheap": task.is_cheap,
        "model": task.model,
        "stop_ids": [one.id for one in task.stop_ids],
        "lacks": task.lacks or None,
        "problems": [_exported_problem(problem) for problem in task.problems],
    }


def _exported_problem(problem: ShownProblem) -> dict[str, Any]:
    return {
        "index": problem.index,
        "held_out": problem.held_out,
        "text": problem.text,
        "trouble": problem.trouble or None,
        "has_room": problem.has_room,
        "tokens": [{"id": one.id, "text": one.text, "special": one.is_special} for one in problem.tokens],
        "answer": problem.answer,
        "answer_trouble": problem.answer_trouble or None,
        "reference_worth": None if problem.reference is None else problem.reference.reward,
        "empty_worth": problem.empty.reward,
        "reference_rewards": _rewards(problem.reference),
        "empty_rewards": _rewards(problem.empty),
        "turns": [{"said": turn.said, "answered": plain(turn.answered)} for turn in problem.turns],
    }
