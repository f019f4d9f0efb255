"""Choose the notices of a learner from its events.

A pure core: the state is what was told already, and the time is an argument.

Invariants:

- Nodes that cannot work are told when that begins, when it becomes all of them, and when it is over. The nodes' own
  texts change at will, and a change of text alone is no notice.
- A certificate that ends is told at most once a day, and its renewal only after that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from node.notices.notice import Notice, Sentence, make_notice
from node.runtime.events import Fields

DAY_MS = 86_400_000

SENTENCES: Mapping[str, Sentence] = {
    "alarm_raised": Sentence("alarm", "ALARM {alarm}", "At step {step}: {text}", True),
    "alarm_cleared": Sentence("alarm", "{alarm} is over", "At step {step}: {text}"),
    "peer_banned": Sentence("ban", "a peer is banned", "{peer}: {reason}. To undo: volery pardon {peer}"),
    "standing_still": Sentence("standstill", "no training step", "{text}", True),
    "nodes_unable": Sentence("nodes", "nodes cannot work", "{text}"),
    "nodes_able": Sentence("nodes", "all nodes can work again", "Nodes here: {of}."),
    "certificate_ends": Sentence("certificate", "the certificate ends", "{text}", True),
    "certificate_renewed": Sentence("certificate", "the certificate was renewed", "It is valid until {until}."),
    "checkpoint_failed": Sentence(
        "trouble", "a checkpoint could not be written", "{reason} The next version tries again. ({directory})", True
    ),
    "trainer_restarted": Sentence(
        "trouble", "the trainer restarts", "It ended: {reason}. It continues from the newest checkpoint."
    ),
    "child_abandoned": Sentence(
        "trouble", "the {child} process is not started again", "It died too often. The event child_died says why.", True
    ),
    "ledger_restored": Sentence("trouble", "the ledger is an older copy", "{text}", True),
    "trouble": Sentence("trouble", "trouble", "{text}"),
    "finished": Sentence("end", "finished", "All {steps} training steps are done."),
    "stopped": Sentence("end", "stopped", "Somebody stopped the learner. It continues when it is started again."),
    "failed": Sentence("end", "ended with an error", "{text}", True),
}
"""The notice of each event. `stopped` and `failed` are no events of the log: `notifying` has them."""


@dataclass(kw_only=True)
class LearnerNotices:
    """Which events become notices. `source` names the swarm, `kinds` has those that are wanted."""

    source: str
    kinds: Collection[str]
    _everyone_unable: bool | None = None
    """Whether it was told that no node can work, or that some cannot. None: that all can."""
    _certificate_ms: float = field(default=-math.inf)

    def handle(self, event: str, fields: Fields, now_ms: int) -> Notice | None:
        """Return the notice of an event; None if it has none now."""
        said = SENTENCES.get(event)
        if said is None or said.kind not in self.kinds or not self._is_news(event, fields, now_ms):
            return None
        urgent = True if event == "nodes_unable" and fields.get("everyone") else None
        return make_notice(said, event, fields, source=self.source, at_ms=now_ms, is_urgent=urgent)

    def _is_news(self, event: str, fields: Fields, now_ms: int) -> bool:
        match event:
            case "nodes_unable" | "nodes_able":
                before = self._everyone_unable
                self._everyone_unable = bool(fields.get("everyone")) if event == "nodes_unable" else None
                return self._everyone_unable != before
            case "certificate_ends":
                if now_ms - self._certificate_ms < DAY_MS:
                    return False
                self._certificate_ms = now_ms
            case "certificate_renewed":
                was_told, self._certificate_ms = self._certificate_ms > -math.inf, -math.inf
                return was_told
        return True
