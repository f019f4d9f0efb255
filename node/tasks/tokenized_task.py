"""A task as the learner uses it: prompts and answers as token ids, rewards of token ids.

What always holds: every reward is a finite number and depends on nothing but the task, the tokenizer, the index and
the tokens, so it comes out the same after a restart and in any process; so does what a task of several turns answers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from learner.rollouts.environment import Answered, Ended, EpisodeLimits, Reply, Said
from node.tasks.api.interface import Completion, Problem, Task, TaskError
from node.tasks.gate import Gate, Place
from node.tasks.grading import Asked, Judgement, grade
from node.tasks.tokenizer import TextCodec

Replying = Generator[Asked | Place, Judgement | Problem, Reply]
"""Yields questions for the task, is sent its judgements, returns the reply. A Place asks for the problem there."""


@dataclass(frozen=True, kw_only=True)
class EncodedTask:
    """See the module's paragraph. Methods raise TaskError when a text cannot be encoded, or when the task fails or
    returns what it should not (`node.tasks.gate`)."""

    task: Task
    codec: TextCodec

    @cached_property
    def gate(self) -> Gate:
        """The task as it is asked. Raises TaskError the first time, where it is none."""
        return Gate(self.task)

    def prompt(self, index: int, *, held_out: bool = False) -> tuple[int, ...]:
        """Token ids of the training prompt of `index`, or of the held-out one."""
        return self.encode_prompt(self.gate.problem(Place(index=index, held_out=held_out)))

    def encode_prompt(self, problem: Problem) -> tuple[int, ...]:
        """Token ids of a problem's prompt."""
        with self._written("its prompt"):
            return self.codec.encode_prompt(problem)

    def reward(self, index: int, tokens: Sequence[int], *, held_out: bool = False) -> float:
        """Reward of completion `tokens` (stop id included) of that prompt."""
        completion = self._completion(tokens)
        asked = Asked(
            index=index,
            held_out=held_out,
            said=(completion.text,),
            finished=completion.finished,
            wants_reward=True,
        )
        reward = grade(self.gate, asked)
        assert isinstance(reward, float), "a reward was asked"
        return reward

    def answer(self, index: int) -> tuple[int, ...]:
        """Token ids of the reference answer of `index`, ended by eos, for a supervised warm start."""
        problem = self.gate.problem(Place(index=index))
        if problem.answer is None:
            raise TaskError(f"task {self.gate.name!r} has no reference answers, so it cannot warm a model up")
        with self._written("its answer"):
            return self.codec.encode_answer(problem.answer)

    def reply(self, index: int, said: Said, transcript: int, limits: EpisodeLimits, *, held_out: bool = False) -> Reply:
        """What comes back to `said`, turn by turn, in that problem; see `Environment`. The task is asked here."""
        replying = self.replying(index, said, transcript, limits, held_out=held_out)
        try:
            asked = next(replying)
            while True:
                asked = replying.send(self.gate.problem(asked) if isinstance(asked, Place) else grade(self.gate, asked))
        except StopIteration as end:
            reply: Reply = end.value
            return reply

    def replying(
        self, index: int, said: Said, transcript: int, limits: EpisodeLimits, *, held_out: bool = False
    ) -> Replying:
        """The same, for whoever has the task asked elsewhere: yields what to ask, is sent what comes back."""
        last = self._completion(said[-1])
        asked = Asked(
            index=index,
            held_out=held_out,
            said=(*(self._completion(tokens).text for tokens in said[:-1]), last.text),
            finished=last.finished,
            wants_reward=False,
        )
        if self.gate.has_turns and last.finished:
            answered = yield asked
            if answered is not None:
                assert isinstance(answered, str | tuple), "an answer was asked"
                problem = yield Place(index=index, held_out=held_out)
                assert isinstance(problem, Problem), "a problem was asked"
                with self._written("what it answers"):
                    tokens = self.codec.encode_turn(problem, answered)
                if limits.allow(len(said), transcript + len(tokens)):
                    return Answered(tokens=tokens)
        reward = yield replace(asked, wants_reward=True)
        assert isinstance(reward, float), "a reward was asked"
        return Ended(reward=reward)

    def _completion(self, tokens: Sequence[int]) -> Completion:
        with self._written("a completion"):
            return self.codec.completion(tokens)

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """Tokenizer and chat template are the operator's, too: what they raise is told in a sentence."""
        try:
            yield
        except (TaskError, KeyboardInterrupt):
            raise
        except BaseException as error:  # as a panic of the tokenizers library is
            raise TaskError(
                f"{self.codec.directory}: its tokenizer or chat template fails on {what}, of task {self.gate.name!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
