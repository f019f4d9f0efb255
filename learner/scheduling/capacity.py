"""Compute how many rollouts of which version may be leased, and until when they can be used.

A pure core. Batches are formed oldest version first, and a rollout of version v can be used up to the batch that is
trained on at version v + S. This is an earliest-deadline-first queue, and a lease is a promise of it.

If groups that teach nothing are dropped (`learner.rollouts.buffer`), a leased rollout counts for the share that is
usually kept, so that leasing makes up for the others. With S = 0 it counts in full: rollouts beyond the batch would be
wasted, and dropped ones are leased again once that is known. If a task has turns, an episode takes its room from the
lease of its first turn until it is trained on, at the age of the oldest tokens of its group. So later turns take none.

Versions are counted by the training step that made them; times are milliseconds on the learner's clock.

Invariants, for all that is leased within `room` and `due`:

- Before a version is too old, as many batches are formed as are needed by all that is leased or waits of that version
  or an older one. This is the condition of earliest deadline first, with which a lease displaces nothing.
- No more is leased or waits than `pace`: a rollout that is made too early is made with an older policy than necessary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from learner.provisioning.model.capacity import Supply
from learner.provisioning.model.expected_lag import batches_ahead
from learner.rollouts.buffer import Buffer
from learner.rollouts.episodes import Episodes
from learner.rollouts.open_leases import Leasing
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.versions.staleness import Chain


@dataclass(frozen=True, kw_only=True)
class Tempo:
    """The measured tempo of the swarm; 0 or empty before it was measured.

    `train_s`: seconds of a training step. `supply`: rollouts that all active peers deliver within a time, if all begin
    at once. `generation_s`: mean seconds that they take for what they ask for, with all turns.
    """

    train_s: float = 0.0
    generation_s: float = 0.0
    supply: Supply = field(default_factory=lambda: Supply([]))


@dataclass(kw_only=True)
class LeaseCapacity:
    """The room for leases in the batches to come.

    Args:
        window: S, in training steps.
        batch: R, in rollouts.
        ahead: batches leased or waiting at most; None: by Little's law from what was measured (`pace`).
        steps: the last training step; 0 while it is not known.
        manifests: published versions that may still be admissible.
        collecting: the learner's version when the batch now collected will be trained on.
        busy: true from the time when a batch is taken until its version, if that is to be published, is out.
        busy_since_ms: when that batch was taken.
    """

    window: int
    batch: int
    chain: Chain
    buffer: Buffer
    leasing: Leasing
    episodes: Episodes = field(default_factory=Episodes)
    ahead: float | None = None
    tempo: Tempo = Tempo()
    steps: int = 0
    manifests: dict[PolicyVersion, ManifestHash] = field(default_factory=dict)
    collecting: int = 0
    busy: bool = False
    busy_since_ms: int = 0

    @property
    def pace(self) -> int:
        """Rollouts that may be leased or wait now: no more than the steps to come will train on (`batches_ahead`)."""
        pace = self.batch * self._ahead()
        return round(min(pace, (self.steps - self.collecting) * self.batch) if self.steps else pace)

    def _ahead(self) -> float:
        if self.ahead is not None:
            return self.ahead
        if self.window == 0:
            return 1.0
        tempo = self.tempo
        if tempo.train_s <= 0 or tempo.supply.rate <= 0:
            return 2.0
        return batches_ahead(self.window, generation_s=tempo.generation_s, train_s=tempo.train_s)

    @property
    def minimum(self) -> PolicyVersion:
        """The oldest version whose rollouts the next batch may hold: a published one, or else one to come."""
        coming = PolicyVersion(self.chain.head.incarnation, self.oldest)
        return next(iter(self.versions(None)), coming)

    @property
    def oldest(self) -> int:
        """The training step of the oldest version whose rollouts the next batch may hold."""
        return max(0, self.collecting - self.window)

    @property
    def next_chain(self) -> Chain:
        """The chain when the next batch is formed: `collecting` is the head, or the step after it while that is
        trained."""
        return self.chain if self.collecting <= self.chain.head.version else self.chain.advance()

    def versions(self, installed: PolicyVersion | None) -> list[PolicyVersion]:
        """Return the versions that a lease may ask for, oldest first: what the peer has, and what was published since.

        A lease says "or newer", and to a peer a version that a restart cut off is newer than all before it.
        """
        cut_off = max((v for v in self.manifests if not self.chain.contains(v)), default=PolicyVersion(0, 0))
        oldest = self.collecting - self.window
        least = max(cut_off, installed or cut_off)
        return sorted(
            v
            for v in self.manifests
            if v.version >= oldest and (v > least or v == installed) and v > cut_off and self.chain.contains(v)
        )

    def room(self) -> int:
        """Return how many rollouts may be leased now."""
        under_way = self.leasing.open_rollouts + len(self.episodes)
        return math.floor((self.pace - len(self.buffer) - self.buffer.held) / self.kept) - under_way

    @property
    def kept(self) -> float:
        """The share of a leased rollout that is expected to be kept; exactly 1 if nothing is dropped for teaching
        nothing."""
        return self.buffer.kept if self.window else 1.0

    def due(self, minimum: PolicyVersion) -> int:
        """Return how many rollouts of that version may still be leased, so that all that is leased or waits is used in
        time.

        Up to the batch at version x + S, (x + S - collecting + 1) R rollouts are trained on. That is the limit for
        version x and those before it, for every x from this version on. It can bind only for an x that has rollouts of
        its own, so only these are looked at. A peer that claims to begin with version 2^50 must not make us count up to
        that.
        """
        kept, leased = self.kept, self.leasing.by_version
        waiting = self.buffer.by_version
        if self.buffer.held:
            waiting = waiting + self.buffer.held_by_version
        if self.episodes:
            leased = leased + self.episodes.by_version
        counts = {version: kept * leased[version] + waiting[version] for version in leased.keys() | waiting.keys()}
        total = sum(number for version, number in counts.items() if version < minimum.version)
        least = math.inf
        for version in sorted({minimum.version, *(one for one in counts if one > minimum.version)}):
            total += counts.get(version, 0)
            least = min(least, (version + self.window - self.collecting + 1) * self.batch - total)
        return math.floor(least / kept)

    @property
    def _there(self) -> float:
        """Rollouts that wait, are held, or will come of those that are leased."""
        made = self.leasing.open_rollouts + len(self.episodes) - self.episodes.stuck
        return len(self.buffer) + self.buffer.held + self.kept * made

    @property
    def short(self) -> float:
        """Rollouts that no peer makes yet while the learner waits for them."""
        return 0.0 if self.busy else max(0.0, self.batch - self._there)

    def window_s(self, rate: float, minimum: PolicyVersion, start_ms: float, now_ms: int) -> float:
        """Return for how many seconds after `start_ms` rollouts of that version, by a peer of this rate, are still in
        time."""
        tempo = self.tempo
        if tempo.train_s <= 0:
            return math.inf
        batches = minimum.version + self.window - self.collecting  # batches that may be formed before
        next_ms = max(now_ms, self.busy_since_ms + 1000 * tempo.train_s) if self.busy else now_ms
        until_ms = next_ms + 1000 * tempo.train_s * batches
        if self.short:
            return math.inf  # a peer that makes what no peer makes yet is in time
        # No batch is formed before its rollouts are there, however quickly the others make them.
        missing = (batches + 1) * self.batch - self._there
        if missing > 0:
            others = 1 - rate / tempo.supply.rate if tempo.supply.rate > rate else 0.0
            to_make = missing / self.kept
            until_ms = max(until_ms, now_ms + 1000 * tempo.supply.time(to_make / others) if others else math.inf)
        return (until_ms - start_ms) / 1000
