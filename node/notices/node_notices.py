"""Choose the notices of a rollout node from its events.

A pure core: the state is what was told already, and the time is an argument.

Invariants:

- A learner that cannot be reached is told after AWAY_MS, not at once: connections break, and learners restart. That it
  is back is told only after that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from node.notices.notice import Notice, Sentence, make_notice
from node.runtime.events import Fields

AWAY_MS = 600_000
"""Milliseconds without the learner before its owner is told: a restart with a large model takes minutes."""

SENTENCES: Mapping[str, Sentence] = {
    "learner_unreachable": Sentence(
        "trouble", "no connection to the learner", "For {minutes} minutes: {reason}. The node keeps trying.", True
    ),
    "turned_away": Sentence(
        "trouble", "the learner sends this node away", "For {minutes} minutes: {reason}. The node keeps trying.", True
    ),
    "joined": Sentence("trouble", "connected to the learner again", "The node is at work."),
    "install_failed": Sentence(
        "trouble", "version {version} could not be installed", "{reason}. It is tried again: {again}.", True
    ),
    "child_abandoned": Sentence(
        "trouble", "the {child} process is not started again", "It died too often. The event child_died says why.", True
    ),
    "trouble": Sentence("trouble", "trouble", "{text}"),
    "ended": Sentence("end", "the node has ended", "{text}"),
    "failed": Sentence("end", "the node ended with an error", "{text}", True),
}
"""The notice of each event. `ended` and `failed` are no events of the log: `notifying` has them."""


@dataclass(kw_only=True)
class NodeNotices:
    """Which events become notices. `source` names the node and the swarm, `kinds` has those that are wanted."""

    source: str
    kinds: Collection[str]
    _away_ms: int | None = None
    """When the connection to the learner was lost."""
    _is_told: bool = False

    def handle(self, event: str, fields: Fields, now_ms: int) -> Notice | None:
        """Return the notice of an event; None if it has none now."""
        said = SENTENCES.get(event)
        if said is None or not self._is_news(event, now_ms) or said.kind not in self.kinds:
            return None
        if "{minutes}" in said.text and self._away_ms is not None:
            fields = {**fields, "minutes": (now_ms - self._away_ms) // 60_000}
        return make_notice(said, event, fields, source=self.source, at_ms=now_ms)

    def _is_news(self, event: str, now_ms: int) -> bool:
        match event:
            case "learner_unreachable" | "turned_away":
                if self._away_ms is None:
                    self._away_ms = now_ms
                if self._is_told or now_ms - self._away_ms < AWAY_MS:
                    return False
                self._is_told = True
            case "joined":
                was_told, self._away_ms, self._is_told = self._is_told, None, False
                return was_told
        return True
