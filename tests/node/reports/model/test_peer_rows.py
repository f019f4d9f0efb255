"""A teacher node's row in every form of a report: what it scored, and no rollouts."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from learner.ledger.rows import TeacherLeaseRow
from node.reports import as_csv, as_html, as_json, as_text, swarm_report
from node.reports.model.report import Scored, SwarmReport
from protocol.core.ids import LeaseId, PolicyVersion
from protocol.work import Rule
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, START_MS, open_story, peer_row


@pytest.fixture
def report(tmp_path: Path) -> SwarmReport:
    """A learner, two nodes that generated four rollouts each, of which one taught as well, a teacher, and a node that
    calls its engine one."""
    story = open_story(tmp_path / "ledger.sqlite")
    story.join(peer_row(LEARNER, "learner", role="learner"))
    story.join(replace(peer_row(ALPHA, "atlas"), engine="teacher, so it says"))
    story.join(peer_row(BETA, "school"))
    story.join(peer_row(GAMMA, "both"))
    story.publish(PolicyVersion(1, 0), total=100, new=100)
    for peer in (ALPHA, GAMMA):
        group = story.lease(peer)
        story.deliver(group, peer, *[Rule.ADMITTED] * 4, version=PolicyVersion(1, 0))
    scored = ((BETA, 700, 1.5), (BETA, 300, 0.5), (BETA, 9_000, None), (BETA, 50, 0.1), (GAMMA, 40, 0.1))
    for number, (peer, tokens, engine_s) in enumerate(scored, start=1):
        lease = LeaseId(bytes([0xEE]) * 15 + bytes([number]))
        row = TeacherLeaseRow(
            lease=lease, peer=peer, root=group, task="t", prompt=1, completions=4, tokens=tokens, issued_ms=START_MS,
            deadline_ms=START_MS + 1, envelope=b"lease",
        )  # fmt: skip
        story.ledger.work.scoring_issued([row])
        story.ledger.work.scores_judged(lease, b"receipt", engine_s, story.now_ms)
        if tokens == 50:
            story.ledger.trust.verdicts_revised({lease: (Rule.AUDIT, "other scores", b"receipt")}, story.now_ms)
    for peer in (LEARNER, ALPHA, BETA, GAMMA):
        story.here(peer)
    story.ledger.close()
    return swarm_report(tmp_path / "ledger.sqlite", with_history=True)


def test_what_a_teacher_scored_is_in_its_row(report: SwarmReport) -> None:
    assert {peer.name: (peer.does, peer.scored) for peer in report.peers} == {
        "learner": ("learner", None),
        "atlas": ("rollout", None),
        "school": ("teacher", Scored(groups=2, tokens=1000, refused=2)),
        "both": ("rollout, teacher", Scored(groups=1, tokens=40)),
    }


def test_programs_are_told(report: SwarmReport) -> None:
    told = {peer["name"]: (peer["role"], peer["scored"]) for peer in json.loads(as_json(report))["peers"]}
    assert told["school"] == ("rollout", {"groups": 2, "tokens": 1000, "refused": 2})
    assert told["atlas"] == ("rollout", None)
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(as_csv(report)))}
    assert (rows["school"]["role"], rows["school"]["scored_tokens"]) == ("rollout", "1000")
    assert rows["atlas"]["scored_tokens"] == ""


def test_people_see_what_it_scored_and_no_rollouts(report: SwarmReport) -> None:
    text = as_text(report, width=200)
    [line] = [line for line in text.splitlines() if line.strip().startswith("school") and "teacher" in line]
    assert line.split()[2:10] == ["teacher", *"-----", "2", "1,000"], "it generates nothing: a dash, no zero"
    [line] = [line for line in text.splitlines() if line.strip().startswith("both") and "teacher" in line]
    assert line.split()[2:5] == ["rollout,", "teacher", "4"]
    assert "scored" in text
    page = as_html(report)
    assert "tokens scored" in page
    assert "2 refused" in page
    assert "its engine scored for" in page
    assert "its engine generated and scored for" in page
    assert page.count("All 4 judged records were admitted") == 2, "a teacher alone has no rollouts to be judged"


def test_where_nobody_teaches_nobody_hears_of_it(report: SwarmReport) -> None:
    without = replace(report, peers=tuple(peer for peer in report.peers if peer.scored is None))
    assert "scored" not in as_text(without, width=200)
