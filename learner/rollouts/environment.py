"""What an environment answers to what the policy said: the port between episodes and the tasks, which live in the node.

What always holds: a reply depends on nothing but the index of the prompt and what the policy said, turn by turn; so an
environment has no state to lose, and after a restart it is replayed from what was admitted. A task of one turn is an
environment that ends every episode at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from protocol.core.limits import MAX_PROMPT_TOKENS

MAX_TURNS = 64
"""Each turn is a lease, a round trip and a row in the ledger; Sokoban and poker take up to 30."""

MAX_EPISODE_TOKENS = MAX_PROMPT_TOKENS
"""The transcript so far is the prompt of the next lease."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The episode is over. `reward` is its return, for all that was said in it.

    `failure`: nobody could say what it is worth, and why. Such an episode is `void`, and teaches nothing to anybody,
    unless the operator has it count as `reward`.
    """

    reward: float
    failure: str = ""
    void: bool = False


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The policy reads `tokens` next, after what it said, and says something again."""

    tokens: tuple[int, ...]


Reply = Ended | Answered

Said = tuple[tuple[int, ...], ...]
"""The tokens that the policy generated, turn by turn."""

Environment = Callable[[int, Said, int], Reply]
"""(index of the prompt, what the policy said up to now, tokens of the transcript with that) -> reply. Pure."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an environment is asked: the arguments of `Environment`, as a value that can wait and travel."""

    index: int
    said: Said
    transcript: int


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """How far an episode goes: turns, and tokens of prompt, answers and all that is said. Of the latter a turn may need
    `turn_tokens`: one for which they are not left is not begun."""

    turns: int = 1
    tokens: int = MAX_EPISODE_TOKENS
    turn_tokens: int = 1

    def allow(self, turns: int, transcript: int) -> bool:
        """Whether one more turn may begin after so many, with a transcript of so many tokens."""
        return turns < self.turns and transcript + self.turn_tokens <= self.tokens


ONE_TURN = EpisodeLimits()


Ask = Callable[[Sequence[Question]], Awaitable[Sequence[Reply]]]
"""What comes back to what was said, in order: asked of an environment, wherever that is."""
