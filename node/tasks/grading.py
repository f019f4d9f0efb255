"""Answer one question about a transcript with a task, in any process that has the task.

Invariants:

- An answer depends only on the task and the question. It is the same in the node, in a verifier's process and after a
  restart.
- The state of an episode is computed from what was said, never remembered. An environment is made again and given the
  same turns. If it then answers differently than before, that is an error.
- Everything that a task raises or returns passes its gate (`node.tasks.gate`), which says which problem it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from node.tasks.api.interface import Answer, Task, TaskError
from node.tasks.environments.environment_host import ask_alone
from node.tasks.environments.live_environments import Otherwise
from node.tasks.environments.question import EpisodeQuestion
from node.tasks.environments.transcript import read_back
from node.tasks.gate import Gate, Place
from node.tasks.tools.formats import ToolFormat


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question to a task: its answer to the last turn in `said`, or with `wants_reward` the reward of the episode.

    `index`: the number of a training problem, or of a `held_out` one. `said`: the policy's turns, at least one.
    `finished`: the last turn ended by itself. The other fields are for a task with environments: `digests` of its
    earlier answers, and how to parse what the policy said (`node.tasks.environments.question`).
    """

    index: int
    held_out: bool
    said: tuple[str, ...]
    finished: bool
    wants_reward: bool
    digests: tuple[str, ...] = ()
    tool_format: ToolFormat | None = None
    in_thinking: bool = False

    def of_episode(self, title: str) -> EpisodeQuestion:
        """Return the same question for an environment of the task called `title`. Raises ValueError if digests are
        missing."""
        return EpisodeQuestion(
            task=title,
            place=Place(index=self.index, held_out=self.held_out),
            said=self.said,
            digests=self.digests,
            finished=self.finished,
            wants_reward=self.wants_reward,
            tool_format=self.tool_format,
            in_thinking=self.in_thinking,
        )

    def of_transcript(self, title: str) -> EpisodeQuestion:
        """Return the same question for a task without environments, which needs no digests."""
        return replace(self, digests=("",) * (len(self.said) - 1)).of_episode(title)


class AnsweredOtherwise(TaskError):
    """A new environment that received the same turns again has answered differently, so its episode cannot go on."""


def otherwise(title: str, place: Place, turn: int) -> str:
    """Return the message about an environment that answered differently in this turn, counted from 1."""
    return (
        f"the environment of task {title!r} at {place} was made again, and in turn {turn} it answered differently than "
        "the one before it. Derive everything random from its seed, or keep more alive: [verifiers] environments"
    )


Judgement = float | Answer | None
"""The reward, if it was asked for; else the task's answer, or None if the episode is over."""


def grade(task: Task | Gate, asked: Asked) -> Judgement:
    """Return what `task` answers. Raises TaskError if it fails or returns a wrong value."""
    gate = task if isinstance(task, Gate) else Gate(task)
    place = Place(index=asked.index, held_out=asked.held_out)
    if gate.has_environments:
        reply = ask_alone(gate, asked.of_episode(gate.name))
        if isinstance(reply, Otherwise):
            raise AnsweredOtherwise(otherwise(gate.name, place, reply.turn))
        return reply.answer
    problem, completion = read_back(gate, place, asked.said, finished=asked.finished)
    if not asked.wants_reward:
        return gate.answer_turn(place, problem, completion.turns, completion.text)
    return gate.reward(place, problem, completion)
