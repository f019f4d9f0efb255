"""What a task is asked about a transcript, as a value that any process holding the task can answer.

What always holds: an answer depends on nothing but the task and what is asked, so it is the same in the node, in a
verifier's process, and after a restart; turns are folded from what was said, never remembered; whatever a task raises
is its own mistake, and says which problem it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from node.tasks.port import (
    MAX_REWARD,
    Answer,
    CheapTask,
    Completion,
    NeedyTask,
    Problem,
    Task,
    TaskError,
    Turn,
    TurnTask,
)


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


def judged(task: Task, asked: Asked) -> Judgement:
    """What `task` says. Raises TaskError when it fails, or gives a reward that is no number."""
    with blamed(task, asked.index):
        problem = task.held_out(asked.index) if asked.held_out else task.problem(asked.index)
    turns = _replay(task, problem, asked)
    with blamed(task, asked.index):
        if not asked.wants_reward:
            return task.answer_turn(problem, turns, asked.said[-1]) if isinstance(task, TurnTask) else None
        completion = Completion(text=asked.said[-1], finished=asked.finished, turns=tuple(turns))
        reward = task.reward(problem, completion)
    if not abs(reward) <= MAX_REWARD:  # as nothing is that is no number
        raise TaskError(
            f"task {task.name!r} gave the reward {reward} at index {asked.index}; it must lie between "
            f"{-MAX_REWARD:g} and {MAX_REWARD:g}"
        )
    return float(reward)


def is_cheap(task: Task) -> bool:
    """Whether the node may ask the task itself, whatever strangers say."""
    return isinstance(task, CheapTask) and task.is_cheap


def require(task: Task) -> None:
    """Raises TaskError unless all that the task's rewards need is on this machine."""
    if isinstance(task, NeedyTask):
        task.require()


def _replay(task: Task, problem: Problem, asked: Asked) -> Sequence[Turn]:
    """The turns before the last, each of which the task answered."""
    turns: list[Turn] = []
    for text in asked.said[:-1]:
        with blamed(task, asked.index):
            answered = task.answer_turn(problem, turns, text) if isinstance(task, TurnTask) else None
        if answered is None:
            raise TaskError(
                f"task {task.name!r} answers otherwise than it did at index {asked.index}: answer_turn must depend "
                "on its arguments alone. Put its former version back, or start a new run in another directory."
            )
        turns.append(Turn(said=text, answered=answered))
    return turns


@contextmanager
def blamed(task: Task, index: int) -> Iterator[None]:
    """What the task raises inside is its own mistake, whatever it is: tasks may be an operator's own."""
    try:
        yield
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(
            f"task {task.name!r} failed at index {index}: {type(error).__name__}: {error}. Mend it, then "
            "start again: nothing that was acknowledged is lost."
        ) from error
