"""A transcript folded again from what was said, of a task of several turns that is a pure function of it."""

from __future__ import annotations

from collections.abc import Sequence

from node.tasks.api.interface import Completion, Problem, TaskError, Turn
from node.tasks.gate import Gate, Place


def read_back(gate: Gate, place: Place, said: Sequence[str], *, finished: bool) -> tuple[Problem, Completion]:
    """The problem there, and all that was said in it with what the task answered. Raises TaskError."""
    problem = gate.problem(place)
    turns: list[Turn] = []
    for text in said[:-1]:
        answered = gate.answer_turn(place, problem, turns, text)
        if answered is None:
            raise TaskError(
                f"task {gate.name!r} answers otherwise than it did at {place}: answer_turn must depend on its "
                "arguments alone. Put its former version back, or start a new run in another directory."
            )
        turns.append(Turn(said=text, answered=answered))
    return problem, Completion(text=said[-1], finished=finished, turns=tuple(turns))
