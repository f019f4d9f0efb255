"""A task as the learner uses it: prompts and answers as token ids, rewards of token ids.

What always holds: every reward is a finite number and depends on nothing but the task, the tokenizer, the index and
the tokens, so it comes out the same after a restart and in any process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from node.tasks.port import Problem, Task, TaskError
from node.tasks.text import TextCodec


@dataclass(frozen=True, kw_only=True)
class EncodedTask:
    """See the module's paragraph. Methods raise TaskError when a text cannot be encoded or a reward is no number."""

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

    def _judge(self, problem: Problem, index: int, tokens: Sequence[int]) -> float:
        reward = self.task.reward(problem, self.codec.completion(tokens))
        if not math.isfinite(reward):
            raise TaskError(f"task {self.task.name!r} gave the reward {reward} at index {index}; it must be finite")
        return reward
