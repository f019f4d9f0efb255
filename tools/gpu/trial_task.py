"""Define a task whose rewards differ even for a model that knows nothing: the share of even words in a completion.

`trial` copies this file beside swarm.toml, which names it: `python:trial_task:Even:length=N`, prompts of N words.
"""

from __future__ import annotations

import os
import random

from volery import Completion, Problem, TaskArguments

WORDS = int(os.environ.get("TRIAL_WORDS", "100000"))
"""Prompts are made of the words w0 to w(WORDS - 1); the tokenizer must have them."""


class Even:
    """A task that rewards words with an even last digit."""

    name = "even"
    levels = 1
    is_cheap = True

    def __init__(self, arguments: TaskArguments) -> None:
        self.length = int(arguments.options.get("length", 512))
        self.seed = arguments.seed
        self.fingerprint = f"even/{self.length}/{self.seed}/{WORDS}"

    def problem(self, index: int) -> Problem:
        return self._problem("training", index)

    def held_out(self, index: int) -> Problem:
        return self._problem("held out", index)

    def reward(self, problem: Problem, completion: Completion) -> float:
        words = completion.text.replace("\ufffd", " ").split()
        return sum(word[-1] in "02468" for word in words) / len(words) if words else 0.0

    def _problem(self, side: str, index: int) -> Problem:
        dice = random.Random(f"{side}/{self.seed}/{index}")
        return Problem(prompt=" ".join(f"w{dice.randrange(WORDS)}" for _ in range(self.length)), answer=None)
