"""Read how a learner or a node is doing from its state directory, for `volery status` and `volery identity`.

Both commands work while the learner or the node runs: they open ledgers and receipts to read only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from learner.provisioning.estimation.learner_time import LearnerTime
from node.reports import OwnReport, SwarmReport
from node.reports.model.objective_figures import spells
from node.reports.model.time_words import as_values, kinds
from node.reports.readers.place_report import read_report
from node.runtime import formatting as words
from node.runtime.loop_delay import LoopFigures
from node.state.keys import load_key
from node.state.locate import StateLocation, find_place, known_places
from node.state.operator_orders import OperatorDecisions
from node.state.owner_orders import OwnerRequests
from node.state.status_file import standing_of
from node.state.stored_versions import newest_complete
from protocol.accounting.claims import JOULES_PER_KWH

LABELS = {
    "greedy_accuracy": "greedy held-out score",
    "sampled_accuracy": "sampled held-out score",
    "reward": "reward of last step",
    "rollouts_admitted": "admitted in total",
    "rollouts_rejected": "rejected in total",
}
"""Labels of facts whose keys say less well what they are: with partial rewards a mean reward is no accuracy, and a node
also counts what was admitted since its start."""

PARTS_OF_TIME = ("learner_utilisation", "learner_bubble")
"""Facts that the learner's time tells people as well; the JSON form has all three."""


class OwnIdentity(NamedTuple):
    """A key on this machine: its peer id, the role of its node, and the state directory."""

    peer: str
    role: str
    state: Path


def identities(state: Path | None) -> list[OwnIdentity]:
    """Return the identity at `state`, or all in the usual places. Raises UsageError, RunError."""
    places = [find_place(state)] if state is not None else list(known_places())
    return [
        OwnIdentity(load_key(place.key).peer_id, "learner" if place.is_learner else "rollout", place.state)
        for place in places
    ]


def identities_text(found: Sequence[OwnIdentity]) -> str:
    """Return a line for each identity."""
    if not found:
        return "There is no key on this machine yet: `volery learn` and `volery join` make one when they first start."
    return "\n".join(f"{one.peer}  {one.role}  {one.state}" for one in found)


def show_status(target: Path | None, *, as_json: bool) -> str:
    """Return how the learner or node at `target` is doing, as lines or as a JSON object."""
    place = find_place(target)
    report = read_report(place)
    facts: dict[str, object] = {"state": str(place.state), "peer": load_key(place.key).peer_id}
    facts |= _swarm_status(report, place) if isinstance(report, SwarmReport) else _own_status(report, place)
    if as_json:
        if isinstance(time := facts.get("learner_time"), LearnerTime):
            facts["learner_time"] = as_values(time)
        return json.dumps(facts, indent=2)
    limits, loop = facts.pop("limits", None), facts.pop("loop_delay", None)
    if facts.get("learner_time") is not None:
        facts = {key: value for key, value in facts.items() if key not in PARTS_OF_TIME}
    named = {LABELS.get(key, key.replace("_", " ")): value for key, value in facts.items() if value is not None}
    lines = [f"{label:22} {_figure(value)}" for label, value in named.items()]
    if isinstance(loop, dict):
        lines += [f"{'delay of answers':22} {_loop_words(LoopFigures(**loop))}"]
    if isinstance(limits, dict):
        lines += ["limits in force:", *(f"  {key:24} {value}" for key, value in limits.items())]
    return "\n".join(lines)


def _figure(value: object) -> str:
    """Return a value for people; the JSON form is exact."""
    match value:
        case float():
            return words.figure(value)
        case int():
            return words.count(value)
        case LearnerTime():
            return kinds(value) or words.NOTHING
        case _:
            return str(value)


def _loop_words(figures: LoopFigures) -> str:
    """Return how long the event loop makes peers and timers wait, and which task held it longest."""
    worst = f", in {figures.culprit}" if figures.culprit else ""
    return (
        f"{1000 * figures.p99_s:.0f} ms or less for 99 % of the last minute, {1000 * figures.longest_s:.0f} ms at "
        f"most; at most {1000 * figures.worst_s:.0f} ms since the start{worst}"
    )


def _swarm_status(report: SwarmReport, place: StateLocation) -> dict[str, object]:
    scores, standing = report.surviving_evaluations, standing_of(place.state)
    return {
        "role": "learner",
        "doing": standing.doing if standing else "not running",
        "notice": (standing.notice if standing else "") or None,
        "learner_reach": (standing.reach if standing else "") or None,
        "training_steps": report.steps[-1].step if report.steps else 0,
        "newest_version": str(report.versions[-1].version) if report.versions else None,
        "rollout_peers_seen": len(report.rollout_peers),
        "peers_banned": len(report.banned),
        "peers_quarantined": report.num_quarantined,
        "orders_waiting": len(OperatorDecisions(place.state).waiting()),
        "rollouts_admitted": report.admitted,
        "rollouts_rejected": report.rejected,
        "reward": report.steps[-1].reward if report.steps else None,
        "greedy_accuracy": scores[-1].greedy if scores else None,
        "sampled_accuracy": scores[-1].sampled if scores else None,
        **{f"pass@{k}": value for k, value in (scores[-1].pass_at.items() if scores else ()) if k > 1},
        "learner_utilisation": report.utilisation,
        "learner_bubble": report.bubble,
        "learner_time": report.learner_time,
        "kwh": None if report.joules is None else report.joules / JOULES_PER_KWH,
        "loop_delay": asdict(standing.loop) if standing and standing.loop else None,
        "alarms": ", ".join(spell.alarm for spell in spells(report.alarms) if spell.ended is None) or None,
        "nodes_unable": report.unable.text or None,
        "reach": report.reach.text or None,
        "bytes_carried": report.bytes_carried or None,
        "leases_without_records": None if report.fruitless is None else str(report.fruitless),
    }


def _own_status(report: OwnReport, place: StateLocation) -> dict[str, object]:
    newest = newest_complete(place.state / "store")
    standing, paused_by = standing_of(place.state), OwnerRequests(place.state).paused_by
    absent = f"not running, and paused by {paused_by}" if paused_by else "not running"
    return {
        "role": "rollout",
        "doing": standing.doing if standing else absent,
        "reach": (standing.reach if standing else "") or None,
        "newest_version": str(newest.version) if newest else None,
        "rollouts_admitted": report.peer.admitted,
        "rollouts_rejected": report.peer.rejected,
        "tokens_admitted": report.peer.tokens,
        "kwh": None if report.peer.joules is None else report.peer.joules / JOULES_PER_KWH,
        "loop_delay": asdict(standing.loop) if standing and standing.loop else None,
        "limits": standing.limits if standing else None,
    }
