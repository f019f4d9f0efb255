"""Which prompt is leased next: of the few that the task gives next one by a keyed function; a slow peer has the
shortest.

Where it is known how long completions will be, prompts are chosen in the same way, and go into a window first: as many
as may be leased now, at most a batch. Out of it they are taken by that length, those with the longest completions
first, and for a slow peer those with the shortest; the next window is begun when it is empty. So what is trained on is
the same, in another order within a batch.

A pure core. What always holds: the task's order may be known to everybody, so nobody but the learner knows which of
them comes, and asking at the right moment does not choose it (who seems slow can tell that it is short, and with a
window everybody can tell about how long it will be); a prompt that takes long to write is waited for, so that being
ready does not choose either; what is taken and not leased is among the next few again; what a restart finds leased or
judged is passed over once.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from learner.rollouts.open_leases import Prompt

PROMPTS_AHEAD = 8
"""One of so many is taken. A restart goes on with the others as they were at its checkpoint."""

MOST_WINDOW = 256
"""Prompts in a window at most; so many begin long before the last of them, and their texts take memory."""

WINDOW_TOKENS = 1 << 20
"""Token ids in a window, after which it is full."""


@dataclass(kw_only=True)
class Prompts:
    """See the module's paragraph. `draw` gives the task's next, None while that is being written; `key`: bytes that
    only the learner knows; `length` says how long the completions of a prompt will be, over what is usual."""

    draw: Callable[[], Prompt | None]
    key: bytes
    length: Callable[[Prompt], float] = lambda prompt: 1.0
    ahead: list[Prompt] = field(default_factory=list)
    window: list[tuple[float, Prompt]] = field(default_factory=list)
    """What is taken next, the longest first, each with how long it was thought to be when the window was full."""
    _filling: list[Prompt] = field(default_factory=list)
    _wanted: int = 0
    _place: int = 0
    _chosen_at: int | None = 0
    """Where among the next few it was that was taken last, if out of no window."""
    _given: set[int] = field(default_factory=set)

    def take(
        self,
        *,
        short: bool,
        together: Callable[[], int] = lambda: 1,
        place: Callable[[Sequence[float]], int] = lambda lengths: 0,
    ) -> Prompt | None:
        """One of the next few; for a slow peer the shortest of them. None while one of them is being written.

        `together` says how many prompts are in a window that begins; with 1 there is none. `place` says which of a
        window it is, by the lengths of what is left there, the longest first.
        """
        if not self.window and not self._fill(together, short=short):
            return None
        left = [length for length, _ in self.window]
        self._place = len(left) - 1 if short else place(left) if len(left) > 1 else 0
        return self.window.pop(self._place)[1]

    def put_back(self, prompt: Prompt) -> None:
        """It was taken last and not leased: it is the next one's who is as fast."""
        if self._chosen_at is None:
            self.window.insert(self._place, (self.length(prompt), prompt))
        else:
            self.ahead.insert(self._chosen_at, prompt)

    @property
    def unleased(self) -> list[int]:
        """Indexes of prompts that were drawn and not leased, as a restart is to draw them."""
        return [prompt.index for prompt in (*(prompt for _, prompt in self.window), *self._filling, *self.ahead)]

    def _fill(self, together: Callable[[], int], *, short: bool) -> bool:
        """Begin a window, or go on with one; whether it is full."""
        self._wanted = self._wanted or min(max(1, together()), MOST_WINDOW)
        while len(self._filling) < self._wanted and sum(len(one.tokens) for one in self._filling) < WINDOW_TOKENS:
            if (chosen := self._choose(short=short and self._wanted == 1)) is None:
                return False
            self._filling.append(chosen)
        if self._wanted > 1:
            self._chosen_at = None
        # Those that are alike stay in the order in which they were chosen.
        self.window = sorted(((self.length(one), one) for one in self._filling), key=lambda one: -one[0])
        self._filling, self._wanted = [], 0
        return True

    def _choose(self, *, short: bool) -> Prompt | None:
        """One of the next few by the key; if `short`, one of the shortest prompts among them."""
        while len(self.ahead) < PROMPTS_AHEAD:
            if (fresh := self._fresh()) is None:
                return None
            self.ahead.append(fresh)
        shortest = min(len(prompt.tokens) for prompt in self.ahead)
        among = [place for place, prompt in enumerate(self.ahead) if not short or len(prompt.tokens) == shortest]
        self._chosen_at = among[self._number % len(among)]
        return self.ahead.pop(self._chosen_at)

    def recover(self, given: Iterable[int]) -> None:
        """`draw` is where it was some time ago; these, by their indexes, were leased since, or are under way."""
        self._given = set(given)
        self.ahead.clear()
        self.window.clear()
        self._filling.clear()
        self._wanted = 0

    @property
    def _number(self) -> int:
        """64 bits of HMAC-SHA256(key, the index that was drawn last): others whenever a prompt was drawn."""
        return int.from_bytes(hmac.digest(self.key, str(self.ahead[-1].index).encode(), "sha256")[:8], "big")

    def _fresh(self) -> Prompt | None:
        """The next prompt, but for those that are under way since before a restart, each passed over once."""
        while (prompt := self.draw()) is not None and prompt.index in self._given:
            self._given.discard(prompt.index)
        return prompt
