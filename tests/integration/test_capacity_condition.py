"""Check the theorem of docs/explain/provisioning.md, "Ours", against rollouts counted one slice of time after the
other.

The count shares nothing with the model. Rollouts come in whole numbers per slice, and delays and training steps last
whole numbers of slices, so every answer is exact. A peer delivers version m from its delay after m's publication until
its delay after the next one's. Batches take the oldest rollouts first, and none older than S. Leases have no limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from learner.provisioning.model.capacity import Clockwork, Supplier
from tests.support.capacity_condition import never_waits
from tests.support.examples import examples

Peers = tuple[tuple[int, int], ...]
"""Rollouts per slice, and slices from a publication until the first rollout of that version comes."""


@dataclass(frozen=True, kw_only=True)
class Swarm:
    """A learner and its peers. `train` is T_train in slices."""

    staleness: int
    kappa: int
    train: int
    peers: Peers

    def is_said_to_suffice(self, rollouts: int) -> bool:
        """Return whether the model says that batches of so many rollouts are always there in time."""
        clock = Clockwork(train_s=self.train, rollouts=rollouts, staleness=self.staleness, kappa=self.kappa)
        return never_waits(clock, [Supplier(rate=r, broadcast_s=d, generation_s=0.0) for r, d in self.peers])

    def most(self) -> int:
        """Return the largest batch that the model says is always there in time; 0 if even one rollout is not."""
        rollouts = 0
        while self.is_said_to_suffice(rollouts + 1):
            rollouts += 1
        return rollouts


@dataclass(kw_only=True)
class Run:
    """A learner and its peers, in slices. `published`: time and version; `stock`: rollouts that wait, by version."""

    swarm: Swarm
    rollouts: int
    published: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    stock: dict[int, int] = field(default_factory=dict)
    now: int = 0

    def pass_slice(self) -> None:
        for rate, delay in self.swarm.peers:
            made = [version for at, version in self.published if at + delay <= self.now]
            if made:
                self.stock[made[-1]] = self.stock.get(made[-1], 0) + rate
        self.now += 1

    def take_batch(self, step: int) -> bool:
        """Take a batch and return True; return False, and take nothing, if there are too few rollouts."""
        self.stock = {version: n for version, n in self.stock.items() if n and version >= step - self.swarm.staleness}
        if sum(self.stock.values()) < self.rollouts:
            return False
        missing = self.rollouts
        for version in sorted(self.stock):
            taken = min(missing, self.stock[version])
            self.stock[version] -= taken
            missing -= taken
        return True

    def train(self, step: int) -> None:
        for _ in range(self.swarm.train):
            self.pass_slice()
        if (step + 1) % self.swarm.kappa == 0:
            self.published = [*self.published[-2 * self.swarm.staleness - 4 :], (self.now, step + 1)]


def first_short(swarm: Swarm, rollouts: int) -> int | None:
    """Return the first step whose batch is not there in time, or None. The start has all rollouts of version 0 that are
    useful.

    While no step waits, the rollouts that wait after a publication are at most those after the one before, and are a
    whole number. So their number stays the same from some time on, or runs short.
    """
    # As many rollouts as all batches take that may hold version 0.
    run = Run(swarm=swarm, rollouts=rollouts, stock={0: (swarm.staleness + 1) * rollouts})
    before: dict[int, int] | None = None
    for step in range(100_000):
        if not run.take_batch(step):
            return step
        # By then every peer delivers a version after 0, and no rollout of version 0 is left.
        if step > 2 * swarm.staleness + swarm.kappa + 1 and step % swarm.kappa == 0:
            waits = {version - step: n for version, n in run.stock.items() if n}
            if waits == before:
                return None
            before = waits
        run.train(step)
    raise AssertionError("neither short nor settled")


def waits(swarm: Swarm, rollouts: int, steps: int) -> list[int]:
    """Return how long each step waits, in slices, when there is nothing at the start."""
    run, waited = Run(swarm=swarm, rollouts=rollouts), []
    for step in range(steps):
        due = run.now
        while not run.take_batch(step):
            run.pass_slice()
        waited.append(run.now - due)
        run.train(step)
    return waited


@st.composite
def swarms(draw: st.DrawFn) -> Swarm:
    """Draw delays up to a step beyond the window; every other peer is useful for a part of each period only."""
    staleness = draw(st.integers(1, 6))
    kappa, train = draw(st.integers(1, staleness)), draw(st.integers(1, 6))
    any_delay = st.integers(0, (staleness + 1) * train)
    partly = st.integers((staleness - kappa) * train, staleness * train)
    peer = st.tuples(st.integers(1, 9), any_delay) | st.tuples(st.integers(1, 40), partly)
    peers = draw(st.lists(peer, min_size=1, max_size=4))
    return Swarm(staleness=staleness, kappa=kappa, train=train, peers=tuple(peers))


LUMP = Swarm(staleness=4, kappa=2, train=1, peers=((1, 0), (4, 3)))
"""The second peer's rollouts of version m come in time only in the step before batch m + 4. They are four, and a batch
of three leaves one over. Yet there are enough on average, and for each stretch of steps."""


@settings(deadline=None, max_examples=examples(400))
@given(swarms())
@example(LUMP)
@example(replace(LUMP, peers=((1, 0), (7, 3))))
def test_the_learner_never_waits_exactly_where_the_model_says_so(swarm: Swarm) -> None:
    most = swarm.most()
    assert most == 0 or first_short(swarm, most) is None
    assert first_short(swarm, most + 1) is not None


def test_what_comes_at_once_and_is_too_old_after_one_batch_does_not_fill_the_others() -> None:
    assert first_short(LUMP, 3) == 7
    assert LUMP.most() == 2


@settings(deadline=None, max_examples=examples(200))
@given(swarms())
def test_who_starts_with_nothing_waits_for_no_batch_after_the_first_window(swarm: Swarm) -> None:
    most = swarm.most()
    assume(most > 0)
    assert not any(waits(swarm, most, steps=12 * (swarm.staleness + 1))[swarm.staleness + 1 :])


@given(swarms())
def test_a_shorter_period_asks_for_no_more(swarm: Swarm) -> None:
    assert swarm.kappa == 1 or replace(swarm, kappa=swarm.kappa - 1).most() >= swarm.most()


@given(swarms())
def test_with_the_same_slack_a_period_of_one_asks_for_the_most(swarm: Swarm) -> None:
    slack = swarm.staleness - swarm.kappa
    assert swarm.most() >= replace(swarm, staleness=slack + 1, kappa=1).most()
