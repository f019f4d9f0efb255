"""Compute a transcript again from what was said, for a task whose answers are a pure function of that."""

from __future__ import annotations

from collections.abc import Sequence

from node.tasks.api.interface import Completion, Problem, TaskError, Turn
from node.tasks.gate import Gate, Place


def read_back(gate: Gate, place: Place, said: Sequence[str], *, finished: bool) -> tuple[Problem, Completion]:
    """Return the problem at `place`, and what was said in it with the task's answers. Raises TaskError."""
    problem = gate.problem(place)
    turns: list[Turn] = []
    for text in said[:-1]:
        answered = gate.answer_turn(place, problem, turns, text)
        if answered is None:
            raise TaskError(
                f"task {gate.name!r} answers differently than before at {place}: answer_turn must depend only on its "
                "arguments. Restore its former version, or start a new run in another directory."
            )
        turns.append(Turn(said=text, answered=answered))
    return problem, Completion(text=said[-1], finished=finished, turns=tuple(turns))
