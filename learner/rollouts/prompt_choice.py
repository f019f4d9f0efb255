"""Choose the prompt of the next lease: one of the task's next few by a keyed function; for a slow peer the shortest.

If the lengths of completions can be predicted, the chosen prompts go into a window first: as many as may be leased now,
at most a batch. From the window they are taken by predicted length: the longest completions first, for a slow peer the
shortest. The next window begins when this one is empty. So the same prompts are trained on, in another order within a
batch.

A pure core. The task's order may be known to everybody, hence the key.

Invariants:

- Only the learner knows which of the next few prompts comes, and asking at a certain moment does not choose it. A peer
  that seems slow can tell that its prompt is short; with a window everybody can tell roughly how long it will be.
- A prompt that takes long to write is waited for, so that being ready does not choose either.
- A prompt that was taken and not leased is among the next few again.
- After a restart, prompts that were leased or judged already are skipped once.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from learner.rollouts.open_leases import Prompt

PROMPTS_AHEAD = 8
"""The next prompt is chosen among this many. A restart resumes with the others as they were at its checkpoint."""

MOST_WINDOW = 256
"""Maximum number of prompts in a window: with so many, the first begin long before the last, and texts take memory."""

WINDOW_TOKENS = 1 << 20
"""Number of token ids in a window from which on it is full."""


@dataclass(kw_only=True)
class Prompts:
    """The task's next prompts. `draw` returns the next one, or None while it is being written. `key`: bytes that only
    the learner knows. `length` predicts the length of a prompt's completions, as a multiple of the usual length."""

    draw: Callable[[], Prompt | None]
    key: bytes
    length: Callable[[Prompt], float] = lambda prompt: 1.0
    ahead: list[Prompt] = field(default_factory=list)
    window: list[tuple[float, Prompt]] = field(default_factory=list)
    """The prompts to take next, the longest first, each with the length predicted when the window was filled."""
    _filling: list[Prompt] = field(default_factory=list)
    _wanted: int = 0
    _place: int = 0
    _chosen_at: int | None = 0
    """Place among the next few of the prompt that was taken last; None if it came from a window."""
    _given: set[int] = field(default_factory=set)

    def take(
        self,
        *,
        short: bool,
        together: Callable[[], int] = lambda: 1,
        place: Callable[[Sequence[float]], int] = lambda lengths: 0,
    ) -> Prompt | None:
        """Return one of the next few prompts, or the shortest of them for a slow peer; None while one is being written.

        Args:
            short: whether the peer is slow.
            together: returns how many prompts a new window has; 1 means no window.
            place: returns the place to take from a window, given the lengths of the prompts left, the longest first.
        """
        if not self.window and not self._fill(together, short=short):
            return None
        left = [length for length, _ in self.window]
        self._place = len(left) - 1 if short else place(left) if len(left) > 1 else 0
        return self.window.pop(self._place)[1]

    def put_back(self, prompt: Prompt) -> None:
        """Put back the prompt that was taken last and not leased; the next peer of similar speed gets it."""
        if self._chosen_at is None:
            self.window.insert(self._place, (self.length(prompt), prompt))
        else:
            self.ahead.insert(self._chosen_at, prompt)

    @property
    def unleased(self) -> list[int]:
        """Indexes of prompts that were drawn and not leased, in the order in which a restart must draw them."""
        return [prompt.index for prompt in (*(prompt for _, prompt in self.window), *self._filling, *self.ahead)]

    def _fill(self, together: Callable[[], int], *, short: bool) -> bool:
        """Begin or continue to fill a window. Return whether it is full."""
        self._wanted = self._wanted or min(max(1, together()), MOST_WINDOW)
        while len(self._filling) < self._wanted and sum(len(one.tokens) for one in self._filling) < WINDOW_TOKENS:
            if (chosen := self._choose(short=short and self._wanted == 1)) is None:
                return False
            self._filling.append(chosen)
        if self._wanted > 1:
            self._chosen_at = None
        # A stable sort: prompts of equal length stay in the order in which they were chosen.
        self.window = sorted(((self.length(one), one) for one in self._filling), key=lambda one: -one[0])
        self._filling, self._wanted = [], 0
        return True

    def _choose(self, *, short: bool) -> Prompt | None:
        """Return one of the next few by the key; if `short`, one of the shortest prompts among them."""
        while len(self.ahead) < PROMPTS_AHEAD:
            if (fresh := self._fresh()) is None:
                return None
            self.ahead.append(fresh)
        shortest = min(len(prompt.tokens) for prompt in self.ahead)
        among = [place for place, prompt in enumerate(self.ahead) if not short or len(prompt.tokens) == shortest]
        self._chosen_at = among[self._number % len(among)]
        return self.ahead.pop(self._chosen_at)

    def recover(self, given: Iterable[int]) -> None:
        """Start again where `draw` was some time ago; the prompts `given`, by index, are leased or judged already."""
        self._given = set(given)
        self.ahead.clear()
        self.window.clear()
        self._filling.clear()
        self._wanted = 0

    @property
    def _number(self) -> int:
        """64 bits of HMAC-SHA256(key, index of the prompt drawn last): they change with every draw."""
        return int.from_bytes(hmac.digest(self.key, str(self.ahead[-1].index).encode(), "sha256")[:8], "big")

    def _fresh(self) -> Prompt | None:
        """Return the next prompt; skip once each prompt that was leased before a restart."""
        while (prompt := self.draw()) is not None and prompt.index in self._given:
            self._given.discard(prompt.index)
        return prompt
