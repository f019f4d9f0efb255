"""Define the interface between episodes and tasks: what an environment is asked, and what it replies.

Tasks live in the node. Each question carries all that the policy said, and digests of the replies. An environment that
is still running goes on; one that is gone is replayed. Most environments depend only on what was said and always reply
the same; their digests are empty. A task of one turn is an environment that ends every episode at once.

Invariants:

- The transcript holds everything that the policy read. The learner remembers nothing else of an environment.
- If a replayed environment replies differently, the episode ends without a reward; this is a returned value, not an
  exception.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from learner.rollouts.reward_parts import Parts
from protocol.core.limits import MAX_PROMPT_TOKENS

MAX_TURNS = 64
"""Each turn costs a lease, a round trip and a row in the ledger. Sokoban and poker take up to 30 turns."""

MAX_EPISODE_TOKENS = MAX_PROMPT_TOKENS
"""The transcript so far is the prompt of the next lease, so it has the same limit."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The episode is over. `reward` is its return, for everything that was said in it. `cut_off`: the last turn had no
    tokens left, or the limits allow no further turn though one was to follow. `parts`: the named rewards that make up
    `reward`, if there are any.

    `failure`: why the reward could not be computed. Such an episode is `void` and is not trained on, unless the
    operator lets it count as `reward`.
    """

    reward: float
    failure: str = ""
    void: bool = False
    cut_off: bool = False
    parts: Parts = ()


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The policy reads `tokens` next, after what it said, and takes another turn.

    `digest` of the reply before it became tokens; empty if the environment depends only on what was said.
    """

    tokens: tuple[int, ...]
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """No environment was asked: the peer left in the middle of its turn, and another peer finishes it."""


Reply = Ended | Answered

Heard = Reply | Unfinished
"""The reply to a record."""

Said = tuple[tuple[int, ...], ...]
"""The tokens that the policy generated, turn by turn."""

Environment = Callable[[int, Said, int], Reply]
"""(index of the prompt, what the policy has said, tokens of the transcript including that) -> reply. Pure."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question to an environment: its reply to the last turn in `said`. The transcript including that turn has
    `transcript` tokens.

    `digests`: of the replies to all earlier turns; empty if the environment depends only on what was said. `read`: the
    reply that the policy has read already, if it has; then any other reply is a failure.
    """

    index: int
    said: Said
    transcript: int
    digests: tuple[str, ...] = ()
    read: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """How far an episode may go: `turns`, and `tokens` of prompt, completions and replies together. A turn needs
    `turn_tokens`; it is not begun if fewer are left."""

    turns: int = 1
    tokens: int = MAX_EPISODE_TOKENS
    turn_tokens: int = 1

    def allow(self, turns: int, transcript: int) -> bool:
        """Return whether another turn may begin after `turns` turns, with a transcript of so many tokens."""
        return turns < self.turns and transcript + self.turn_tokens <= self.tokens


ONE_TURN = EpisodeLimits()


AskOne = Callable[[Question], Reply]
"""Ask one question from a thread that waits for the reply."""

Ask = Callable[[Sequence[Question]], Awaitable[Sequence[Reply]]]
"""Return the replies to several questions in order; the environment may be anywhere."""
