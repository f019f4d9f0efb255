"""What a task is asked about a transcript, as a value that any process holding the task can answer.

What always holds: an answer depends on nothing but the task and what is asked, so it is the same in the node, in a
verifier's process, and after a restart; turns are folded from what was said, never remembered; whatever a task raises
or returns passes its gate (`node.tasks.gate`), which says which problem it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.tasks.api.interface import Answer, Completion, Problem, Task, TaskError, Turn
from node.tasks.gate import Gate, Place


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question to a task: what is answered to the last of `said`, or with `wants_reward` what all of it is worth.

    `index` of a training problem, or of a `held_out` one; `said` turn by turn, at least one; `finished`: the last ended
    by itself.
    """

    index: int
    held_out: bool
    said: tuple[str, ...]
    finished: bool
    wants_reward: bool


Judgement = float | Answer | None
"""A reward, where that was asked; else what is answered, None where the episode is over."""


def grade(task: Task | Gate, asked: Asked) -> Judgement:
    """What `task` says. Raises TaskError when it fails, or says what it should not."""
    gate = task if isinstance(task, Gate) else Gate(task)
    place = Place(index=asked.index, held_out=asked.held_out)
    problem = gate.problem(place)
    turns = _replay(gate, place, problem, asked)
    if not asked.wants_reward:
        return gate.answer_turn(place, problem, turns, asked.said[-1])
    return gate.reward(place, problem, Completion(text=asked.said[-1], finished=asked.finished, turns=tuple(turns)))


def _replay(gate: Gate, place: Place, problem: Problem, asked: Asked) -> Sequence[Turn]:
    """The turns before the last, each of which the task answered."""
    turns: list[Turn] = []
    for text in asked.said[:-1]:
        answered = gate.answer_turn(place, problem, turns, text)
        if answered is None:
            raise TaskError(
                f"task {gate.name!r} answers otherwise than it did at {place}: answer_turn must depend on its "
                "arguments alone. Put its former version back, or start a new run in another directory."
            )
        turns.append(Turn(said=text, answered=answered))
    return turns
