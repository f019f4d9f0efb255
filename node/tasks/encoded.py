"""A task as the learner uses it: prompts and answers as token ids, rewards of token ids.

What always holds: every reward is a finite number and depends on nothing but the task, the tokenizer, the index and
the tokens, so it comes out the same after a restart and in any process; so does what a task of several turns answers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from learner.environment import Answered, Ended, EpisodeLimits, Reply, Said
from node.tasks.judging import Asked, Judgement, judged
from node.tasks.port import Task, TaskError, TurnTask
from node.tasks.text import TextCodec

Replying = Generator[Asked, Judgement, Reply]
"""Yields questions for the task, is sent its judgements, returns the reply."""


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
        return self._worth(index, tokens, held_out=False)

    def held_out_reward(self, index: int, tokens: Sequence[int]) -> float:
        """Reward of completion `tokens` of the held-out prompt of `index`."""
        return self._worth(index, tokens, held_out=True)

    def answer(self, index: int) -> tuple[int, ...]:
        """Token ids of the reference answer of `index`, ended by eos, for a supervised warm start."""
        problem = self.task.problem(index)
        if problem.answer is None:
            raise TaskError(f"task {self.task.name!r} has no reference answers, so it cannot warm a model up")
        return self.codec.encode_answer(problem.answer)

    def reply(self, index: int, said: Said, transcript: int, limits: EpisodeLimits) -> Reply:
        """What comes back to `said`, turn by turn, in the training problem of `index`; see `Environment`."""
        return self._now(self.replying(index, said, transcript, limits))

    def held_out_reply(self, index: int, said: Said, transcript: int, limits: EpisodeLimits) -> Reply:
        """The same in the held-out problem of `index`."""
        return self._now(self.replying(index, said, transcript, limits, held_out=True))

    def replying(
        self, index: int, said: Said, transcript: int, limits: EpisodeLimits, *, held_out: bool = False
    ) -> Replying:
        """The same, for whoever has the task asked elsewhere: yields what to ask, is sent what comes back."""
        last = self.codec.completion(said[-1])
        asked = Asked(
            index=index,
            held_out=held_out,
            said=(*(self.codec.completion(tokens).text for tokens in said[:-1]), last.text),
            finished=last.finished,
            wants_reward=False,
        )
        if isinstance(self.task, TurnTask) and last.finished:
            answered = yield asked
            if answered is not None:
                assert not isinstance(answered, float), "an answer was asked"
                problem = self.task.held_out(index) if held_out else self.task.problem(index)
                tokens = self.codec.encode_turn(problem, answered)
                if limits.allow(len(said), transcript + len(tokens)):
                    return Answered(tokens=tokens)
        reward = yield replace(asked, wants_reward=True)
        assert isinstance(reward, float), "a reward was asked"
        return Ended(reward=reward)

    def _now(self, replying: Replying) -> Reply:
        """Ask the task here."""
        try:
            asked = next(replying)
            while True:
                asked = replying.send(judged(self.task, asked))
        except StopIteration as end:
            reply: Reply = end.value
            return reply

    def _worth(self, index: int, tokens: Sequence[int], *, held_out: bool) -> float:
        completion = self.codec.completion(tokens)
        asked = Asked(
            index=index,
            held_out=held_out,
            said=(completion.text,),
            finished=completion.finished,
            wants_reward=True,
        )
        reward = judged(self.task, asked)
        assert isinstance(reward, float), "a reward was asked"
        return reward
