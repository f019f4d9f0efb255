"""Run rollout nodes for tests: real connections and roles over a network in memory, and invented tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import trio

from node.engine.fake import FakeConfig, open_fake_engine
from node.learner_role.shared.signals import connect_peers
from node.rollout_role.proof_client import ProofKeeper, tally_in
from node.rollout_role.session_events import session_event_handler
from node.rollout_role.worker import RolloutWorker
from node.runtime.events import EventLog
from node.state.receipts import Receipts
from protocol.core.ids import PolicyVersion
from protocol.work import LEASE_RECALLS, PARTS, PROOFS, Heartbeat
from swarm.transfer.serving import Knowledge, Serving
from swarm.versions.follower import Arrival
from swarm.work.client import WorkClient
from swarm.work.server import WorkServer
from tests.support.learner_fixture import Learner
from tests.support.swarm_fixture import SwarmNode, hello_from, key_of
from tests.support.trainer_fixture import NOW_MS, SWARM


def ignore(*told: object) -> None:
    pass


def serve(learner: Learner) -> WorkServer:
    """Have the learner answer questions, send chunks, and accept work streams, as `node.learner_role.app` does."""
    Serving(
        transport=learner.transport,
        store=learner.store,
        knowledge=Knowledge(genesis=SWARM.genesis, newest=lambda: learner.run.announcement, peers=list),
        report=ignore,
        trouble=ignore,
    ).start()
    server = WorkServer(transport=learner.transport, desk=learner.sessions, inbox=learner.inbox)
    connect_peers(learner.context.signals, server)
    server.start()
    return server


async def work_with(
    node: SwarmNode,
    learner: Learner,
    root: Path,
    seconds_per_token: float = 0.0,
    on_role: Callable[[RolloutWorker, EventLog], None] = ignore,
    *,
    keeps_proofs: bool = False,
    tally_held: Callable[[PolicyVersion], bytes | None] | None = None,
) -> None:
    """Play the rollout role, as `node.rollout_role.app` wires it, until cancelled. `on_role` is called with it."""
    events = EventLog()
    understood = {LEASE_RECALLS: b"", PARTS: b""} | ({PROOFS: b""} if keeps_proofs else {})
    work_client = WorkClient(
        transport=node.transport,
        authority=SWARM.authority,
        learner=learner.transport.addresses(),
        hello=lambda: hello_from(node.name, leases=sorted(role.holding), ext=understood),
        heartbeat=lambda: Heartbeat(
            installed=role.installed,
            tokens_per_s=role.counts.tokens_per_s or 0.0,
            hours_left_s=role.shift.left_s,
            troubles=role.retry_policy.troubles,
        ),
        now_ms=lambda: NOW_MS,
        on_event=session_event_handler(events, ignore, lambda recall: role.recall(recall), ignore),
        report=ignore,
        on_proofs=lambda: keeper.look(),
    )
    with closing(Receipts(root / "receipts.sqlite")) as receipts:  # closed after all loops that write to it
        async with (
            open_fake_engine(FakeConfig(seconds_per_token=seconds_per_token)) as engine,
            trio.open_nursery() as nursery,
        ):
            role = RolloutWorker(
                engine=engine,
                store=node.store,
                keypair=key_of(node.name),
                swarm=SWARM.authority.swarm,
                work_client=work_client,
                receipts=receipts,
                in_flight=lambda: None,
                batch_rollouts=4,
                now_ms=lambda: NOW_MS,
                events=events,
            )
            keeper = ProofKeeper(
                work_client=work_client,
                receipts=receipts,
                authority=SWARM.authority,
                peer=node.peer,
                tally_held=tally_held or partial(tally_in, node.store),
                events=events,
            )
            on_role(role, events)
            arrive(node, role)
            nursery.start_soon(work_client.run)
            if keeps_proofs:
                nursery.start_soon(keeper.run)
            await role.run()


def arrive(node: SwarmNode, role: RolloutWorker) -> None:
    """Give the role the versions that have arrived and those that will."""

    def arrived(arrival: Arrival) -> None:
        node.arrivals.append(arrival)
        role.arrive(arrival)

    for arrival in node.arrivals:
        role.arrive(arrival)
    node.following.on_arrival = arrived
