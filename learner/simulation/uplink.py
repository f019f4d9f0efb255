"""Simulate the learner's uplink: it sends one version at a time, and skips versions that were overtaken meanwhile.

Invariants:

- If machines relay versions, all of them get a version at once, each as fast as its own connection allows.
- If they do not, the active ones get their own copies, one after the other, in a random order for each version.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from learner.simulation.trace import SOURCE
from protocol.core.ids import PolicyVersion

if TYPE_CHECKING:
    from learner.simulation.world import World


class Source:
    """The version that is being sent, and the one that waits."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random.Random(f"{world.seed}/source")
        self._sending: tuple[PolicyVersion, float] | None = None
        self._unsent: PolicyVersion | None = None
        self._copies_until_s = 0.0

    @property
    def newest(self) -> PolicyVersion | None:
        """The version that a machine that joins now can fetch."""
        return (
            self._sending[0]
            if self._sending is not None
            else max(self._world.workload.capacity.manifests, default=None)
        )

    def publish(self, version: PolicyVersion) -> None:
        """Send this version as soon as the current one is done. A version that waited until now is overtaken."""
        self._unsent = version
        self._send()

    def own_copy_s(self) -> float:
        """Return how long a machine that joins now waits for its own copy: 0 if machines relay versions."""
        if (copy_s := self._world.learning.copy_s) is None:
            return 0.0
        now_s = self._world.now_s
        self._copies_until_s = max(self._copies_until_s, now_s) + copy_s
        return self._copies_until_s - now_s

    def _send(self) -> None:
        if self._sending is not None or self._unsent is None:
            return
        world = self._world
        version, self._unsent = self._unsent, None
        self._sending = version, world.now_s
        if (copy_s := world.learning.copy_s) is None:
            world.after(world.learning.broadcast_s, self._sent)
            for node in world.nodes.values():
                node.send(version)
            return
        receivers = [node for node in world.nodes.values() if node.is_active]
        self._random.shuffle(receivers)
        self._copies_until_s = world.now_s + max(1, len(receivers)) * copy_s
        world.after(self._copies_until_s - world.now_s, self._sent)
        for place, node in enumerate(receivers, start=1):
            node.send(version, least_s=place * copy_s)

    def _sent(self) -> None:
        assert self._sending is not None
        version, since_s = self._sending
        self._world.mark(SOURCE, since_s, version.version)
        self._sending = None
        self._send()
