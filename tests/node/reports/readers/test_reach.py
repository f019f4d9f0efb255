"""A table, a page, programs and `volery status` show the same connections between nodes for one ledger."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from learner.ledger.rows import CarriedRow, MetRow, ReachRow
from node.cli.status import show_status
from node.reports import as_html, as_json, as_text, swarm_report
from node.reports.model.report import SwarmReport
from node.state.keys import load_or_create_key
from protocol.core.ids import PeerId, PolicyVersion
from protocol.reach import ReachKind, Way
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, START_MS, open_story, peer_row

SAID = "how nodes are reached: 1 mapped, 1 punchable, 1 outbound only; how pairs met: 1 dialled, 1 punched"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A learner's state directory: a node that can be dialled, one that was punched, one that dials."""
    load_or_create_key(tmp_path / "learner.key")
    story = open_story(tmp_path / "ledger.sqlite")
    story.join(peer_row(LEARNER, "run", role="learner"))
    for peer, name in ((ALPHA, "atlas"), (BETA, "borealis"), (GAMMA, "gaia")):
        story.join(peer_row(peer, name))
    kinds = {
        LEARNER: (ReachKind.DIRECTLY, "others dialled it"),
        ALPHA: (ReachKind.MAPPED, "its router passes a port on"),
        BETA: (ReachKind.BY_PUNCHING, "its router lets nobody in uncalled"),
        GAMMA: (ReachKind.NOT, "its router shows everybody another port"),
    }
    met = [
        (ALPHA, LEARNER, Way.DIALLED), (BETA, LEARNER, Way.DIALLED), (LEARNER, GAMMA, Way.DIALLED),
        (GAMMA, ALPHA, Way.DIALLED), (ALPHA, GAMMA, Way.WAS_DIALLED), (ALPHA, BETA, Way.PUNCHED),
    ]  # fmt: skip
    story.ledger.peers.write_reach(
        [ReachRow(peer=one, kind=kind, why=why, since_ms=START_MS + 2000) for one, (kind, why) in kinds.items()],
        [MetRow(peer=one, other=other, way=way, since_ms=START_MS + 3000) for one, other, way in met],
    )
    story.ledger.peers.circuits_carried([CarriedRow(one=ALPHA, other=BETA, num_bytes=12_288)])
    story.publish(PolicyVersion(1, 0))
    story.ledger.close()
    return tmp_path


def report_of(state: Path) -> SwarmReport:
    return swarm_report(state / "ledger.sqlite")


def test_each_node_has_a_row_with_its_neighbours_by_way(state: Path) -> None:
    table = as_text(report_of(state)).partition("Connections between nodes")[2]
    rows = {line.split()[0]: line.split()[2:] for line in table.splitlines() if line.startswith(" ") and line.strip()}
    assert rows["run"] == ["reachable", "-", "-", "-", "-", "-", "-"]
    assert rows["atlas"] == ["mapped", "dials", "it", "1", "0", "1", "0", "12", "KiB"]
    assert rows["borealis"] == ["punchable", "dials", "it", "0", "0", "1", "0", "12", "KiB"]
    assert rows["gaia"] == ["outbound", "only", "is", "dialled", "1", "0", "0", "0", "0", "B"]
    assert "outbound only  its router shows everybody another port" in table


def test_all_forms_tell_the_same(state: Path) -> None:
    report = report_of(state)
    assert report.reach.text == SAID
    assert re.search(f"reach +{SAID}", " ".join(as_text(report).split()))
    assert SAID in as_html(report)
    told = json.loads(as_json(report))
    assert told["reach"] == {
        "text": SAID,
        "nodes": {"mapped": 1, "by_punching": 1, "not": 1},
        "pairs": {"dialled": 1, "punched": 1},
    }
    assert f"reach                  {SAID}" in show_status(state, as_json=False)
    assert json.loads(show_status(state, as_json=True))["bytes_carried"] == 12_288 == told["totals"]["bytes_carried"]
    by_way = [peer["reach"] for peer in told["peers"] if peer["role"] == "rollout"]
    assert sum(one["punched"] for one in by_way) == 2 * told["reach"]["pairs"]["punched"], "each end counts it"


def test_programs_are_told_of_each_pair_of_nodes(state: Path) -> None:
    pairs = {frozenset((one["one"], one["other"])): one for one in json.loads(as_json(report_of(state)))["pairs"]}
    assert pairs.keys() == {frozenset((ALPHA, BETA)), frozenset((ALPHA, GAMMA))}
    punched, dialled = pairs[frozenset((ALPHA, BETA))], pairs[frozenset((ALPHA, GAMMA))]
    assert (punched["way"], punched["by"], punched["bytes_carried"]) == ("punched", None, 12_288)
    assert (dialled["way"], dialled["by"], dialled["since_ms"]) == ("dialled", GAMMA, START_MS + 3000)


def test_what_peers_say_can_do_nothing_to_a_page_or_a_terminal(state: Path) -> None:
    report = report_of(state)
    bad = "<script>\x1b[2J\n"
    peers = [
        peer if peer.reach is None else replace(peer, name=bad, reach=replace(peer.reach, why=bad))
        for peer in report.peers
    ]
    hostile = replace(report, peers=tuple(peers))
    assert "\x1b" not in as_text(hostile)
    assert "<script>\x1b" not in as_html(hostile)
    assert "&lt;script>" in as_html(hostile) or "&lt;script&gt;" in as_html(hostile)


def test_where_nobody_told_anything_there_is_no_table(tmp_path: Path) -> None:
    story = open_story(tmp_path / "ledger.sqlite")
    story.join(peer_row(PeerId(ALPHA), "atlas"))
    story.ledger.close()
    report = report_of(tmp_path)
    assert "Connections between nodes" not in as_text(report) + as_html(report)
    assert json.loads(as_json(report))["peers"][0]["reach"] is None
