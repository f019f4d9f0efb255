"""Decide which verifier to ask about an episode: the one where its environment is alive, else the least busy one.

A pure core. Its knowledge of environments is a hint, and bounded: if it is wrong, the verifier that is asked makes a
new environment.

Invariants:

- A verifier has at most `at_once` questions at a time.
- A question whose environment is at a verifier waits for a seat there. Elsewhere a new environment would have to be
  made, and to be told everything that was said.
- No question waits for a verifier that is away.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from node.tasks.environments.question import EpisodeQuestion

MAX_HOMES = 65_536
"""States of environments whose verifier is remembered: ten megabytes. More are hardly alive at a time."""


@dataclass(kw_only=True)
class Seats:
    """The seats at the verifiers, which are known by name."""

    at_once: int
    _taken: Counter[str] = field(default_factory=Counter)
    _placed: Counter[str] = field(default_factory=Counter)
    """By verifier: questions without a home that it got. If two are equally busy, the one with fewer is asked."""
    _homes: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def take(self, question: EpisodeQuestion, there: Collection[str]) -> str | None:
        """Take a seat at one of the verifiers `there`, and return its name. None: wait until one is left, then retry.

        The same question, if asked meanwhile, goes to the same verifier: one environment answers both.
        """
        for key in (question.key, question.key_before):
            if (home := self._homes.get(key)) in there and home is not None:
                return self._seated(question, home)
        free = min(there, key=lambda name: (self._taken[name], self._placed[name]), default=None)
        if free is None or (seat := self._seated(question, free)) is None:
            return None
        self._placed[seat] += 1
        return seat

    def leave(self, name: str) -> None:
        """Free the seat of one question."""
        self._taken[name] -= 1

    def answered(self, question: EpisodeQuestion, digest: str, name: str) -> None:
        """Note that the verifier has an environment that gave this answer. `digest` is "" if the episode is over."""
        if digest:
            self._remember(question.key_after(digest), name)

    def _seated(self, question: EpisodeQuestion, name: str) -> str | None:
        if self._taken[name] >= self.at_once:
            return None
        self._taken[name] += 1
        self._remember(question.key, name)
        return name

    def _remember(self, key: str, name: str) -> None:
        self._homes[key] = name
        self._homes.move_to_end(key)
        if len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)
