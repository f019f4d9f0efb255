"""Which prompt is leased next: as a task gives them, but that a slow peer is given a short one.

A pure core. What always holds: prompts that are looked at and not leased stay the next ones'; what a restart finds
leased or judged is passed over once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from learner.leasing import Prompt

PROMPTS_AHEAD = 8
"""So many are looked at for a short one. A restart forgets those that were, of which an epoch has many."""


@dataclass(kw_only=True)
class Prompts:
    """See the module's paragraph. `draw` gives the task's next."""

    draw: Callable[[], Prompt]
    ahead: deque[Prompt] = field(default_factory=deque)
    _given: set[int] = field(default_factory=set)

    def take(self, *, short: bool) -> Prompt:
        """The next prompt; for a slow peer the shortest of the next few."""
        while len(self.ahead) < (PROMPTS_AHEAD if short else 1):
            self.ahead.append(self._fresh())
        if not short:
            return self.ahead.popleft()
        shortest = min(self.ahead, key=lambda prompt: len(prompt.tokens))
        self.ahead.remove(shortest)
        return shortest

    def put_back(self, prompt: Prompt) -> None:
        """It was taken and not leased: it is the next one's."""
        self.ahead.appendleft(prompt)

    def recover(self, given: Iterable[int]) -> None:
        """`draw` is where it was some time ago; these, by their indexes, were leased since, or are under way."""
        self._given = set(given)
        self.ahead.clear()

    def _fresh(self) -> Prompt:
        """The next prompt, but for those that are under way since before a restart, each passed over once."""
        while (prompt := self.draw()).index in self._given:
            self._given.discard(prompt.index)
        return prompt
