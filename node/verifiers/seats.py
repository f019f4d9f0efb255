"""Which verifier is asked about an episode: the one where its environment is alive, else the one that is least busy.

A pure core. What always holds: at most `at_once` questions are with a verifier at a time; whoever's environment is at a
verifier waits for a seat there, since another would have to be made and told all that was said; a verifier that is away
is not waited for. What is known of environments is a hint, and bounded: where it is wrong, the verifier that is asked
makes one anew.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from node.tasks.environments.question import EpisodeQuestion

MAX_HOMES = 65_536
"""States of environments of which it is remembered where they are: ten megabytes. More are hardly alive anywhere."""


@dataclass(kw_only=True)
class Seats:
    """See the module's paragraph. Verifiers are known by name."""

    at_once: int
    _taken: Counter[str] = field(default_factory=Counter)
    _placed: Counter[str] = field(default_factory=Counter)
    """Questions that had no home: of two that have as much to do, the one with fewer environments is asked."""
    _homes: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def take(self, question: EpisodeQuestion, there: Collection[str]) -> str | None:
        """Take a seat at one of those that are there, and return whose; None: wait until one is left, then ask again.

        Whoever asks the same meanwhile goes there, too: one environment answers both.
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
        """One question is no longer there."""
        self._taken[name] -= 1

    def answered(self, question: EpisodeQuestion, digest: str, name: str) -> None:
        """The verifier has an environment that answered so; "" if the episode is over."""
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
