"""A chunk that one node relays to another: from its transfer to its credit in the ledger, over a network in memory."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio

from learner.provisioning.estimation.recording import Installed, Joined
from protocol.versions import exchange
from swarm.testing.memory_transport import MemoryNetwork, Transfer
from tests.support.learner_fixture import Settings, hello, open_learner
from tests.support.rollout_fixture import serve, work_with
from tests.support.swarm_fixture import open_node
from tests.support.trainer_fixture import SWARM

SETTINGS = Settings(steps=3, staleness=3)


async def deaf(transfer: Transfer) -> bytes:
    """Do not let the learner's HAVE messages arrive, so that chunks must come from another node."""
    if transfer.protocol == exchange.EXCHANGE:
        await trio.sleep_forever()
    return transfer.data


async def test_who_passed_a_version_on_is_credited_when_it_was_worked_with(tmp_path: Path) -> None:
    network = MemoryNetwork()
    async with (
        open_learner(tmp_path, SETTINGS, network=network) as learner,
        open_node(network, SWARM, tmp_path, "relay", follows=True) as relay,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        network.set_fault(learner.transport.peer_id, worker.peer, deaf)
        await learner.sessions.welcome(relay.peer, hello())
        await relay.transport.dial(learner.transport.addresses())
        await worker.dial(relay)
        nursery.start_soon(work_with, worker, learner, tmp_path)
        await learner.train()
        nursery.cancel_scope.cancel()
        assert learner.capacity.chain.head.version == SETTINGS.steps
        first = worker.arrivals[0].signed
        taken = {one.signed.hash: sum(one.obtained.fetched.by_peer.values()) for one in worker.arrivals}
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        rows = db.execute("SELECT manifest, receiver, relay, bytes FROM relayed").fetchall()
    assert {(receiver, giver) for _, receiver, giver, _ in rows} == {(worker.peer, relay.peer)}
    credited = {manifest: size for manifest, _, _, size in rows}
    assert len(credited) == len(rows)
    assert credited[first.hash] == first.manifest.total_bytes, "the whole first version must come from the relay"
    assert credited.items() <= taken.items()


async def test_an_installation_and_the_first_trial_are_heard_of_at_once(tmp_path: Path) -> None:
    network, on_policy = MemoryNetwork(), Settings(steps=3, staleness=0, ahead=1.0)  # so every version is installed
    async with (
        open_learner(tmp_path, on_policy, network=network) as learner,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        learner.sessions.heartbeat_s = 500.0  # so any message that arrives was sent out of turn
        nursery.start_soon(work_with, worker, learner, tmp_path, 0.001)
        await learner.train()
        nursery.cancel_scope.cancel()
    events = learner.recorded()
    installed = [event.version for event in events if isinstance(event, Installed)]
    assert list(dict.fromkeys(installed))[:3] == [0, 1, 2]
    claims = [event.rate for event in events if isinstance(event, Joined) and event.peer == worker.peer]
    assert claims[0] == 0
    assert claims[-1] == pytest.approx(4 / 0.001 / 4)  # tokens per second of 4 at a time, for completions of 4 tokens
