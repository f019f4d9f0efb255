"""Ask a task one question, whether it computes its turns or has environments.

Environments are made again and given the earlier turns. The question names the format of the policy's tool calls, like
a question of the learner.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.tasks.api.interface import Answer, Completion, Problem, Turn
from node.tasks.environments.question import digest_of_answer
from node.tasks.gate import Gate, Place
from node.tasks.grading import Asked, grade
from node.tasks.tokenizer import TextCodec


def answer_turn(
    gate: Gate, codec: TextCodec, place: Place, problem: Problem, turns: Sequence[Turn], said: str
) -> Answer | None:
    """Return the task's answer to `said`, or None at the end of the episode. Raises TaskError."""
    if not gate.has_environments:
        return gate.answer_turn(place, problem, turns, said)
    completion = Completion(text=said, finished=True, turns=tuple(turns))
    answered = grade(gate, _asked(codec, place, problem, completion, wants_reward=False))
    assert not isinstance(answered, float), "the question asked for an answer"
    return answered


def reward(gate: Gate, codec: TextCodec, place: Place, problem: Problem, completion: Completion) -> float:
    """Return the reward of the completion. Raises TaskError."""
    if not gate.has_environments:
        return gate.reward(place, problem, completion)
    reward = grade(gate, _asked(codec, place, problem, completion, wants_reward=True))
    assert isinstance(reward, float), "the question asked for a reward"
    return reward


def _asked(codec: TextCodec, place: Place, problem: Problem, completion: Completion, *, wants_reward: bool) -> Asked:
    is_chat = codec.messages(problem) is not None
    return Asked(
        index=place.index,
        held_out=place.held_out,
        said=(*(turn.said for turn in completion.turns), completion.text),
        finished=completion.finished,
        wants_reward=wants_reward,
        digests=tuple(digest_of_answer(turn.answered) for turn in completion.turns),
        tool_format=codec.tool_format or "json" if is_chat else None,
        in_thinking=is_chat and codec.begins_in_thinking,
    )
