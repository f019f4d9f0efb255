"""Use a task in token ids: prompts and answers as token ids, rewards of token ids.

Invariants:

- Every reward is a finite number. It depends only on the task, the tokenizer, the index and the tokens, so it is the
  same after a restart and in any process.
- The same holds for the answers of a task of several turns. Answers of environments are the exception: they have
  digests, which are sent along with everything that was said.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from learner.rollouts.environment import Answered, Ended, EpisodeLimits, Reply, Said
from node.tasks.api.interface import Completion, Problem, Task, TaskError
from node.tasks.composed_reward import parts_of
from node.tasks.environments.question import digest_of_answer
from node.tasks.gate import Gate, Place
from node.tasks.grading import AnsweredOtherwise, Asked, Judgement, grade, otherwise
from node.tasks.template_checks import check_template
from node.tasks.tokenizer import TextCodec
from node.tasks.tools.writing import write_calls

Replying = Generator[Asked | Place, Judgement | Problem, Reply]
"""Yields questions for the task, receives its answers, returns the reply. A yielded Place asks for its problem."""


@dataclass(frozen=True, kw_only=True)
class EncodedTask:
    """One task with the model's tokenizer. Methods raise TaskError if a text cannot be encoded, or if the task fails or
    returns a wrong value (`node.tasks.gate`)."""

    task: Task
    codec: TextCodec

    @cached_property
    def gate(self) -> Gate:
        """The task, with every call checked. The first access raises TaskError if the object is not a task."""
        return Gate(self.task)

    def prompt(self, index: int, *, held_out: bool = False) -> tuple[int, ...]:
        """Return the token ids of the training prompt of `index`, or of the held-out one."""
        return self.encode_prompt(self.gate.problem(Place(index=index, held_out=held_out)))

    def encode_prompt(self, problem: Problem) -> tuple[int, ...]:
        """Return the token ids of a problem's prompt."""
        with self._written("its prompt"):
            return self.codec.encode_prompt(problem)

    def answer_trouble(self, problem: Problem) -> str | None:
        """Return why the model cannot write the reference answer of `problem`; "" if it can, None if there is none."""
        if problem.answer is None:
            return None
        try:
            with self._written("its answer"):
                self.codec.encode_answer(problem.answer)
        except TaskError as error:
            return str(error)
        return ""

    def check_template(self, index: int) -> list[str]:
        """Return notes on how the training prompt of `index` is written. Raises TaskError if an episode of it could not
        go on."""
        problem = self.gate.problem(Place(index=index))
        with self._written("its prompt"):
            return check_template(self.codec, problem, has_turns=self.gate.has_turns)

    def reward(self, index: int, tokens: Sequence[int], *, held_out: bool = False) -> float:
        """Return the reward of a completion of that prompt. `tokens` include the stop id."""
        completion = self._completion(tokens)
        asked = Asked(
            index=index,
            held_out=held_out,
            said=(completion.text,),
            finished=completion.finished,
            wants_reward=True,
        )
        reward = grade(self.gate, asked)
        assert isinstance(reward, float), "the question asked for a reward"
        return reward

    def answer(self, index: int) -> tuple[int, ...]:
        """Return the token ids of the reference answer of `index`, for a supervised warm start. They end like a turn of
        the policy."""
        problem = self.gate.problem(Place(index=index))
        if problem.answer is None:
            raise TaskError(f"task {self.gate.name!r} has no reference answers, so it cannot warm up a model")
        with self._written("its answer"):
            return self.codec.encode_answer(problem.answer, self.codec.end_of_turn(problem))

    def example(self, index: int) -> list[tuple[tuple[int, ...], bool]]:
        """Return training problem `index` with its whole example conversation, in token ids, for a supervised warm
        start. Each part comes with whether the policy shall learn to say it."""
        place = Place(index=index)
        problem = self.gate.problem(place)
        parts = [(self.encode_prompt(problem), False)]
        if (shown := self.gate.demonstrate(place)) is None:
            return [*parts, (self.answer(index), True)]
        with self._written("its example"):
            end = self.codec.end_of_turn(problem)
            for message in shown:
                if message.role != "assistant":
                    parts.append((self.codec.encode_turn(problem, (message,)), False))
                    continue
                calls = message.tool_calls
                text = (
                    write_calls(self.codec.require_tool_format(), calls, message.content) if calls else message.content
                )
                parts.append((self.codec.encode_answer(text, end), True))
        return parts

    def reply(
        self,
        index: int,
        said: Said,
        transcript: int,
        limits: EpisodeLimits,
        *,
        held_out: bool = False,
        digests: tuple[str, ...] = (),
        read: tuple[int, ...] | None = None,
    ) -> Reply:
        """Return the reply to `said`, the policy's turns in that problem; see `learner.rollouts.environment.Question`.
        Calls the task in this thread."""
        replying = self.replying(index, said, transcript, limits, held_out=held_out, digests=digests, read=read)
        try:
            asked = next(replying)
            while True:
                asked = replying.send(self.gate.problem(asked) if isinstance(asked, Place) else grade(self.gate, asked))
        except StopIteration as end:
            reply: Reply = end.value
            return reply

    def replying(
        self,
        index: int,
        said: Said,
        transcript: int,
        limits: EpisodeLimits,
        *,
        held_out: bool = False,
        digests: tuple[str, ...] = (),
        read: tuple[int, ...] | None = None,
    ) -> Replying:
        """Compute the same, for callers that run the task elsewhere: yields each question, and receives its answer."""
        last = self._completion(said[-1])
        asked = Asked(
            index=index,
            held_out=held_out,
            said=(*(self._completion(tokens).text for tokens in said[:-1]), last.text),
            finished=last.finished,
            wants_reward=False,
        )
        problem: Judgement | Problem = None
        if self.gate.has_environments:
            problem = yield Place(index=index, held_out=held_out)
            assert isinstance(problem, Problem), "the question asked for a problem"
            asked = self._of_environment(asked, problem, digests)
        cut_off = not last.finished
        if self.gate.has_turns and last.finished:
            answered = yield asked
            if answered is not None:
                assert isinstance(answered, str | tuple), "the question asked for an answer"
                problem = problem or (yield Place(index=index, held_out=held_out))
                assert isinstance(problem, Problem), "the question asked for a problem"
                with self._written("what it answers"):
                    tokens = self.codec.encode_turn(problem, answered)
                if limits.allow(len(said), transcript + len(tokens)):
                    if not self.gate.has_environments:
                        return Answered(tokens=tokens)
                    self._require_same(asked, tokens, read)
                    return Answered(tokens=tokens, digest=digest_of_answer(answered))
                cut_off = True
            elif self.gate.has_environments:
                self._require_same(asked, None, read)
        reward = yield replace(asked, wants_reward=True)
        assert isinstance(reward, float), "the question asked for a reward"
        return Ended(reward=float(reward), cut_off=cut_off, parts=parts_of(reward))

    def _of_environment(self, asked: Asked, problem: Problem, digests: tuple[str, ...]) -> Asked:
        """Return the same question with what an environment needs in addition."""
        if self.codec.messages(problem) is None:  # plain text has no tool calls to parse
            return replace(asked, digests=digests)
        written = self.codec.require_tool_format() if problem.tools else self.codec.tool_format or "json"
        return replace(asked, digests=digests, tool_format=written, in_thinking=self.codec.begins_in_thinking)

    def _require_same(self, asked: Asked, tokens: tuple[int, ...] | None, read: tuple[int, ...] | None) -> None:
        """Raise AnsweredOtherwise if the policy has read something else before."""
        if read is not None and tokens != read:
            place = Place(index=asked.index, held_out=asked.held_out)
            raise AnsweredOtherwise(otherwise(self.gate.name, place, len(asked.said)))

    def _completion(self, tokens: Sequence[int]) -> Completion:
        with self._written("a completion"):
            return self.codec.completion(tokens)

    @contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """Turn any error inside into a TaskError. Tokenizer and chat template are the operator's, and may raise
        anything."""
        try:
            yield
        except (TaskError, KeyboardInterrupt):
            raise
        except BaseException as error:  # for example a panic of the tokenizers library
            raise TaskError(
                f"{self.codec.directory}: its tokenizer or chat template fails on {what} of task {self.gate.name!r}: "
                f"{type(error).__name__}: {error}"
            ) from error
