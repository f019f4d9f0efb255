"""`volery status` of a learner: readable figures, whether it runs, its bans, and the orders that wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from learner.ledger.ledger import Ledger
from learner.ledger.reputation import BAN
from learner.ledger.rows import TroubleRow
from learner.trust.audit_history import AuditHistory
from node.cli.status import show_status
from node.learner_role.app import _show_nodes
from node.runtime import formatting as words
from node.runtime.loop_delay import LoopFigures
from node.state.keys import load_or_create_key
from node.state.operator_orders import Ban, OperatorDecisions
from node.state.status_file import NodeStatus, StatusFile, standing_of
from protocol.core.ids import PolicyVersion
from tests.support.ledgers import ALPHA, BETA, START_MS, SWARM, demo_run, open_story, peer_row


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A learner's state directory with a score that no screen has room for, and one peer of two banned."""
    story = open_story(tmp_path / "ledger.sqlite")
    load_or_create_key(tmp_path / "learner.key")
    for peer in (ALPHA, BETA):
        story.join(peer_row(peer, "a peer"))
    story.publish(PolicyVersion(1, 0))
    story.evaluate(PolicyVersion(1, 0), greedy=0.994140625, sampled=0.5)
    story.ledger.trust.confidence_written(BETA, AuditHistory(banned="see our mail"), story.now_ms, decision=BAN)
    story.ledger.close()
    return tmp_path


def lines(state: Path) -> dict[str, str]:
    told = show_status(state, as_json=False).splitlines()
    return {line[:22].strip(): line[22:].strip() for line in told}


def test_figures_are_rounded_for_people_and_exact_for_programs(state: Path) -> None:
    assert lines(state)["greedy held-out score"] == "0.994"
    assert json.loads(show_status(state, as_json=True))["greedy_accuracy"] == 0.994140625


def test_it_says_what_the_last_step_earned_and_each_fact_once(tmp_path: Path) -> None:
    load_or_create_key(tmp_path / "learner.key")
    demo_run(tmp_path / "ledger.sqlite")
    told, facts = lines(tmp_path), json.loads(show_status(tmp_path, as_json=True))
    assert told["reward of last step"] == words.figure(facts["reward"])
    assert "learner time" in told
    assert not {"learner utilisation", "learner bubble"} & told.keys()
    assert {"learner_utilisation", "learner_bubble"} <= facts.keys()


def test_counts_are_labelled_as_those_of_all_starts(state: Path) -> None:
    told = json.loads(show_status(state, as_json=True))
    assert lines(state)["admitted in total"] == str(told["rollouts_admitted"])
    assert lines(state)["rejected in total"] == str(told["rollouts_rejected"])


def test_it_says_whether_the_learner_runs(state: Path) -> None:
    assert lines(state)["doing"] == "not running"
    board = StatusFile(state)
    board.show(NodeStatus(doing="at work", limits={}))
    assert lines(state)["doing"] == "at work"
    board.amend(reach="others dial it")
    assert lines(state)["learner reach"] == "others dial it"
    board.clear()
    assert lines(state)["doing"] == "not running"
    assert "learner reach" not in lines(state)


def test_it_says_how_long_the_event_loop_makes_peers_wait_and_who_held_it(state: Path) -> None:
    assert "delay of answers" not in lines(state)
    figures = LoopFigures(p99_s=0.004, longest_s=0.21, step_cpu_s=0.2, worst_s=1.31, worst_cpu_s=1.3, culprit="serve")
    board = StatusFile(state)
    board.show(NodeStatus(doing="at work", limits={}, loop=figures))
    assert lines(state)["delay of answers"] == (
        "4 ms or less for 99 % of the last minute, 210 ms at most; at most 1310 ms since the start, in serve"
    )
    assert json.loads(show_status(state, as_json=True))["loop_delay"]["worst_cpu_s"] == 1.3
    board.clear()
    assert json.loads(show_status(state, as_json=True))["loop_delay"] is None


def test_it_says_who_was_banned_and_which_orders_wait(state: Path) -> None:
    told = lines(state)
    assert (told["peers banned"], told["peers quarantined"], told["orders waiting"]) == ("1", "0", "0")
    OperatorDecisions(state).give(Ban(peer=ALPHA, reason="no"))
    assert lines(state)["orders waiting"] == "1"
    facts = json.loads(show_status(state, as_json=True))
    assert (facts["peers_banned"], facts["orders_waiting"]) == (1, 1)


def test_it_says_which_nodes_cannot_work(state: Path) -> None:
    assert "nodes unable" not in lines(state)
    with Ledger(state / "ledger.sqlite", swarm=SWARM) as ledger:
        told = [
            TroubleRow(peer=peer, kind="install", version=PolicyVersion(1, 0), times=2, reason="no", since_ms=START_MS)
            for peer in (ALPHA, BETA)
        ]
        ledger.peers.write_troubles(told)
    assert lines(state)["nodes unable"] == "2 of 2 nodes cannot install 1.0: no"
    board, delays = StatusFile(state), LoopFigures(p99_s=0.003, longest_s=0.07)
    board.show(NodeStatus(doing="at work", limits={}, loop=delays))
    fields = {"text": "2 of 2 nodes cannot install 1.0: no", "everyone": True}
    _show_nodes(board, "nodes_unable", fields)
    assert lines(state)["doing"] == "no node can work: 2 of 2 nodes cannot install 1.0: no"
    _show_nodes(board, "nodes_unable", fields | {"everyone": False})
    assert lines(state)["doing"] == "at work: 2 of 2 nodes cannot install 1.0: no"
    _show_nodes(board, "nodes_able", {})
    assert standing_of(state) == NodeStatus(doing="at work", limits={}, loop=delays), "the rest is as it was"
