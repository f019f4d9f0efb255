"""What an environment answers to what the policy said: the port between episodes and the tasks, which live in the node.

What always holds: what the policy read is in the transcript, and nothing else is remembered of an environment here. So
whoever asks tells all that was said, and digests of what was answered: an environment that is still there goes on, one
that is not is replayed, and one that then answers otherwise ends the episode without a reward, as a value. Most depend
on what was said alone, and always answer the same; their digests are empty. A task of one turn is an environment that
ends every episode at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from learner.rollouts.reward_parts import Parts
from protocol.core.limits import MAX_PROMPT_TOKENS

MAX_TURNS = 64
"""Each turn is a lease, a round trip and a row in the ledger; Sokoban and poker take up to 30."""

MAX_EPISODE_TOKENS = MAX_PROMPT_TOKENS
"""The transcript so far is the prompt of the next lease."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The episode is over. `reward` is its return, for all that was said in it. `cut_off`: it did not come to its end,
    since the last turn had no tokens left, or the limits allow no other though one was to follow. `parts`: the rewards
    that it is made of, where those have names.

    `failure`: nobody could say what it is worth, and why. Such an episode is `void`, and teaches nothing to anybody,
    unless the operator has it count as `reward`.
    """

    reward: float
    failure: str = ""
    void: bool = False
    cut_off: bool = False
    parts: Parts = ()


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The policy reads `tokens` next, after what it said, and says something again.

    `digest` of what was answered, before it became tokens; empty where whoever answers depends on what was said alone.
    """

    tokens: tuple[int, ...]
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """Nobody was asked: who said it has left in the middle of its turn, which another goes on with."""


Reply = Ended | Answered

Heard = Reply | Unfinished
"""What came back to a record."""

Said = tuple[tuple[int, ...], ...]
"""The tokens that the policy generated, turn by turn."""

Environment = Callable[[int, Said, int], Reply]
"""(index of the prompt, what the policy said up to now, tokens of the transcript with that) -> reply. Pure."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What an environment is asked: what comes back to the last of `said`, in a transcript of so many tokens with that.

    `digests` of what was answered to all but the last of `said`; none where it answers by what was said alone. `read`:
    what the policy has read in answer already, if it has: any other answer is a failure.
    """

    index: int
    said: Said
    transcript: int
    digests: tuple[str, ...] = ()
    read: tuple[int, ...] | None = None


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


AskOne = Callable[[Question], Reply]
"""The same for one question, asked from a thread that waits."""

Ask = Callable[[Sequence[Question]], Awaitable[Sequence[Reply]]]
"""What comes back to what was said, in order: asked of an environment, wherever that is."""
