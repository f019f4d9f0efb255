"""Decide how many rollouts to lease to each peer and which policy version they must use.

A pure core. Requests are served in their order. Peers on standby are not served. Versions are counted by the training
step that made them; times are milliseconds on the learner's clock.

A leased rollout may still become hopeless, since peers and connections are slower than they were. A lease that no batch
still to be formed can hold is recalled, and no longer counted on.

If a task has turns, rollouts are episodes. Each later turn is leased before new prompts are, the oldest group's first,
with a version no older than that group's. After that it is leased to peers that would have to wait for such a version.
A group that no batch can hold is given up. The same holds for the rest of a lease that was returned in part.
Completions that were begun go to peers that say they continue them. If no such peer is here for PARTS_WAIT_MS, their
groups are given up, so that they take no room from others.

If it is known how long completions will be (`learner.scheduling.completion_lengths`), the prompts of a batch are leased
longest first. Each goes to a peer that has it done when all are done (`learner.scheduling.longest_first`), and the work
that a peer was given counts in its speed.

Invariants, for every lease that is granted:

- There is room for it among the batches to come, of its version (`learner.scheduling.capacity`).
- By the peer's known speed, it arrives before that version is too old. Otherwise it is made smaller, or waits for a
  newer version. While the learner waits for rollouts that no peer makes yet, any peer may make them.
- It is done before the hours end in which the peer's owner lends the machine. Otherwise it is made smaller, or not
  granted.
- A peer that is not trusted yet has no more than its quota under way: leased, or held until its audit.
- One peer has no more leased, held or waiting than its share of the total (`peer_share`), or an equal share if that is
  larger. Rollouts that the learner waits for while no peer makes them are excepted.
- A peer that returned, let expire or lost too many leases without a record, or had too many deliveries rejected, is
  leased one group at a time, and more and more rarely (`learner.scheduling.lease_backoff`).
"""

from __future__ import annotations

import hmac
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from learner.monitoring.fruitless_leases import End, Fruitless
from learner.provisioning.model.capacity import Supply
from learner.rollouts.admission import GrantedLease
from learner.rollouts.episodes import Episodes, GivenUp
from learner.rollouts.open_leases import Frame, Prompt
from learner.rollouts.prompt_choice import Prompts
from learner.scheduling.capacity import LeaseCapacity, Tempo
from learner.scheduling.completion_lengths import CompletionLengths
from learner.scheduling.lease_backoff import LeaseDebts
from learner.scheduling.longest_first import Busy, NextBatch, window_of
from learner.scheduling.peer_load import Held, Together, Worker
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.versions.staleness import Admissibility, judge

SMALLEST_GROUP = 2
"""A group-relative advantage needs two rollouts, so a lease is cut down to this size for a slow peer, and not
further."""

LATE_MARGIN = 1.25
"""Factor on the usual time of a peer: nine of ten leases measured in simulations took less."""

MAX_ROLLOUTS = 1 << 16
"""Limit of one request in the protocol, so here it means no limit."""

PARTS_WAIT_MS = 60_000
"""How long work that other peers began waits for a peer that continues it. A node that is started again is back within
that time, and a batch waits no longer for a peer that is not there."""

TOGETHER_MS = 250
"""Leases that are begun within this time are generated together."""


@dataclass(kw_only=True)
class LeaseScheduler:
    """The scheduler of one learner.

    `next_prompt` returns the task's next prompt, None while that is being written. `peer_share` limits the share of one
    peer; 1 means no limit. `lengths` predicts the lengths of completions; None leases prompts in their order.
    """

    capacity: LeaseCapacity
    next_prompt: Callable[[], Prompt | None]
    peer_share: float = 1.0
    lengths: CompletionLengths | None = None
    workers: dict[PeerId, Worker] = field(default_factory=dict)
    lacks_prompts: bool = False
    """Whether the last request that had room was cut short because the next prompts were still being written."""
    debts: LeaseDebts = field(default_factory=LeaseDebts)
    fruitless: Fruitless = field(default_factory=Fruitless)
    _asks: dict[PeerId, int] = field(default_factory=dict)
    _nobody_since_ms: int | None = None
    """Since when no peer is here that continues what others began, while some of that waits."""
    _together: dict[LeaseId, Together] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._prompts = Prompts(
            draw=lambda: self.next_prompt(),
            key=hmac.digest(self.capacity.leasing.secret, b"prompts", "sha256"),
            length=self._length,
        )

    # Peers

    def worker(self, peer: PeerId) -> Worker:
        """Return the peer, as a newcomer if it is not known."""
        return self.workers.setdefault(peer, Worker())

    def forget(self, peer: PeerId) -> None:
        """Forget a peer that is gone, and its request."""
        self.workers.pop(peer, None)
        self._asks.pop(peer, None)

    def started(self, peer: PeerId, lease: LeaseId, version: PolicyVersion, now_ms: int) -> bool:
        """Record that the peer generates `lease` with `version`; return whether that is the first report on it."""
        if not self.capacity.leasing.started(lease, peer, version):
            return False
        worker = self.worker(peer)
        if worker.newest is None or now_ms - worker.newest.began_ms > TOGETHER_MS:
            worker.newest = Together(began_ms=now_ms)
        self._together[lease] = together = worker.newest
        granted = self.capacity.leasing.open[lease]
        together.rollouts += len(granted.lease.seeds)
        together.longest = max(together.longest, self._length_of(granted))
        together.left += 1
        return True

    def delivered(
        self,
        peer: PeerId,
        lease: LeaseId,
        now_ms: int,
        used: PolicyVersion | None = None,
        *,
        is_whole: bool = True,
    ) -> None:
        """Record that the peer's lease was judged. This updates when it will be free, and, for a whole lease, its
        speed. The newest version in the admitted part is `used`, which shows what the peer has."""
        together = self._together.pop(lease, None)
        if together is not None:
            together.left -= 1
        if (worker := self.workers.get(peer)) is None:
            return
        worker.used = max((version for version in (worker.used, used) if version is not None), default=None)
        if is_whole and together is not None and together.left == 0 and now_ms >= together.began_ms:
            # If the clock was set back meanwhile, the time says nothing.
            worker.speed.observe(together.rollouts, together.usual_s(now_ms))
        self._see_free(peer, worker, now_ms)

    def returned(self, peer: PeerId, leases: Iterable[LeaseId], now_ms: int) -> list[GrantedLease]:
        """Withdraw those of `leases` that are open and the peer's own, since it will not deliver them; return them."""
        named = list(dict.fromkeys(leases))
        recalled = self.capacity.leasing.recalled.keys() & named
        back = self._withdrawn(self.capacity.leasing.return_leases(peer, named))
        self._brought_nothing(peer, sum(granted.id not in recalled for granted in back), End.RETURNED, now_ms)
        if (worker := self.workers.get(peer)) is not None:
            self._see_free(peer, worker, now_ms)
        return back

    def returned_begun(self, peer: PeerId, now_ms: int, *, was_recalled: bool) -> None:
        """Record that the peer's lease was judged, and that the peer will not finish it. The peer owes one, as for any
        that it returns; else one token of each lease would free it of its debts. But the lease was not fruitless."""
        self.debts.brought_nothing(peer, 0 if was_recalled else 1, now_ms)
        self.fruitless.brought()

    def release(self, peer: PeerId, now_ms: int) -> list[GrantedLease]:
        """Withdraw all leases of a peer that is gone; return them."""
        recalled = set(self.capacity.leasing.recalled)
        released = self._withdrawn(self.capacity.leasing.release(peer))
        self._brought_nothing(peer, sum(granted.id not in recalled for granted in released), End.LOST, now_ms)
        return released

    def expire(self, now_ms: int, grace_ms: int) -> list[GrantedLease]:
        """Withdraw leases whose deadline passed more than `grace_ms` ago, and from which nothing has arrived; return
        them."""
        recalled = set(self.capacity.leasing.recalled)
        expired = self._withdrawn(self.capacity.leasing.expire(now_ms, grace_ms))
        by_peer = Counter(granted.peer for granted in expired if granted.id not in recalled)
        for peer, leases in by_peer.items():
            self._brought_nothing(peer, leases, End.EXPIRED, now_ms)
        return expired

    def give_up_begun(self, now_ms: int) -> int:
        """Give up the groups with completions that others began, if no peer that continues them has been here for
        PARTS_WAIT_MS; return how many."""
        goes_on = any(one.takes_parts and not one.standby for one in self.workers.values())
        if goes_on or not any(one.start for one in self.capacity.episodes.waiting()):
            self._nobody_since_ms = None
            return 0
        if self._nobody_since_ms is None:
            self._nobody_since_ms = now_ms
        if now_ms - self._nobody_since_ms < PARTS_WAIT_MS:
            return 0
        return self._give_up(self.capacity.episodes.give_up_begun())

    def judged_lease(self, peer: PeerId, *, is_admitted: bool, owed: int = 0, now_ms: int) -> None:
        """Record the verdict on a lease: whether a record of it was admitted. If not, the peer owes `owed` leases: 0 if
        the learner recalled it or spoilt it by a restart, BLAMED if a rule blames the peer."""
        if is_admitted:
            self.debts.brought(peer)
            self.fruitless.brought()
        else:
            self.debts.brought_nothing(peer, owed, now_ms)
            self.fruitless.ended(End.REJECTED, 1, now_ms)

    def learn_length(self, granted: GrantedLease, lengths: Sequence[int]) -> None:
        """Learn from an admitted group of that lease, with the tokens of its completions. A part of a group teaches
        nothing, since the short completions are done first."""
        if self.lengths is not None and granted.place is None and len(lengths) == len(granted.lease.seeds):
            self.lengths.observe(granted.prompt_index, lengths, len(granted.lease.prompt) // 4)

    def _brought_nothing(self, peer: PeerId, leases: int, how: End, now_ms: int) -> None:
        self.debts.brought_nothing(peer, leases, now_ms)
        self.fruitless.ended(how, leases, now_ms)

    def grant_again(self, granted: GrantedLease) -> None:
        """Grant an open lease once more to its peer, which has lost it."""
        self._parted(granted)
        self.capacity.leasing.grant_again(granted)

    def can_still(self, peer: PeerId, leases: Sequence[GrantedLease], now_ms: int) -> bool:
        """Return whether the peer, by what is known, delivers these leases before the first of their deadlines if it
        begins now."""
        rollouts = sum(len(granted.lease.seeds) for granted in leases)
        takes_ms = 1000 * LATE_MARGIN * self.worker(peer).speed.seconds(rollouts)
        return now_ms + takes_ms < min(granted.deadline_ms for granted in leases)

    def _withdrawn(self, leases: list[GrantedLease]) -> list[GrantedLease]:
        """Stop waiting for these leases to measure their peers' speed, and let the episodes that they would have
        continued wait for another peer."""
        for granted in leases:
            self.capacity.episodes.lost(granted)
            self._parted(granted)
        return leases

    def _parted(self, granted: GrantedLease) -> None:
        """Remove a lease that will not be delivered from those that it was begun together with."""
        if (together := self._together.pop(granted.id, None)) is not None:
            together.left -= 1

    def recall(self, now_ms: int, only: LeaseId | None = None) -> list[GrantedLease]:
        """Recall the leases that have become hopeless, or one of them if it has; return those that were not recalled
        before.

        A lease is hopeless if it was begun with a version that is stale or orphaned when the next batch is formed, or
        would be if it were begun now. That is final, unless a training step fails and is taken back. Groups with such
        tokens are hopeless as well: they are given up, and the loss of what is under way for them is the learner's
        alone.
        """
        if only is not None:
            looked_at = [self.capacity.leasing.open[only]] if only in self.capacity.leasing.open else []
        elif (
            not self.give_up()
            and len(self.capacity.chain.bases) == 1
            and min(self.capacity.leasing.by_version, default=math.inf) >= self.capacity.oldest
        ):
            return []  # the usual case: nothing was cut off, and all versions are new enough
        else:
            looked_at = list(self.capacity.leasing.open.values())
        hopeless = list(self._hopeless(looked_at))
        begun: dict[tuple[PeerId, int], Together] = {}
        for granted in hopeless:
            self.capacity.leasing.recall(granted.id)
            if (together := self._together.get(granted.id)) is not None:
                begun[granted.peer, together.began_ms] = together
        for (peer, _), together in begun.items():  # else a peer that is slower than it seems would never be noticed
            self.worker(peer).speed.outlasts(together.rollouts, together.usual_s(now_ms))
        return hopeless

    def give_up(self) -> bool:
        """Give up the groups of episodes that the next batch cannot hold; return whether there were any."""
        return self._give_up(self.capacity.episodes.give_up(self.capacity.next_chain, self.capacity.window)) > 0

    def _give_up(self, ended: Sequence[GivenUp]) -> int:
        for group in ended:
            self.capacity.buffer.give_up(group.root, group.reason, group.episodes)
        return len(ended)

    def take_up(self, episodes: Episodes) -> list[GrantedLease]:
        """Continue these episodes, rebuilt after a restart, and their turns that are leased.

        Return the leases that were withdrawn because their turn is over, or was leased again later.
        """
        self.capacity.episodes, doubled = episodes, []
        for granted in sorted(self.capacity.leasing.open.values(), key=lambda one: one.lease.issued_ms, reverse=True):
            if not episodes.leased(granted):
                doubled += self._withdrawn(self.capacity.leasing.return_leases(granted.peer, [granted.id]))
        self.give_up()
        return doubled

    def _hopeless(self, leases: Iterable[GrantedLease]) -> Iterator[GrantedLease]:
        """Yield those that were not recalled and that the next batch cannot hold."""
        chain = self.capacity.next_chain
        fates: dict[PolicyVersion, Admissibility] = {}
        for granted in leases:
            if granted.id in self.capacity.leasing.recalled:
                continue
            worker = self.workers.get(granted.peer)
            version = self.capacity.leasing.made_with(granted, worker.has if worker else None)
            if version is None:
                continue
            if version not in fates:
                fates[version] = judge(chain, [version], self.capacity.window)
            if fates[version] in (Admissibility.STALE, Admissibility.ORPHANED):
                yield granted

    def _see_free(self, peer: PeerId, worker: Worker, now_ms: int) -> None:
        pending = self.capacity.leasing.pending(peer)
        rest_s = worker.speed.seconds(pending) if pending else 0.0
        worker.free_ms = min(worker.free_ms, now_ms + 1000 * rest_s)

    def measure(self, train_s: float) -> None:
        """Measure how fast all active peers are; a training step takes `train_s` now."""
        group = self.capacity.leasing.terms.group_size
        known = [one for one in self.workers.values() if not one.standby and one.speed.is_known]
        turns = self.capacity.episodes.mean_turns
        rates = [one.speed.rate / turns for one in known]
        taken = [rate * one.speed.seconds(one.asked) * turns for rate, one in zip(rates, known, strict=True)]
        self.capacity.tempo = Tempo(
            train_s=train_s,
            generation_s=sum(taken) / total if (total := sum(rates)) else 0.0,
            supply=Supply((rate, one.speed.seconds(group) * turns) for rate, one in zip(rates, known, strict=True)),
        )

    # Requests

    def ask(self, peer: PeerId, rollouts: int) -> None:
        """Record that the peer is ready for up to `rollouts` more; its earlier request is void."""
        self._asks[peer] = self.worker(peer).asked = rollouts

    def withdraw(self, peer: PeerId) -> None:
        """Forget the peer's request, since it no longer waits for an answer."""
        self._asks.pop(peer, None)

    def serve(self, now_ms: int, only: PeerId | None = None) -> Iterator[tuple[PeerId, list[GrantedLease]]]:
        """Grant what can be granted now, in the order of the requests; each request that is answered is done.

        `only`: the one peer that has asked, or has installed a version. The others wait for something else: a batch
        taken, a version published, a lease lost, a prompt written.
        """
        for peer in list(self._asks) if only is None else [only]:
            if self.capacity.room() <= 0 and not self.capacity.episodes.waits:
                return
            if peer in self._asks and (leases := self._serve(peer, self._asks[peer], now_ms)):
                del self._asks[peer]
                yield peer, leases

    def held(self, peer: PeerId, now_ms: int) -> Held:
        """Return why the peer's request waits."""
        worker = self.workers.get(peer) or Worker()  # a peer that is gone by now stays forgotten
        if worker.standby:
            return Held.STANDBY
        if self._in_hours(worker, SMALLEST_GROUP, now_ms) < SMALLEST_GROUP:
            return Held.HOURS
        if self._left_of_debt(peer, now_ms) <= 0:
            return Held.DEBT
        if self._left_of_quota(peer, worker) < SMALLEST_GROUP:
            return Held.AUDIT
        if self._left_of_share(peer) < SMALLEST_GROUP:
            return Held.SHARE
        if self.capacity.room() <= 0:
            return Held.ROOM
        return Held.PROMPT if self.lacks_prompts else Held.VERSION

    def _serve(self, peer: PeerId, rollouts: int, now_ms: int) -> list[GrantedLease]:
        """Return leases for this request, none while it has to wait."""
        worker = self.worker(peer)
        if worker.standby:
            return []
        frame = Frame()
        rollouts = min(rollouts, self._left_of(peer, worker), self._left_of_debt(peer, now_ms))
        if rollouts < 1:
            return []
        if not self.capacity.episodes.waits:
            return self._begin(peer, worker, rollouts, frame, now_ms)
        granted = self._go_on(peer, worker, rollouts, frame, now_ms)
        rollouts -= sum(len(one.lease.seeds) for one in granted)
        if rollouts > 0:
            granted += self._begin(peer, worker, rollouts, frame, now_ms)
        return granted or self._go_on(peer, worker, rollouts, frame, now_ms, may_wait=True)

    def _go_on(
        self, peer: PeerId, worker: Worker, rollouts: int, frame: Frame, now_ms: int, *, may_wait: bool = False
    ) -> list[GrantedLease]:
        """Return later turns for this request, those of the oldest groups first. If it `may_wait`, include turns that
        need a newer version than the peer has; it would do nothing else until that is there."""
        granted: list[GrantedLease] = []
        most, taken = self._in_hours(worker, rollouts, now_ms, step=1), 0
        start_ms, versions = max(worker.free_ms, now_ms), self.capacity.versions(worker.has)
        for waiting in self.capacity.episodes.waiting():
            minimum = next((version for version in versions if version >= waiting.oldest), None)
            if taken >= most or minimum is None or not (may_wait or worker.has in (minimum, None)):
                break
            window_s = self.capacity.window_s(worker.speed.rate, waiting.oldest, start_ms, now_ms)
            left = max(1.0, self.capacity.episodes.mean_turns - waiting.place.turn)
            slots = worker.speed.within(window_s / LATE_MARGIN / left, most, 1) - taken
            if slots <= 0 or (waiting.start and not worker.takes_parts):
                continue  # a younger group has more time, or no other peer began it
            prompt, place = waiting.prompt, waiting.share(slots)
            if not frame.takes(prompt, len(place.slots)):
                break
            lease = self.capacity.leasing.grant(
                peer,
                prompt,
                minimum,
                now_ms,
                size=len(place.slots),
                place=place,
                seeds=waiting.seeds(place),
                start=waiting.start,
            )
            self.capacity.episodes.leased(lease)
            granted.append(lease)
            taken += len(place.slots)
        worker.free_ms = start_ms + 1000 * worker.speed.seconds(taken) if taken else worker.free_ms
        return granted

    def _begin(self, peer: PeerId, worker: Worker, rollouts: int, frame: Frame, now_ms: int) -> list[GrantedLease]:
        """Return new prompts for this request, none while it has to wait."""
        group, turns = self.capacity.leasing.terms.group_size, self.capacity.episodes.mean_turns
        if self.capacity.room() <= 0:
            return []
        most = min(math.ceil(rollouts / group) * group, self._left_of(peer, worker))
        wanted = self._in_hours(worker, most, now_ms)
        if wanted < SMALLEST_GROUP:
            return []
        for minimum in self.capacity.versions(worker.has):
            if self.capacity.due(minimum) <= 0:
                continue
            start_ms = max(worker.free_ms, now_ms)
            window_s = self.capacity.window_s(worker.speed.rate, minimum, start_ms, now_ms)
            count = worker.speed.within(window_s / LATE_MARGIN / turns, wanted, group)
            if count >= SMALLEST_GROUP:
                granted = self._grant(peer, minimum, count, count < wanted, frame, now_ms)
                taken = sum(len(one.lease.seeds) for one in granted)
                worker.free_ms = start_ms + 1000 * worker.speed.seconds(taken) if taken else start_ms
                return granted
        return []

    def _left_of(self, peer: PeerId, worker: Worker) -> int:
        """Return how many rollouts may be leased to the peer, given what it has under way or waiting."""
        return min(self._left_of_quota(peer, worker), self._left_of_share(peer))

    def _left_of_debt(self, peer: PeerId, now_ms: int) -> int:
        """Return how many rollouts may be leased to the peer, given what its leases brought: one group at a time if it
        owes."""
        if not self.debts.is_owing(peer):
            return MAX_ROLLOUTS
        is_free = self.capacity.leasing.pending(peer) == 0 and self.debts.wait_ms(peer, now_ms) == 0
        return self.capacity.leasing.terms.group_size if is_free else 0

    def _left_of_share(self, peer: PeerId) -> int:
        """Return how many rollouts may be leased to the peer until it has its share."""
        if self.peer_share >= 1:
            return MAX_ROLLOUTS
        active = sum(not worker.standby for worker in self.workers.values())
        share = max(self.peer_share, 1 / max(1, active))
        most = max(self.capacity.leasing.terms.group_size, math.ceil(share * self.capacity.pace))
        waiting = self.capacity.buffer.by_peer[peer] + self.capacity.buffer.held_by_peer[peer]
        left = math.floor((most - waiting) / self.capacity.kept) - self.capacity.leasing.pending(peer)
        return max(
            0, left, math.ceil(self.capacity.short / self.capacity.kept)
        )  # else a peer that delivers nothing could stop the learner

    def _left_of_quota(self, peer: PeerId, worker: Worker) -> int:
        """Return how many rollouts may be leased to the peer beside those that are leased or wait for their audit."""
        if worker.quota == math.inf:
            return MAX_ROLLOUTS
        return max(0, int(worker.quota) - self.capacity.leasing.pending(peer) - self.capacity.buffer.held_by_peer[peer])

    def _in_hours(self, worker: Worker, rollouts: int, now_ms: int, step: int | None = None) -> int:
        """Return how many of `rollouts` it makes before its owner's hours end, once it has done what it holds."""
        if worker.until_ms <= now_ms:
            return 0
        left_s = (worker.until_ms - max(worker.free_ms, now_ms)) / 1000
        return worker.speed.within(left_s / LATE_MARGIN, rollouts, step or self.capacity.leasing.terms.group_size)

    def _grant(
        self, peer: PeerId, minimum: PolicyVersion, count: int, slow: bool, frame: Frame, now_ms: int
    ) -> list[GrantedLease]:
        """Grant groups of `count` rollouts together, as far as pace, batches and a frame have room.

        If less than a group is left, the last one is smaller, so that no rollout is made beyond what is used. But no
        room is too small for a group; otherwise groups of odd sizes could leave a batch forever short of its last
        rollout.
        """
        granted: list[GrantedLease] = []
        group = self.capacity.leasing.terms.group_size
        batch = NextBatch(everybody=partial(self._everybody, peer, count, now_ms), group=group)
        while count >= SMALLEST_GROUP and not frame.is_full and self.capacity.room() > 0:
            if (due := self.capacity.due(minimum)) <= 0:
                break
            size = max(SMALLEST_GROUP, min(group, count, due))
            prompt = self._prompts.take(short=slow, together=self._together_now, place=batch.place)
            self.lacks_prompts = prompt is None
            if prompt is None:
                break
            if not frame.takes(prompt, size):
                self._prompts.put_back(prompt)
                break
            granted.append(self.capacity.leasing.grant(peer, prompt, minimum, now_ms, size=size))
            batch.chosen.append(self._length(prompt))
            count -= size
        return granted

    @property
    def unleased(self) -> list[int]:
        """Indexes of prompts that were taken from the task and not leased."""
        return self._prompts.unleased

    def _length(self, prompt: Prompt) -> float:
        """Return the length of a group's longest completion relative to the mean; 1 if that cannot be predicted."""
        return 1.0 if self.lengths is None else self.lengths.relative(prompt.index, len(prompt.tokens))

    def _length_of(self, granted: GrantedLease) -> float:
        """Return the same for a lease; 1 for later turns, which cannot be predicted."""
        if self.lengths is None or granted.place is not None:
            return 1.0
        return self.lengths.relative(granted.prompt_index, len(granted.lease.prompt) // 4)

    def _together_now(self) -> int:
        """Return how many prompts are leased longest first together from here on."""
        if self.lengths is None or not self.lengths.can_tell:
            return 1
        active = [worker for worker in self.workers.values() if not worker.standby]
        rates = [worker.speed.rate for worker in active if worker.speed.is_known]
        asked = sum(worker.asked for worker in active)
        return window_of(self.capacity.room(), self.capacity.leasing.terms.group_size, asked, rates)

    def _everybody(self, peer: PeerId, rollouts: int, now_ms: int) -> list[Busy]:
        """Return the active peers of known speed, first this peer, which is about to be leased `rollouts`; none if its
        speed is not known."""
        if not self.worker(peer).speed.is_known:
            return []
        others = (worker for other, worker in self.workers.items() if other != peer and not worker.standby)
        busy = [_busy(self.worker(peer), rollouts, now_ms)]
        return busy + [_busy(worker, worker.asked, now_ms) for worker in others if worker.speed.is_known]

    def recover_prompts(self, given: Iterable[int]) -> None:
        """Go on from an earlier state of `next_prompt`, which has since given these prompts, which were leased, and
        perhaps others that were not."""
        under_way = (granted.prompt_index for granted in self.capacity.leasing.open.values() if granted.place is None)
        self._prompts.recover({*given, *under_way})


def _busy(worker: Worker, rollouts: int, now_ms: int) -> Busy:
    """Return a peer whose next batch has this many rollouts."""
    free_s = max(0.0, worker.free_ms - now_ms) / 1000
    return Busy(free_s=free_s, rate=worker.speed.rate, batch_s=worker.speed.seconds(rollouts))
