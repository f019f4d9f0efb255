"""A teacher node's row in every form of a report: what it scored, and no rollouts."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from learner.ledger.rows import TEACHER_ENGINE, TeacherLeaseRow
from node.reports import as_csv, as_html, as_json, as_text, swarm_report
from node.reports.model.report import Scored, SwarmReport
from protocol.core.ids import LeaseId, PolicyVersion
from protocol.work import Rule
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, START_MS, open_story, peer_row


@pytest.fixture
def report(tmp_path: Path) -> SwarmReport:
    """A learner, a node that generated four rollouts, and two teachers, one of which has scored nothing yet."""
    story = open_story(tmp_path / "ledger.sqlite")
    story.join(peer_row(LEARNER, "learner", role="learner"))
    story.join(peer_row(ALPHA, "atlas"))
    for peer, name in ((BETA, "school"), (GAMMA, "idle")):
        story.join(replace(peer_row(peer, name), engine=f"{TEACHER_ENGINE}transformers"))
    story.publish(PolicyVersion(1, 0), total=100, new=100)
    group = story.lease(ALPHA)
    story.deliver(group, ALPHA, *[Rule.ADMITTED] * 4, version=PolicyVersion(1, 0))
    for number, (tokens, engine_s) in enumerate(((700, 1.5), (300, 0.5), (9_000, None)), start=1):
        lease = LeaseId(bytes([0xEE]) * 15 + bytes([number]))
        row = TeacherLeaseRow(
            lease=lease, peer=BETA, root=group, task="t", prompt=1, completions=4, tokens=tokens, issued_ms=START_MS,
            deadline_ms=START_MS + 1, envelope=b"lease",
        )  # fmt: skip
        story.ledger.work.scoring_issued([row])
        story.ledger.work.scores_judged(lease, b"receipt", engine_s, story.now_ms)
    for peer in (LEARNER, ALPHA, BETA, GAMMA):
        story.here(peer)
    story.ledger.close()
    return swarm_report(tmp_path / "ledger.sqlite", with_history=True)


def test_what_a_teacher_scored_is_in_its_row(report: SwarmReport) -> None:
    assert {peer.name: (peer.does, peer.scored) for peer in report.peers} == {
        "learner": ("learner", None),
        "atlas": ("rollout", None),
        "school": ("teacher", Scored(groups=2, tokens=1000)),
        "idle": ("teacher", Scored()),
    }


def test_programs_are_told(report: SwarmReport) -> None:
    told = {peer["name"]: (peer["role"], peer["scored"]) for peer in json.loads(as_json(report))["peers"]}
    assert told["school"] == ("teacher", {"groups": 2, "tokens": 1000})
    assert told["atlas"] == ("rollout", None)
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(as_csv(report)))}
    assert (rows["school"]["role"], rows["school"]["scored_tokens"]) == ("teacher", "1000")
    assert rows["atlas"]["scored_tokens"] == ""


def test_people_see_what_it_scored_and_no_rollouts(report: SwarmReport) -> None:
    text = as_text(report, width=200)
    [line] = [line for line in text.splitlines() if line.strip().startswith("school") and "teacher" in line]
    assert line.split()[2:10] == ["teacher", *"-----", "2", "1,000"], "it generates nothing: a dash, no zero"
    assert "scored" in text
    page = as_html(report)
    assert "tokens scored" in page
    assert "its engine scored for" in page


def test_where_nobody_teaches_nobody_hears_of_it(report: SwarmReport) -> None:
    without = replace(report, peers=tuple(peer for peer in report.peers if peer.scored is None))
    assert "scored" not in as_text(without, width=200)
