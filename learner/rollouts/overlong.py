"""Decide how completions that were cut off, at the budget or by an episode's limits, are trained on.

Peers are credited for such a completion as for any other. Ledger, reports, pass rates and dynamic sampling use the
reward that the task gave. Only what the trainer gets is changed, when a batch is made.

Invariants:

- A completion that ended by itself and leaves the buffer free is trained on with the task's own reward, in every mode.
- The mode "task" changes nothing.
- A mode either changes rewards or leaves completions out, never both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from learner.rollouts.buffer import Completion
from learner.rollouts.reward_parts import Parts, RewardPart

OverlongMode = Literal["task", "zero", "mask", "soft"]

OVERLONG = "overlong"
"""Name of the soft punishment among the rewards of a completion."""

BUFFER_SHARE = 0.2
"""The default buffer of "soft" as a fraction of the budget: DAPO's is 4096 tokens of 20480 (arXiv 2503.14476, 4.1)."""


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """How to treat completions that were cut off. `budget`: tokens that a turn may have. `buffer`: the last tokens of
    the budget, which "soft" punishes. `penalty`: the most that "soft" subtracts.
    """

    mode: OverlongMode = "task"
    budget: int = 1
    buffer: int = 1
    penalty: float = 1.0

    def reward(self, completion: Completion) -> float:
        """Return the reward that the trainer compares within the group."""
        match self.mode:
            case "zero":
                return 0.0 if completion.cut_off else completion.reward
            case "soft":
                return completion.reward + self.penalty * self.punishment(completion)
            case "task" | "mask":
                return completion.reward

    def parts(self, completion: Completion) -> Parts:
        """Return the named rewards that the trainer compares; none if the completion has none. Their sum is `reward`.
        The punishment of "soft" is a reward of its own, so that `gdpo` normalises it apart from the others.
        """
        if not completion.parts:
            return ()
        match self.mode:
            case "zero" if completion.cut_off:
                return tuple(replace(part, value=0.0) for part in completion.parts)
            case "soft":
                punishment = self.punishment(completion)
                return (*completion.parts, RewardPart(name=OVERLONG, value=punishment, weight=self.penalty))
            case _:
                return completion.parts

    def is_trained(self, completion: Completion) -> bool:
        """Return whether its tokens are trained on. "mask" is DAPO's overlong filtering (arXiv 2503.14476, section
        3.4). The reward of a masked completion still counts in its group, as with TRL's `mask_truncated_completions`.
        """
        return self.mode != "mask" or not completion.cut_off

    def punishment(self, completion: Completion) -> float:
        """Return DAPO's soft punishment, from -1 to 0: that of the longest turn, and -1 if it was cut off."""
        if completion.cut_off:
            return -1.0
        return soft_punishment(max(turn_lengths(completion)), self.budget, self.buffer)


def turn_lengths(completion: Completion) -> Sequence[int]:
    """Return the number of tokens that the policy generated in each turn."""
    return [end - start for start, end in completion.generated] or [len(completion.tokens)]


def soft_punishment(length: int, budget: int, buffer: int) -> float:
    """Return 0 for a `length` that leaves the last `buffer` tokens of the `budget` free, falling linearly to -1 for one
    that uses the whole budget: equation 13 of DAPO (arXiv 2503.14476).
    """
    return max(-1.0, min(0.0, (budget - buffer - length) / buffer))
