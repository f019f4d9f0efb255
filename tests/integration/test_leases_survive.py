"""Leases keep their holder and their content through everything that peers, connections and learners do.

A literal model of which peer holds which lease is compared with the sessions, the ledger and every grant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.work import Delivery, Lease, LeaseRequest, LeaseReturn, Span, Started, open_lease, open_receipt
from tests.support.examples import examples
from tests.support.learner_fixture import Learner, Settings, fast_directory, hand_in, hello, open_learner
from tests.support.trainer_fixture import OTHER, PEER, SWARM, record

KEYS = {key.peer_id: key for key in (PEER, OTHER)}
PEERS = tuple(KEYS)

OPERATIONS = st.tuples(
    st.sampled_from(["ask", "ask", "begin", "deliver", "return", "forget", "forget", "line", "wait", "write", "kill"]),
    st.sampled_from(PEERS),
    st.integers(0, 7),
)
HISTORIES = st.lists(OPERATIONS, min_size=4, max_size=30)


@dataclass
class Model:
    """The expected state. `said`: each lease as it was first granted. `held`: the leases that each peer remembers.
    `lost`: those that it was granted and has forgotten. `begun`: the version that the ledger must know.
    """

    said: dict[LeaseId, Lease] = field(default_factory=dict)
    held: dict[PeerId, list[LeaseId]] = field(default_factory=lambda: {peer: [] for peer in PEERS})
    lost: dict[PeerId, set[LeaseId]] = field(default_factory=lambda: {peer: set() for peer in PEERS})
    begun: dict[LeaseId, PolicyVersion] = field(default_factory=dict)
    unwritten: set[LeaseId] = field(default_factory=set)

    def end(self, peer: PeerId, lease: LeaseId) -> None:
        self.held[peer].remove(lease)

    @property
    def open(self) -> set[LeaseId]:
        return {lease for where in (self.held, self.lost) for leases in where.values() for lease in leases}


@dataclass
class World:
    """One learner's process after another, on one state directory."""

    learner: Learner
    model: Model

    async def do(self, what: str, peer: PeerId, number: int) -> None:
        held = self.model.held[peer]
        match what:
            case "ask":
                await self.ask(peer, 1 + number)
            case "begin" if held:
                lease = held[number % len(held)]
                made_by = self.learner.capacity.chain.head
                self.learner.sessions.take_start(peer, Started(lease=lease, version=made_by))
                if lease not in self.model.begun:
                    self.model.begun[lease] = made_by
                    self.model.unwritten.add(lease)
            case "deliver" if held:
                await self.deliver(peer, held[number % len(held)])
            case "return" if held:
                lease = held[number % len(held)]
                self.learner.sessions.take_return(peer, LeaseReturn(leases=[lease], reason="the engine is lost"))
                self.model.end(peer, lease)
            case "forget":
                remembered = [lease for place, lease in enumerate(held) if number >> (place % 3) & 1]
                for lease in set(held) - set(remembered):
                    self.model.lost[peer].add(lease)
                self.model.held[peer] = remembered
                await self.come_back(peer)
            case "line":
                self.learner.sessions.note_departure(peer, "the connection was reset")
                await self.come_back(peer)
            case "write":
                self.learner.sessions.write_rest()
                self.model.unwritten.clear()

    async def come_back(self, peer: PeerId) -> None:
        await self.learner.sessions.welcome(peer, hello(leases=self.model.held[peer]))

    async def ask(self, peer: PeerId, rollouts: int) -> None:
        grant = await self.learner.sessions.grant(peer, LeaseRequest(rollouts=rollouts))
        leases = [open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id) for raw in grant.leases]
        again = [LeaseId(lease.id) for lease in leases if lease.id in self.model.said]
        assert again or not self.model.lost[peer], "before any other"
        for lease in leases:
            self.take(peer, lease)

    def take(self, peer: PeerId, lease: Lease) -> None:
        known = LeaseId(lease.id)
        assert lease.peer == peer
        if known in self.model.said:
            assert known in self.model.lost[peer], "only a peer's own lost lease may be granted again"
            assert lease == self.model.said[known], "prompt, seeds or deadline differ"
            self.model.lost[peer].remove(known)
            self.model.begun.pop(known, None)
            self.model.unwritten.add(known)
        else:
            seeds = {seed for other in self.model.said.values() for seed in other.seeds}
            assert not seeds & set(lease.seeds)
            self.model.said[known] = lease
        self.model.held[peer].append(known)

    async def deliver(self, peer: PeerId, lease: LeaseId) -> None:
        said, run = self.model.said[lease], self.learner.run
        assert run.published is not None
        spans = [Span(0, 3, run.published.version, run.published.hash)]
        records = [
            record(said, index, author=KEYS[peer], tokens=(1 + seed % 60, 2, 0), spans=spans)
            for index, seed in enumerate(said.seeds)
        ]
        answer = await hand_in(self.learner, peer, Delivery(lease=lease, records=records))
        receipt = open_receipt(answer.receipt, SWARM.authority)
        assert all(verdict.admitted for verdict in receipt.verdicts), receipt.verdicts
        self.model.end(peer, lease)

    def check(self) -> None:
        assert set(self.learner.capacity.leasing.open) == self.model.open
        for peer in PEERS:
            mine = [*self.model.held[peer], *self.model.lost[peer]]
            assert self.learner.capacity.leasing.pending(peer) == sum(len(self.model.said[one].seeds) for one in mine)


async def live(root: Path, operations: list[tuple[str, PeerId, int]]) -> None:
    """Do all operations, with a new process after every kill."""
    model, rest = Model(), list(operations)
    while True:
        async with (
            open_learner(root, Settings(prompts=4, ahead=8.0, steps=99)) as learner,
            trio.open_nursery() as tasks,
        ):
            learner.sessions.recover_leases()
            recovered = {row.lease: row.started for row in learner.ledger.work.open_leases()}
            for lease, begun in recovered.items():
                if lease not in model.unwritten:
                    assert begun == model.begun.get(lease)
            model.begun = {lease: begun for lease, begun in recovered.items() if begun is not None}
            model.unwritten.clear()
            await learner.training.begin()
            tasks.start_soon(learner.intake.run, learner.arriving)
            tasks.start_soon(learner.sessions.leases.run)
            world = World(learner, model)
            for peer in PEERS:
                await world.come_back(peer)
            while rest and (operation := rest.pop(0))[0] != "kill":
                await world.do(*operation)
                world.check()
            learner.sessions.leases.write()  # a write that was due a moment later is never done
            if not rest:
                tasks.cancel_scope.cancel()
                return
            returned = {row.lease for row in learner.ledger.work.open_leases()} - model.open
            tasks.cancel_scope.cancel()
        revive(model, returned)


def revive(model: Model, leases: set[LeaseId]) -> None:
    """Give leases back to their peers, which do not remember them: the ledger had no entry of their return."""
    for lease in leases:
        model.lost[PeerId(model.said[lease].peer)].add(lease)


def live_through(operations: list[tuple[str, PeerId, int]]) -> None:
    with fast_directory() as root:
        trio.run(live, root, operations, clock=MockClock(autojump_threshold=0))


def test_what_two_lost_comes_back_to_each_after_the_learner_was_killed() -> None:
    one, other = PEERS
    lost = [("ask", one, 3), ("ask", other, 3), ("begin", one, 0), ("write", one, 0), ("kill", one, 0)]
    live_through([*lost, ("forget", one, 0), ("forget", other, 1), ("ask", other, 7), ("ask", one, 7)])


@settings(max_examples=15, deadline=None)
@given(HISTORIES)
def test_a_lease_is_its_peers_and_says_the_same_whatever_is_lost(operations: list[tuple[str, PeerId, int]]) -> None:
    live_through(operations)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(HISTORIES)
def test_a_lease_survives_many_histories(operations: list[tuple[str, PeerId, int]]) -> None:
    live_through(operations)
