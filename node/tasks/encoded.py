"""A task as the learner uses it: prompts and answers as token ids, rewards of token ids.

What always holds: every reward is a finite number and depends on nothing but the task, the tokenizer, the index and
the tokens, so it comes out the same after a restart and in any process; so does what a task of several turns answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from learner.environment import Answered, Ended, EpisodeLimits, Reply, Said
from node.tasks.port import MAX_REWARD, Completion, Problem, Task, TaskError, Turn, TurnTask
from node.tasks.text import TextCodec


@dataclass(frozen=True, kw_only=True)
class EncodedTask:
    """See the module's paragraph. Methods raise TaskError when a text cannot be encoded, a reward is no number, or the
    task fails."""

    task: Task
    codec: TextCodec

    def prompt(self, index: int) -> tuple[int, ...]:
        """Token ids of the training prompt of `index`."""
        return self.codec.encode_prompt(self.task.problem(index))

    def held_out_prompt(self, index: int) -> tuple[int, ...]:
        """Token ids of the held-out prompt of `index`."""
        return self.codec.encode_prompt(self.task.held_out(index))

    def reward(self, index: int, tokens: Sequence[int]) -> float:
        """Reward of completion `tokens` (stop id included) of the training prompt of `index`."""
        return self._judge(self.task.problem(index), index, tokens)

    def held_out_reward(self, index: int, tokens: Sequence[int]) -> float:
        """Reward of completion `tokens` of the held-out prompt of `index`."""
        return self._judge(self.task.held_out(index), index, tokens)

    def answer(self, index: int) -> tuple[int, ...]:
        """Token ids of the reference answer of `index`, ended by eos, for a supervised warm start."""
        problem = self.task.problem(index)
        if problem.answer is None:
            raise TaskError(f"task {self.task.name!r} has no reference answers, so it cannot warm a model up")
        return self.codec.encode_answer(problem.answer)

    def reply(self, index: int, said: Said, transcript: int, limits: EpisodeLimits) -> Reply:
        """What comes back to `said`, turn by turn, in the training problem of `index`; see `Environment`."""
        return self._reply(self.task.problem(index), index, said, transcript, limits)

    def held_out_reply(self, index: int, said: Said, transcript: int, limits: EpisodeLimits) -> Reply:
        """The same in the held-out problem of `index`."""
        return self._reply(self.task.held_out(index), index, said, transcript, limits)

    def _reply(self, problem: Problem, index: int, said: Said, transcript: int, limits: EpisodeLimits) -> Reply:
        last = self.codec.completion(said[-1])
        turns = self._replay(problem, index, said[:-1])
        if isinstance(self.task, TurnTask) and last.finished:
            with self._blamed(index):
                answered = self.task.answer_turn(problem, turns, last.text)
            if answered is not None:
                tokens = self.codec.encode_turn(problem, answered)
                if limits.allow(len(said), transcript + len(tokens)):
                    return Answered(tokens=tokens)
        completion = Completion(text=last.text, finished=last.finished, turns=tuple(turns))
        return Ended(reward=self._reward(problem, index, completion))

    def _replay(self, problem: Problem, index: int, said: Said) -> list[Turn]:
        """The turns in which that was said, each of which the task answered."""
        turns: list[Turn] = []
        for tokens in said:
            text = self.codec.completion(tokens).text
            with self._blamed(index):
                answered = self.task.answer_turn(problem, turns, text) if isinstance(self.task, TurnTask) else None
            if answered is None:
                raise TaskError(
                    f"task {self.task.name!r} answers otherwise than it did at index {index}: answer_turn must depend "
                    "on its arguments alone. Put its former version back, or start a new run in another directory."
                )
            turns.append(Turn(said=text, answered=answered))
        return turns

    def _judge(self, problem: Problem, index: int, tokens: Sequence[int]) -> float:
        return self._reward(problem, index, self.codec.completion(tokens))

    def _reward(self, problem: Problem, index: int, completion: Completion) -> float:
        with self._blamed(index):
            reward = self.task.reward(problem, completion)
        if not abs(reward) <= MAX_REWARD:  # as nothing is that is no number
            raise TaskError(
                f"task {self.task.name!r} gave the reward {reward} at index {index}; it must lie between "
                f"{-MAX_REWARD:g} and {MAX_REWARD:g}"
            )
        return reward

    @contextmanager
    def _blamed(self, index: int) -> Iterator[None]:
        """What the task raises inside is its own mistake, whatever it is: tasks may be an operator's own."""
        try:
            yield
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"task {self.task.name!r} failed at index {index}: {type(error).__name__}: {error}. Mend it, then "
                "start again: nothing that was acknowledged is lost."
            ) from error
