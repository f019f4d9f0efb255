"""What the loops of a learner share: the chain, the manifests, open leases, the buffer, who is here.

What always holds: only the trio thread touches it, so between two awaits it is consistent; whoever judges deliveries or
puts another chain and buffer in place holds `judging` meanwhile, so that no record is judged by a chain that is gone,
or put into a buffer that was recovered from a ledger which held it already; `changed` wakes whoever waits for leases to
become possible or a batch to be complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from learner.buffer import Buffer
from learner.leasing import Leasing
from protocol.ids import ManifestHash, PeerId, PolicyVersion
from protocol.manifest import SignedManifest
from protocol.staleness import Chain
from swarm.membership import Membership


@dataclass(kw_only=True)
class Presence:
    """One stay of a peer: its row in the ledger, its name, and what it moved and generated since it came."""

    row: int
    name: str
    addresses: tuple[str, ...]
    bytes_up: int = 0
    bytes_down: int = 0
    engine_s: float = 0.0


@dataclass(kw_only=True)
class LearnerRun:
    """See the module's paragraph.

    `window` is S; `batch` R in rollouts; `pace` bounds rollouts leased or waiting; `steps` is the last training step, 0
    while it is not known. `manifests` holds the published
    versions that may still be admissible. `collecting` is the learner's version when the batch now collected will be
    trained on; `busy` from when a batch is taken until the version it makes, if it is to be published, is out.
    `opened` is set once the chain is known, and so are the manifests; `vocab_size` from then on.
    """

    window: int
    batch: int
    pace: int
    chain: Chain
    buffer: Buffer
    leasing: Leasing
    membership: Membership
    manifests: dict[PolicyVersion, ManifestHash] = field(default_factory=dict)
    steps: int = 0
    published: SignedManifest | None = None
    present: dict[PeerId, Presence] = field(default_factory=dict)
    collecting: int = 0
    busy: bool = False
    finished: bool = False
    vocab_size: int = 0
    opened: trio.Event = field(default_factory=trio.Event)
    judging: trio.Lock = field(default_factory=trio.Lock)
    _changed: trio.Event = field(default_factory=trio.Event)

    def minimum_version(self) -> PolicyVersion | None:
        """The oldest version whose rollouts, begun now, will still be admissible when their turn comes.

        Their turn comes after the batches that are leased or wait already. None while there is no such version: it is
        about to be published, since then the learner is `busy`; when it is idle, anything that could be trained on at
        once is welcome. With S = 0 every rollout is exactly on-policy.
        """
        if self.published is None:
            return None
        oldest = self.collecting - self.window
        ahead = (len(self.buffer) + self.leasing.open_rollouts) // self.batch
        wanted = oldest + min(ahead, self.window)
        # A lease says "or newer", and to a peer a version that a restart cut off is newer than all before it.
        cut_off = max((v for v in self.manifests if not self.chain.contains(v)), default=PolicyVersion(0, 0))
        fresh = [v for v in self.manifests if v.version >= wanted and v > cut_off and self.chain.contains(v)]
        if fresh:
            return min(fresh)
        newest = self.published.version
        return newest if not self.busy and newest.version >= oldest else None

    def pace_left(self) -> int:
        """Rollouts that may be leased or wait now: no more than the steps to come will train on."""
        return min(self.pace, (self.steps - self.collecting) * self.batch) if self.steps else self.pace

    def notify(self) -> None:
        """Something changed that others wait for."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait_changed(self) -> None:
        """Return after the next `notify`."""
        await self._changed.wait()
