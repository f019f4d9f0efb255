"""Provide environments for tests of tasks."""

from __future__ import annotations

from collections.abc import Callable

from learner.rollouts.environment import Ended, Environment, Reply, Said


def one_turn(reward: Callable[[int, tuple[int, ...]], float]) -> Environment:
    """Return the environment of a task without turns, whose `reward` judges (index, completion tokens)."""

    def reply(index: int, said: Said, transcript: int) -> Reply:
        return Ended(reward=reward(index, said[-1]))

    return reply
