"""What a task is asked about a transcript, as a value that any process holding the task can answer.

What always holds: an answer depends on nothing but the task and what is asked, so it is the same in the node, in a
verifier's process, and after a restart; turns are folded from what was said, and environments are made anew and told
it, never remembered; one that answers otherwise than it did is an error; whatever a task raises or returns passes its
gate (`node.tasks.gate`), which says which problem it was.
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
    """One question to a task: what is answered to the last of `said`, or with `wants_reward` what all of it is worth.

    `index` of a training problem, or of a `held_out` one; `said` turn by turn, at least one; `finished`: the last ended
    by itself. Where the task has environments, `digests` of what was answered to all but the last of `said`, and how
    what it said is read (`node.tasks.environments.question`).
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
        """The same for an environment of the task of that title. Raises ValueError when digests are missing."""
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
        """The same for a task that folds its turns, so nobody needs digests."""
        return replace(self, digests=("",) * (len(self.said) - 1)).of_episode(title)


class AnsweredOtherwise(TaskError):
    """An environment that was told again what was said has answered otherwise: its episode cannot go on."""


def otherwise(title: str, place: Place, turn: int) -> str:
    """What is told of such an environment, which did in that turn, from 1 on."""
    return (
        f"the environment of task {title!r} at {place} was made anew, and answered otherwise in turn {turn} than the "
        "one before it. Let all that is random follow from its seed, or leave more alive: [verifiers] environments"
    )


Judgement = float | Answer | None
"""A reward, where that was asked; else what is answered, None where the episode is over."""


def grade(task: Task | Gate, asked: Asked) -> Judgement:
    """What `task` says. Raises TaskError when it fails, or says what it should not."""
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
