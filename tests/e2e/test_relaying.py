"""One node relays a version to another: from the chunks on the connection to the relay's credit in the report."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import psutil

from tests.e2e.ledger_rules import Run, check_ledger, check_receipts, peer_of
from tests.e2e.programs import Program, Swarm, stopped, wait_done, wait_event, wait_for

STEPS = 4
BATCH = 16
SECOND = "1.1"
HEARTBEAT_S = 20.0
"""Seconds: four heartbeats are longer than any process here stands still."""


def test_who_passed_a_version_on_is_credited(swarm: Swarm) -> None:
    """The receiver stands still while the second version is published, and the learner while it is fetched: the version
    comes from the relay or not at all. The relay itself rests, so all work is the receiver's, a batch for each version.
    """
    swarm.configure(steps=STEPS, mode="sequential", heartbeat_s=HEARTBEAT_S)
    learner = swarm.learn_doomed()
    with stopped(learner.child("hashing_trainer")):
        relay, receiver = swarm.join("relay", "--hours", hours_of_others()), swarm.join("receiver", "--no-listen")
        for node in (relay, receiver):
            wait_event(node, "version_fetched", learner)
        wait_for("the nodes to know each other", lambda: has_dialled(receiver, relay), relay, receiver)
        wait_for("a batch", lambda: sum(one["admitted"] for one in receiver.events("receipt")) == BATCH, receiver)
        asleep = psutil.Process(receiver.pid)
        asleep.suspend()
    source = psutil.Process(learner.pid)
    try:
        wait_for("the relay to have it", lambda: fetched_by(relay), relay, learner)
        source.suspend()
    finally:
        asleep.resume()
    try:
        fetched = wait_for("the receiver to have it", lambda: fetched_by(receiver), relay, receiver)[0]
    finally:
        source.resume()
    credited = wait_for("its credit", lambda: of_second(learner.events("relays_credited")), learner, relay, receiver)[0]
    wait_done(learner, relay, receiver)

    assert (fetched["sources"], fetched["fetched_bytes"] > 0) == (1, True)
    names = peer_of(swarm, receiver), peer_of(swarm, relay)
    told = {key: credited[key] for key in ("peer", "version", "relays", "bytes")}
    assert told == {"peer": names[0], "version": SECOND, "relays": 1, "bytes": fetched["fetched_bytes"]}
    second = "SELECT receiver, relay, bytes FROM relayed JOIN versions USING (manifest) WHERE version = 1"
    assert swarm.rows(second) == [(*names, fetched["fetched_bytes"])]
    check_ledger(swarm, Run(steps=STEPS))
    check_receipts(swarm, receiver)
    check_books(swarm, relay, receiver)


def of_second(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["version"] == SECOND]


def fetched_by(node: Program) -> list[dict[str, Any]]:
    return of_second(node.events("version_fetched"))


def hours_of_others() -> str:
    """Return hours of the day that do not include now."""
    begin, end = ((datetime.now() + timedelta(hours=hours)).strftime("%H:%M") for hours in (6, 12))
    return f"{begin}-{end}"


def check_books(swarm: Swarm, relay: Program, receiver: Program) -> None:
    """Check that the credit is in the report, and is no more than both sides counted themselves."""
    report = json.loads(swarm.machine.call("report", swarm.config, "--json").out)
    relayed = {peer["name"]: peer["bytes_relayed"] for peer in report["peers"] if peer["bytes_relayed"]}
    assert relayed.keys() >= {relay.name}
    assert sum(relayed.values()) == report["totals"]["bytes_relayed"]
    for node, other, way in ((relay, receiver, "bytes_up"), (receiver, relay, "bytes_down")):
        own = json.loads(swarm.machine.call("report", node.state, "--json").out)
        exchanged = {one["peer"]: one[way] for one in own["traffic"]}
        assert exchanged[peer_of(swarm, other)] >= relayed[relay.name]


def has_dialled(node: Program, other: Program) -> bool:
    """Return whether `node` has a connection to the address on which `other` listens."""
    listening = {
        one.laddr.port for one in psutil.Process(other.pid).net_connections("tcp") if one.status == psutil.CONN_LISTEN
    }
    return any(
        one.raddr and one.raddr.port in listening
        for one in psutil.Process(node.pid).net_connections("tcp")
        if one.status == psutil.CONN_ESTABLISHED
    )
