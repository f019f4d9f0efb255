"""Which prompt is leased next: of the few that the task gives next one by a keyed function; a slow peer has the
shortest.

A pure core. What always holds: the task's order may be known to everybody, so nobody but the learner knows which of
them comes, and asking at the right moment does not choose it (who seems slow can tell that it is short); a prompt that
takes long to write is waited for, so that being ready does not choose either; what is taken and not leased is among the
next few again; what a restart finds leased or judged is passed over once.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from learner.rollouts.open_leases import Prompt

PROMPTS_AHEAD = 8
"""One of so many is taken. A restart forgets the others, of which an epoch has many."""


@dataclass(kw_only=True)
class Prompts:
    """See the module's paragraph. `draw` gives the task's next, None while that is being written; `key`: bytes that
    only the learner knows."""

    draw: Callable[[], Prompt | None]
    key: bytes
    ahead: list[Prompt] = field(default_factory=list)
    _place: int = 0
    _given: set[int] = field(default_factory=set)

    def take(self, *, short: bool) -> Prompt | None:
        """One of the next few; for a slow peer the shortest of them. None while one of them is being written."""
        while len(self.ahead) < PROMPTS_AHEAD:
            if (fresh := self._fresh()) is None:
                return None
            self.ahead.append(fresh)
        shortest = min(len(prompt.tokens) for prompt in self.ahead)
        among = [place for place, prompt in enumerate(self.ahead) if not short or len(prompt.tokens) == shortest]
        self._place = among[self._number % len(among)]
        return self.ahead.pop(self._place)

    def put_back(self, prompt: Prompt) -> None:
        """It was taken last and not leased: it is the next one's who is as fast."""
        self.ahead.insert(self._place, prompt)

    def recover(self, given: Iterable[int]) -> None:
        """`draw` is where it was some time ago; these, by their indexes, were leased since, or are under way."""
        self._given = set(given)
        self.ahead.clear()

    @property
    def _number(self) -> int:
        """64 bits of HMAC-SHA256(key, the index that was drawn last): others whenever a prompt was drawn."""
        return int.from_bytes(hmac.digest(self.key, str(self.ahead[-1].index).encode(), "sha256")[:8], "big")

    def _fresh(self) -> Prompt | None:
        """The next prompt, but for those that are under way since before a restart, each passed over once."""
        while (prompt := self.draw()) is not None and prompt.index in self._given:
            self._given.discard(prompt.index)
        return prompt
