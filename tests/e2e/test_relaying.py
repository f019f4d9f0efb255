"""A version that one node passed on to another, from the chunks on the wire to the relay's credit in the report."""

from __future__ import annotations

import json

import psutil

from tests.e2e.ledger_rules import Run, check_ledger, check_receipts, peer_of
from tests.e2e.programs import Program, Swarm, stopped, wait_done, wait_event, wait_for

STEPS = 4
HEARTBEAT_S = 20.0
"""Four of them are longer than anybody here stands still."""


def test_who_passed_a_version_on_is_credited(swarm: Swarm) -> None:
    """The receiver stands still while the version is published, and the learner while it is fetched: it comes from the
    relay or not at all. The relay itself cannot work, so the first work is the receiver's, with that version.
    """
    swarm.configure(steps=STEPS, heartbeat_s=HEARTBEAT_S)
    learner = swarm.learn()
    with stopped(learner.child("learner.trainer")):
        relay, receiver = swarm.join("relay", engine="transformers"), swarm.join("receiver", "--no-listen")
        wait_event(relay, "child_started", learner)
        for node in (relay, receiver):
            wait_event(node, "joined", learner)
        wait_for("the nodes to know each other", lambda: has_dialled(receiver, relay), relay, receiver)
    source = psutil.Process(learner.pid)
    with stopped(relay.child("transformers_worker")):
        with stopped(psutil.Process(receiver.pid)):
            wait_event(relay, "version_fetched", learner)
            source.suspend()
        fetched = wait_event(receiver, "version_fetched", relay)
        source.resume()
        credited = wait_event(learner, "relays_credited", relay, receiver)
    wait_done(learner, relay, receiver)

    assert (fetched["version"], fetched["sources"]) == ("1.0", 1)
    ((total_bytes,),) = swarm.rows("SELECT total_bytes FROM versions WHERE version = 0")
    names = peer_of(swarm, receiver), peer_of(swarm, relay)
    told = {key: credited[key] for key in ("peer", "version", "relays", "bytes")}
    assert told == {"peer": names[0], "version": "1.0", "relays": 1, "bytes": total_bytes}
    first = "SELECT receiver, relay, bytes FROM relayed JOIN versions USING (manifest) WHERE version = 0"
    assert swarm.rows(first) == [(*names, total_bytes)]
    check_ledger(swarm, Run(steps=STEPS))
    check_receipts(swarm, receiver)
    check_books(swarm, relay, receiver)


def check_books(swarm: Swarm, relay: Program, receiver: Program) -> None:
    """What was credited is in the report, and no more than both sides counted themselves."""
    report = json.loads(swarm.machine.call("report", swarm.config, "--json").out)
    relayed = {peer["name"]: peer["bytes_relayed"] for peer in report["peers"] if peer["bytes_relayed"]}
    assert relayed.keys() >= {relay.name}
    assert sum(relayed.values()) == report["totals"]["bytes_relayed"]
    for node, other, way in ((relay, receiver, "bytes_up"), (receiver, relay, "bytes_down")):
        own = json.loads(swarm.machine.call("report", node.state, "--json").out)
        exchanged = {one["peer"]: one[way] for one in own["traffic"]}
        assert exchanged[peer_of(swarm, other)] >= relayed[relay.name]


def has_dialled(node: Program, other: Program) -> bool:
    """Whether `node` has a connection to where `other` listens."""
    listening = {
        one.laddr.port for one in psutil.Process(other.pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN
    }
    return any(
        one.raddr and one.raddr.port in listening
        for one in psutil.Process(node.pid).net_connections("tcp")
        if one.status == psutil.CONN_ESTABLISHED
    )
