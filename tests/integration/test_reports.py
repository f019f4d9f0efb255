"""Reports: their counts, the figures computed from them, and that people and programs can read them at any width."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from learner.ledger.ledger import Ledger
from learner.ledger.queries.peers import PeerPresence
from learner.ledger.reputation import BAN
from learner.ledger.rows import AuditRow, PresenceRow, TroubleRow
from learner.ledger.sqlite.database import LedgerError
from learner.ledger.trust import AuditOutcome
from learner.rollouts.admission import EpisodeSlots
from learner.trust.audit_history import AuditHistory, TrustLevel, after
from learner.trust.ban_evidence import Found, count_above, log_evidence
from learner.trust.margins import TINY as MARGINS
from node.reports import as_csv, as_json, as_terminal, as_text, own_report, routes_taken, summary, swarm_report
from node.reports.model.peer_rows import present_s
from node.reports.model.report import PeerReport, Role, SwarmReport
from node.reports.model.verdict_meanings import BLAMED, MEANINGS, REJECTIONS
from node.reports.text.peer_columns import listed
from node.runtime import formatting as words
from node.state.receipt_rows import PeerTraffic
from node.state.receipts import Receipts
from protocol.accounting.claims import Price
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import Rule
from swarm.transport.interface import Traffic
from tests.node.state.test_receipts import receipt
from tests.support.examples import examples
from tests.support.ledgers import (
    ALPHA,
    BETA,
    GAMMA,
    LEARNER,
    START_MS,
    SWARM,
    Story,
    demo_run,
    key,
    open_story,
    peer_row,
)  # fmt: skip

V0, V1 = PolicyVersion(1, 0), PolicyVersion(1, 1)
HOUR_S = 3600.0


def row_of(report: SwarmReport, peer: PeerId) -> PeerReport:
    return next(row for row in report.peers if row.peer == peer)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return open_story(tmp_path / "ledger.sqlite")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> SwarmReport:
    path = tmp_path_factory.mktemp("demo") / "ledger.sqlite"
    demo_run(path)
    return swarm_report(path, staleness=2)


# What is counted


def test_one_hour_of_two_peers(story: Story) -> None:
    story.join(peer_row(LEARNER, "learner", role="learner", micros=1_000_000))
    story.join(peer_row(ALPHA, "atlas", micros=600_000))
    story.publish(V0, total=1000, new=1000)
    story.evaluate(V0, 0.4, 0.3)
    first, second = story.lease(ALPHA), story.lease(ALPHA)
    story.deliver(first, ALPHA, *[Rule.ADMITTED] * 4, version=V0, tokens=25)
    story.deliver(second, ALPHA, *[Rule.STALE] * 4, version=V0)
    story.now_s = HOUR_S / 2
    story.join(peer_row(BETA, "borealis"))
    third = story.lease(BETA)
    story.deliver(third, BETA, *[Rule.ADMITTED] * 4, version=V0, lag=1, tokens=50)
    story.train(1, {first: 1}, waited_s=30.0, train_s=90.0)
    story.publish(V1, total=1000, new=400)
    story.now_s = HOUR_S
    story.evaluate(V1, 0.9, 0.8)
    story.here(ALPHA, up=10, down=20)
    story.here(BETA, up=1, down=2)
    story.here(LEARNER, up=22, down=11)

    report = swarm_report(story.ledger.path, staleness=2)
    assert [peer.peer for peer in report.peers] == [LEARNER, *sorted((ALPHA, BETA))]
    assert (report.wall_s, len(report.versions), len(report.steps), report.weight_bytes) == (HOUR_S, 2, 1, 1000)
    assert (report.admitted, report.rejected, report.trained, report.tokens) == (8, 4, 4, 300)
    assert report.verdicts == {Rule.ADMITTED: 8, Rule.STALE: 4}
    assert report.lags == {1: 4}
    told_s = HOUR_S / 2 + 90  # up to the end of the step
    assert (report.utilisation, report.bubble) == (90 / told_s, 30 / told_s)
    assert report.learner_time.wall_s + report.away_s == report.wall_s
    assert (report.mean_train_s, report.mean_waited_s, report.mean_step_s) == (90.0, 30.0, None)
    assert report.costs == {"USD": 1_600_000}
    assert (report.bytes_up, report.bytes_down) == (33, 33)
    assert [(e.greedy, e.sampled, e.at_s) for e in report.evaluations] == [(0.4, 0.3, 0.0), (0.9, 0.8, HOUR_S)]

    alpha = row_of(report, ALPHA)
    assert (alpha.leases.issued, alpha.leases.delivered, alpha.leases.in_time, alpha.leases.open) == (2, 2, 2, 0)
    assert (alpha.admitted, alpha.rejected, alpha.tokens, alpha.trained, alpha.share) == (4, 4, 100, 4, 1.0)
    assert (alpha.hours_active, alpha.price_per_hour, alpha.cost) == (1.0, 0.6, 0.6)
    assert alpha.cost_per_1000_tokens == pytest.approx(6.0)
    assert alpha.admitted_per_s == pytest.approx(4 / HOUR_S)
    assert alpha.reputation is not None
    assert alpha.reputation.honesty == 1.0  # staleness is nobody's fault
    assert alpha.reputation.score == 1.0

    beta = row_of(report, BETA)
    assert (beta.active_s, beta.cost, beta.cost_per_1000_tokens, beta.share) == (HOUR_S / 2, 0.0, 0.0, 0.0)
    assert beta.reputation is not None
    assert beta.reputation.availability == 1.0  # it is measured from when a peer first came

    learner = row_of(report, LEARNER)
    assert (learner.role, learner.cost, learner.admitted_per_s, learner.cost_per_1000_tokens) == (
        Role.LEARNER, 1.0, None, None,
    )  # fmt: skip


def test_every_fate_of_a_lease(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    for fate in ("expired", "returned", "recalled", "lost"):
        story.ledger.work.leases_closed([story.lease(ALPHA)], fate, story.now_ms)
    story.lease(ALPHA)
    story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V0)
    story.deliver(story.lease(ALPHA), ALPHA, Rule.LATE, Rule.LATE, version=V0)
    story.now_s = 10
    story.here(ALPHA)
    leases = row_of(swarm_report(story.ledger.path), ALPHA).leases
    assert (leases.issued, leases.open, leases.delivered, leases.late) == (7, 1, 2, 1)
    assert (leases.recalled, leases.recalled_rollouts) == (1, 4)
    assert (leases.expired, leases.returned, leases.lost, leases.in_time, leases.failed) == (1, 1, 1, 1, 4)
    reputation = row_of(swarm_report(story.ledger.path), ALPHA).reputation
    assert reputation is not None
    assert reputation.timeliness == pytest.approx((1 + 4) / (1 + 2 + 4)), "an owner took his machine back once"


def test_only_what_a_working_node_never_does_lowers_honesty(story: Story) -> None:
    for rule in REJECTIONS:
        peer = PeerId(f"peer-{rule.value}")
        story.join(peer_row(peer, rule.value))
        story.deliver(story.lease(peer), peer, rule, version=V0)
    report = swarm_report(story.ledger.path)
    for row in report.peers:
        assert row.reputation is not None
        assert (row.reputation.honesty < 1.0) is (row.blamed == 1), row.name
    assert {Rule(row.name) for row in report.peers if row.blamed} == BLAMED


def test_the_rules_that_blame() -> None:
    assert set(MEANINGS) == set(Rule)
    assert {rule.value for rule in BLAMED} == {
        "malformed",
        "oversized",
        "unknown_version",
        "bad_signature",
        "wrong_peer",
        "settings",
        "incomplete",
        "duplicate",
        "reward",
        "audit",
        "banned",
    }


def test_a_rule_younger_than_this_program_is_counted_as_other(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.deliver(story.lease(ALPHA), ALPHA, Rule.STALE, version=V0)
    with story.ledger.transaction() as db:
        db.execute("UPDATE record_rows SET rule = 'moonshine'")
    assert swarm_report(story.ledger.path).verdicts == {Rule.OTHER: 1}


def test_groups_dropped_when_a_batch_formed_are_told(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    kept, old = story.lease(ALPHA), story.lease(ALPHA)
    for lease in (kept, old):
        story.deliver(lease, ALPHA, *[Rule.ADMITTED] * 4, version=V0)
    story.train(1, {kept: 0}, dropped={old: "stale"})
    row = row_of(swarm_report(story.ledger.path), ALPHA)
    assert (row.admitted, row.trained, row.dropped, row.share) == (8, 4, 4, 1.0)


def test_groups_that_teach_nothing_are_told_apart_from_those_that_are_too_old(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    kept, old, alike = story.lease(ALPHA), story.lease(ALPHA), story.lease(ALPHA)
    for lease in (kept, old, alike):
        story.deliver(lease, ALPHA, *[Rule.ADMITTED] * 4, version=V0)
    story.train(1, {kept: 0}, dropped={old: "stale", alike: "uninformative"})
    report = swarm_report(story.ledger.path)
    assert (report.admitted, report.dropped, report.uninformative) == (12, 8, 4)
    said = " ".join(as_text(report).split())
    assert (
        "12 admitted, 4 of them too old when a batch formed, 4 in groups of equal rewards, which teach nothing" in said
    )


def test_passes_of_several_samples_and_the_scores_of_each_task_are_told(story: Story) -> None:
    for version, value in ((PolicyVersion(1, 0), 0.25), (PolicyVersion(1, 1), 0.5)):
        story.publish(version)
        more = {("", "samples"): 16, ("", "pass@8"): value, ("sums", "greedy"): value, ("sums", "pass@8"): value}
        story.ledger.training.evaluated(version, story.now_ms, prompts=9, greedy=value, sampled=value, more=more)
        story.now_s += 1
    story.train(1, {})
    report = swarm_report(story.ledger.path)
    said = " ".join(as_text(report).split())
    assert "sampled 0.250 to 0.500, pass@8 0.250 to 0.500 (9 held-out prompts)" in said
    assert "sums greedy 0.250 to 0.500, pass@8 0.250 to 0.500" in said
    told = json.loads(as_json(report))["evaluations"][-1]
    assert (told["samples"], told["pass_at"]) == (16, {"8": 0.5})
    assert told["tasks"] == {"sums": {"greedy": 0.5, "pass@8": 0.5}}


def test_what_a_restart_orphaned_counts_for_who_made_it(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas", micros=1_000_000))
    story.deliver(story.lease(ALPHA), ALPHA, *[Rule.ORPHANED] * 4, version=PolicyVersion(1, 3))
    story.deliver(story.lease(ALPHA), ALPHA, *[Rule.ADMITTED] * 4, version=PolicyVersion(2, 1))
    story.deliver(story.lease(ALPHA), ALPHA, *[Rule.STALE] * 4, version=PolicyVersion(2, 1))
    [peer] = swarm_report(story.ledger.path).peers
    assert (peer.tokens, peer.admitted, peer.rejected) == (80, 4, 8)


def test_every_turn_of_an_episode_is_credited_and_shares_the_fate_of_its_group(story: Story) -> None:
    for peer, name in ((ALPHA, "atlas"), (BETA, "bolt")):
        story.join(peer_row(peer, name))
    kept, old = story.lease(ALPHA), story.lease(ALPHA)
    for root in (kept, old):
        story.deliver(root, ALPHA, *[Rule.ADMITTED] * 4, version=V0)
        later = story.lease(BETA, 2, place=EpisodeSlots(root=root, turn=1, slots=(0, 3)))
        story.deliver(later, BETA, *[Rule.ADMITTED] * 2, version=V1)
    story.train(3, {kept: 2}, dropped={old: "uninformative"})
    report = swarm_report(story.ledger.path)
    atlas, bolt = row_of(report, ALPHA), row_of(report, BETA)
    assert (atlas.admitted, atlas.trained, atlas.dropped) == (8, 4, 4)
    assert (bolt.admitted, bolt.trained, bolt.dropped) == (4, 2, 2)
    assert (report.later_turns, report.uninformative) == (4, 6)
    assert report.lags == {1: 2, 2: 4}, "each record must count at its own lag"
    assert "12 admitted, 4 of them later turns or parts of an episode, 6 in groups" in " ".join(as_text(report).split())


def test_a_ledger_of_before_episodes_had_turns_can_be_read(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    with story.ledger.transaction() as db:
        db.execute("DROP TABLE continuations")
    assert swarm_report(story.ledger.path).later_turns == 0


def test_credit_for_relaying_adds_up_by_relay(story: Story) -> None:
    story.join(peer_row(LEARNER, "learner", role="learner"))
    for peer in (ALPHA, BETA, GAMMA):
        story.join(peer_row(peer, "one"))
    story.relay(ALPHA, V0, {BETA: 2048, GAMMA: 100})
    story.relay(BETA, V0, {GAMMA: 10})
    story.relay(ALPHA, V1, {BETA: 1024})
    report = swarm_report(story.ledger.path)
    relayed = {row.peer: row.bytes_relayed for row in report.peers}
    assert relayed == {LEARNER: 0, ALPHA: 0, BETA: 3072, GAMMA: 110}
    assert report.bytes_relayed == 3182
    rows = {row["peer"]: row["bytes_relayed"] for row in csv.DictReader(io.StringIO(as_csv(report)))}
    assert rows == {peer: str(size) for peer, size in relayed.items()}
    told = json.loads(as_json(report))
    assert told["totals"]["bytes_relayed"] == 3182
    assert {peer["peer"]: peer["bytes_relayed"] for peer in told["peers"]} == relayed
    short = summary(report, staleness_bound=2, peak_pss_mib=None, seeds={})
    assert short["bytes_relayed"] == 3182
    assert {peer["id"]: peer["bytes_relayed"] for peer in short["peers"]} == relayed
    text = as_text(report)
    assert "relayed" in text
    assert "3 KiB" in text


def test_a_ledger_of_before_relays_were_credited_can_be_read(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    with story.ledger.transaction() as db:
        db.execute("DROP TABLE relayed")
        db.execute("DROP TABLE relay_receipts")
    assert row_of(swarm_report(story.ledger.path), ALPHA).bytes_relayed == 0


def test_a_restart_cuts_off_what_was_lost_with_it(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    lease = story.lease(ALPHA)
    story.deliver(lease, ALPHA, *[Rule.ADMITTED] * 4, version=V0)
    story.train(1, {lease: 0})
    story.evaluate(V1, 0.5, 0.5)
    story.train(2, {})
    story.evaluate(PolicyVersion(1, 2), 0.99, 0.99)
    story.ledger.training.begin_incarnation(1, story.now_ms)
    story.now_s = 5
    story.evaluate(PolicyVersion(2, 1), 0.6, 0.6)
    report = swarm_report(story.ledger.path)
    assert [e.survives for e in report.evaluations] == [True, False, True]
    assert (len(report.incarnations), len(report.steps), report.trained) == (2, 1, 4)
    told = summary(report, staleness_bound=2, peak_pss_mib=None, seeds={})
    assert (told["greedy_start"], told["greedy_end"], told["incarnations"]) == (0.5, 0.6, 2)


def test_time_shared_by_two_presences_is_paid_once(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    old = story.presences[ALPHA]
    story.now_s = 50
    story.join(peer_row(ALPHA, "atlas again", micros=3_600_000_000))
    story.now_s = 100
    story.here(ALPHA, up=5)
    gone = PresenceRow(presence=old, bytes_up=7, bytes_down=0, reason="joined again")
    story.ledger.peers.peers_present([gone], START_MS + 70_000)
    row = row_of(swarm_report(story.ledger.path), ALPHA)
    assert (row.active_s, row.cost, row.bytes_up, row.name) == (100.0, 100.0, 12, "atlas again")


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=6))
def test_presence_is_the_union_of_its_stays(presences: list[tuple[int, int]]) -> None:
    covered = {tick for began, length in presences for tick in range(began, began + length)}
    rows = [
        PeerPresence(peer=ALPHA, began_ms=b * 1000, ended_ms=(b + n) * 1000, bytes_up=0, bytes_down=0)
        for b, n in presences
    ]
    assert present_s(rows) == len(covered)


def test_totals_are_the_sums_of_rows(demo: SwarmReport) -> None:
    assert demo.admitted == sum(demo.lags.values()) == sum(peer.trained or 0 for peer in demo.peers)
    assert sum(peer.share or 0 for peer in demo.peers) == pytest.approx(1.0)
    assert all(sum(peer.verdicts.values()) == peer.admitted + peer.rejected for peer in demo.peers)
    assert all(peer.leases.issued == peer.leases.open + peer.leases.in_time + peer.leases.failed for peer in demo.peers)


# Where the report is read from


def test_a_ledger_is_read_while_its_learner_is_in_the_middle_of_writing(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    with story.ledger.transaction() as db:
        db.execute("DELETE FROM presence")
        db.execute("DELETE FROM peers")
        assert len(swarm_report(story.ledger.path).peers) == 1


def test_reading_changes_nothing(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.ledger.close()
    before = story.ledger.path.read_bytes()
    swarm_report(story.ledger.path)
    assert story.ledger.path.read_bytes() == before


def test_a_missing_ledger_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"nothing\.sqlite: there is no ledger"):
        swarm_report(tmp_path / "nothing.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_text("# a text file\n" * 100)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite is damaged, or no ledger"):
        swarm_report(path)


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Receipts(path).close()
    with pytest.raises(LedgerError, match="not a ledger"):
        swarm_report(path)


def test_a_newer_ledger_is_refused(story: Story) -> None:
    story.ledger.close()
    with sqlite3.connect(story.ledger.path) as db:
        db.execute("UPDATE meta SET value = x'3939' WHERE key = 'schema'")
    with pytest.raises(LedgerError, match="format 99"):
        swarm_report(story.ledger.path)


# For people


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 240])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_cut(demo: SwarmReport, width: int) -> None:
    text = as_terminal(demo, width=width, color=False)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "…" not in text.replace("a laptop in the…", "").replace("a laptop …", "")
    for figure in ("4,944", "0.0151", "153 MiB", "49.5%", "640", "0.97"):
        assert figure in text


def test_wide_terminals_have_fewer_tables(demo: SwarmReport) -> None:
    def tables(width: int) -> int:
        return as_terminal(demo, width=width, color=False).count("total ")

    assert tables(160) < tables(80)


def test_every_rejection_is_explained(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    for rule in REJECTIONS:
        story.deliver(story.lease(ALPHA), ALPHA, rule, version=V0)
    text = " ".join(as_text(swarm_report(story.ledger.path), width=200).split())
    for rule in REJECTIONS:
        assert f"{rule.value} 1 {MEANINGS[rule].words}" in text
    assert text.count("counts against honesty") == len(BLAMED)


def test_a_report_for_a_file_has_neither_colours_nor_line_drawing(demo: SwarmReport) -> None:
    text = as_text(demo).replace("…", "")
    assert text.isascii()
    assert "\x1b" not in text
    assert "\x1b" in as_terminal(demo, width=100)


def test_an_empty_swarm_can_be_reported(story: Story) -> None:
    report = swarm_report(story.ledger.path)
    assert "no rollout was trained on yet" in as_text(report)
    assert json.loads(as_json(report))["totals"]["learner_utilisation"] is None
    assert len(as_csv(report).splitlines()) == 1


def test_names_from_strangers_cannot_move_the_cursor_or_run_in_a_spreadsheet(story: Story) -> None:
    story.join(peer_row(ALPHA, "=HYPERLINK(\x1b[2J\x9b\u202e\n[red]x"))
    report = swarm_report(story.ledger.path)
    for text in (as_terminal(report, width=100, color=False), as_text(report), as_json(report), as_csv(report)):
        assert not {c for c in text if unicodedata.category(c) in ("Cc", "Cf")} - set("\r\n")
    (row,) = csv.DictReader(io.StringIO(as_csv(report)))
    assert row["name"] == "'=HYPERLINK( [2J [red]x"


@settings(max_examples=examples(200))
@given(st.text(max_size=40), st.integers(1, 40))
def test_a_plain_name_is_one_short_harmless_line(name: str, limit: int) -> None:
    plain = words.plain_name(name, limit)
    assert len(plain) <= limit
    assert all(c == " " or unicodedata.category(c)[0] not in "CZ" for c in plain)


def test_several_currencies_are_kept_apart(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas", micros=1_000_000, currency="EUR"))
    story.join(peer_row(BETA, "borealis", micros=2_000_000))
    story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V0, tokens=1000)
    story.now_s = HOUR_S
    story.here(ALPHA)
    story.here(BETA)
    report = swarm_report(story.ledger.path)
    assert report.costs == {"EUR": 1_000_000, "USD": 2_000_000}
    text = as_text(report)
    assert "1.00 EUR, 2.00 USD" in text
    assert "1.00 EUR per" not in text  # one currency's cost is never divided by all tokens


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0 USD"), (12.3456, "12.35 USD"), (0.0123, "0.0123 USD"), (0.0000123, "0.0000123 USD"), (None, "-")],
)
def test_money(value: float | None, shown: str) -> None:
    assert words.money(value, "USD") == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (160 << 20, "160 MiB"), (3 << 40, "3 TiB")],
)
def test_size(num_bytes: int, shown: str) -> None:
    assert words.size(num_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(41.6, "42 s"), (59.9, "1 min 0 s"), (200, "3 min 20 s"), (5 * 3600 + 720, "5 h 12 min"), (3 * 86_400, "3 d 0 h")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert words.duration(seconds) == shown


@pytest.mark.parametrize(
    ("joules", "shown"),
    [(None, "-"), (0.0, "0"), (1.0, "<0.0001"), (360.0, "0.0001"), (4.5e6, "1.25"), (3.6e12, "1,000,000")],
)
def test_kilowatt_hours(joules: float | None, shown: str) -> None:
    assert words.kwh(joules) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0 USD"), (0.00001, "<0.0001 USD"), (0.02134, "0.0213 USD"), (1234.5, "1,234 USD")],
)
def test_cents(value: float | None, shown: str) -> None:
    assert words.cents(value, "USD") == shown


def test_ones_own_work_in_words(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path / "receipts.sqlite")
    receipts.add(receipt(1, Rule.ADMITTED, tokens=12), b"a", engine_s=61.0)
    receipts.add(receipt(2, Rule.STALE), b"b", engine_s=1.0)
    exchanged = PeerTraffic(peer=BETA, bytes_up=2048, bytes_down=3 << 20)
    session, moved = receipts.session_began(Price(), 0), Traffic(sent=5 << 20, received=4 << 20)
    receipts.session_lasts(session, 0, bytes_up=2048, bytes_down=3 << 20, moved=moved, traffic=[exchanged])
    report = own_report(receipts, peer=ALPHA, name="atlas")
    text = as_terminal(report, width=80, color=False)
    assert max(map(len, text.splitlines())) <= 80
    for part in (
        ALPHA,
        "1.1 to 1.2",
        "1 min 2 s",
        f"{BETA[-6:]}: 2 KiB up, 3 MiB down",
        "5 MiB sent, 4 MiB received, of which chunks of model",
        "because of stale",
        MEANINGS[Rule.STALE].words,
    ):
        assert part in text
    told = json.loads(as_json(report))
    assert (told["kind"], told["peer"]["share"], told["refused"][0]["rule"]) == ("own", None, "stale")
    assert told["peer"]["bytes_relayed"] is None, "only the learner knows"
    assert told["traffic"] == [{"peer": BETA, "bytes_up": 2048, "bytes_down": 3 << 20}]
    (row,) = csv.DictReader(io.StringIO(as_csv(report)))
    assert (row["admitted"], row["rejected_stale"], row["share"], row["honesty"]) == ("1", "1", "", "")


def test_ones_own_work_before_any_receipt(tmp_path: Path) -> None:
    assert "none yet" in as_text(own_report(Receipts(tmp_path / "receipts.sqlite"), peer=ALPHA))


# How the run was made: facts by which two runs are compared


def test_a_comparison_finds_mode_bubble_and_pace(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    for step, (waited_s, train_s) in enumerate([(20.0, 2.0), (6.0, 2.0), (4.0, 4.0)], start=1):
        story.now_s += waited_s
        lease = story.lease(ALPHA)
        story.deliver(lease, ALPHA, *[Rule.ADMITTED] * 4, version=PolicyVersion(1, step - 1))
        story.train(step, {lease: 0}, waited_s=waited_s, train_s=train_s)
        story.now_s += train_s + 1.0  # to publish
    for staleness, mode, words_of_it in ((0, "sequential", "sequential, S = 0"), (4, "async", "async, staleness")):
        report = swarm_report(story.ledger.path, staleness=staleness)
        short = summary(report, staleness_bound=staleness, peak_pss_mib=None, seeds={})
        long = json.loads(as_json(report))
        assert (short["mode"], long["mode"], report.mode) == (mode, mode, mode)
        for told in (short, long["totals"]):
            assert told["learner_utilisation"] == told["learner_time"]["utilisation"] == pytest.approx(8 / 40)
            assert told["bubble"] == told["learner_time"]["bubble"] == pytest.approx(30 / 40)
            assert told["learner_time"]["publication_s"] == pytest.approx(2)
            assert told["mean_train_s"] == pytest.approx(8 / 3)
            assert told["mean_waited_s"] == pytest.approx(10.0)
            assert told["mean_step_s"] == pytest.approx((6 + 2 + 1 + 4 + 4 + 1) / 2)
        text = as_text(report)
        assert words_of_it in text
        assert (
            "training 20.0% of 40 s, waiting 75.0% of the steps' time (bubble); a training step every 9 s"
            in " ".join(text.split())
        )
        assert "training 20.0%, waiting for rollouts 75.0%, blocked by publication 5.0%" in " ".join(text.split())
    assert swarm_report(story.ledger.path).mode is None
    assert "mode" not in as_text(swarm_report(story.ledger.path))


def test_who_stands_by_is_not_paid_and_plans_are_told(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas", micros=3_600_000_000))
    story.join(peer_row(BETA, "borealis"))
    story.plan(ALPHA, BETA, reasons=("atlas on: it is cheap",))
    story.now_s = 100.0
    story.plan(BETA, micros=500_000, kappa=2, reasons=("atlas off: it is dear",))
    story.now_s = 400.0
    presence = PresenceRow(presence=story.presences[ALPHA], bytes_up=0, bytes_down=0, standby_s=300.0)
    for _ in range(2):  # repeated, not added
        story.ledger.peers.peers_present([presence], story.now_ms)
    story.here(BETA)
    report = swarm_report(story.ledger.path, staleness=4)
    peers = {peer.peer: peer for peer in report.peers}
    assert (peers[ALPHA].active_s, peers[ALPHA].standby_s, peers[ALPHA].cost) == (100.0, 300.0, 100.0)
    assert (peers[BETA].active_s, peers[BETA].standby_s) == (400.0, 0.0)
    assert peers[ALPHA].reputation is not None
    assert peers[ALPHA].reputation.availability == peers[BETA].reputation.availability, "both were present all the time"
    assert [(plan.at_s, plan.kappa, plan.active) for plan in report.plans] == [
        (0.0, 1, (ALPHA, BETA)),
        (100.0, 2, (BETA,)),
    ]
    text = as_text(report)
    assert "standby" in text
    assert "1 min 40 s  atlas off: it is dear" in text
    told = json.loads(as_json(report))
    assert told["plans"][1] == {
        "at_s": 100.0, "kappa": 2, "active": [BETA], "price_per_hour": 0.5, "reasons": ["atlas off: it is dear"],
    }  # fmt: skip
    assert told["peers"][0]["hours_standby"] == pytest.approx(300 / 3600)


# For programs


def test_json_keys_are_a_promise(demo: SwarmReport) -> None:
    told = json.loads(as_json(demo))
    assert list(told) == [
        "format", "kind", "swarm", "started_ms", "ended_ms", "wall_s", "mode", "staleness_bound", "totals",
        "lag_histogram", "incarnations", "evaluations", "versions", "steps", "checkpoints", "plans", "objective",
        "alarms", "nodes_unable", "troubles", "reach", "pairs", "fruitless", "cost_terms", "accounts", "peers",
    ]  # fmt: skip
    assert list(told["totals"]) == [
        "admitted", "rejected", "verdicts", "trained", "dropped", "uninformative", "later_turns", "tokens", "bytes_up",
        "bytes_down", "bytes_relayed", "bytes_carried", "recalled_rollouts", "costs", "learner_costs",
        "cents_per_1000_tokens", "kwh", "versions_published", "steps", "incarnations", "weight_bytes",
        "learner_utilisation", "learner_time", "bubble",
        "away_s", "mean_train_s", "mean_waited_s", "mean_step_s", "verifying_s", "verifying_share", "banned",
        "quarantined",
    ]  # fmt: skip
    assert list(told["peers"][0]) == [
        "peer",
        "name",
        "role",
        "engine",
        "machine",
        "leases",
        "admitted",
        "rejected",
        "verdicts",
        "admitted_per_s",
        "tokens",
        "trained",
        "dropped",
        "share",
        "bytes_up",
        "bytes_down",
        "bytes_relayed",
        "hours_active",
        "hours_standby",
        "engine_s",
        "price_per_hour",
        "currency",
        "cost",
        "cost_micros",
        "cost_per_1000_tokens",
        "cents_per_1000_tokens",
        "share_of_reference",
        "kwh",
        "joules",
        "energy",
        "joules_disbelieved",
        "electricity",
        "first_seen_ms",
        "last_seen_ms",
        "audits",
        "reputation",
        "reach",
        "scored",
    ]
    assert told["format"] == "volery-report/2"
    assert sum(told["lag_histogram"].values()) == told["totals"]["trained"] == 9984


def test_csv_has_one_row_a_peer_and_a_column_a_rule(demo: SwarmReport) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(demo))))
    assert [row["peer"] for row in rows] == [peer.peer for peer in demo.peers] == [LEARNER, ALPHA, BETA, GAMMA]
    for row, peer in zip(rows, demo.peers, strict=True):
        assert int(row["admitted"]) == peer.admitted
        assert sum(int(row[f"rejected_{rule.value}"]) for rule in REJECTIONS) == int(row["rejected"]) == peer.rejected
        assert float(row["cost"]) == peer.cost


def test_the_summary_holds_what_acceptance_asks(demo: SwarmReport) -> None:
    told = summary(demo, staleness_bound=2, peak_pss_mib=3210.5, seeds={"model": 1})
    assert json.loads(json.dumps(told)) == told
    asked = {
        "wall_s",
        "versions_published",
        "staleness_bound",
        "lag_histogram",
        "admitted",
        "verdicts",
        "greedy_start",
        "greedy_end",
        "sampled_start",
        "sampled_end",
        "learner_utilisation",
        "peers",
        "weight_bytes",
        "peak_pss_mib",
        "seeds",
        "software",
    }
    assert asked <= set(told)
    assert all({"id", "role", "admitted", "tokens", "bytes_up", "bytes_down", "cost"} <= set(p) for p in told["peers"])
    assert max(map(int, told["lag_histogram"])) <= told["staleness_bound"]
    assert told["greedy_start"] < told["greedy_end"]
    assert told["verdicts"] == {"admitted": 9984, "stale": 256}
    assert told["software"]["python"].startswith("3.")
    assert summary(demo, staleness_bound=2, peak_pss_mib=None, seeds={}, wall_s=1.0)["wall_s"] == 1.0


def test_roads_are_read_from_what_nodes_logged(tmp_path: Path) -> None:
    lines = [
        {"event": "version_fetched", "fetched_bytes": 900, "patch_bytes": 0, "patches": 0},
        {"event": "version_installed", "version": "1.1"},
        {"event": "version_fetched", "fetched_bytes": 30, "patch_bytes": 20, "patches": 2},
    ]
    (tmp_path / "one").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "two").write_text(json.dumps(lines[0]) + "\n")
    assert routes_taken([tmp_path / "one", tmp_path / "two", tmp_path / "absent"]) == {
        "full": {"versions": 2, "bytes": 1810},
        "patch": {"versions": 1, "bytes": 20},
    }


# What audits found


def test_audits_and_bans_are_told(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.join(peer_row(BETA, "borealis"))
    passed, failed = story.lease(ALPHA), story.lease(BETA)
    story.deliver(passed, ALPHA, Rule.ADMITTED, version=V0)
    story.deliver(failed, BETA, Rule.AUDIT, version=V0)
    story.now_s = 30.0
    for lease, peer, above, detail in (
        (passed, ALPHA, 0, ""),
        (failed, BETA, 20, "20 of 28 tokens are off"),
    ):
        counted = count_above([Found(gap=1.0 * (place < above), lead=1.0) for place in range(28)], MARGINS)
        known, finding = after(AuditHistory(), counted, MARGINS)
        row = AuditRow(
            lease=lease, peer=peer, at_ms=story.now_ms, tokens=28, counts=counted.counts, worst=float(above),
            evidence=log_evidence(known.history), passed=finding.passed, detail=detail,
        )  # fmt: skip
        story.ledger.trust.audited([AuditOutcome(row=row, known=replace(known, banned=detail))])
    report = swarm_report(story.ledger.path)
    peers = {peer.peer: peer for peer in report.peers}
    honest, cheat = peers[ALPHA].audits, peers[BETA].audits
    assert honest is not None
    assert cheat is not None
    assert (honest.standing, honest.audits, honest.failed, honest.odds) == (TrustLevel.NEWCOMER, 1, 0, 1.0)
    assert (cheat.standing, cheat.failed, cheat.banned_at_s) == (TrustLevel.BANNED, 1, 30.0)
    assert cheat.odds > 1e6
    text = as_text(report)
    assert "30 s  borealis" in text
    assert "was banned by its audit number 1: 20 of 28 tokens are off. Damage: none of its" in " ".join(text.split())
    told = {peer["peer"]: peer["audits"] for peer in json.loads(as_json(report))["peers"]}
    assert told[BETA]["standing"] == "banned"
    assert told[ALPHA]["tokens"] == 28
    rows = {row["peer"]: row for row in csv.DictReader(io.StringIO(as_csv(report)))}
    assert (rows[BETA]["standing"], rows[BETA]["audits_failed"]) == ("banned", "1")


def test_what_verifying_took_is_told(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.now_s = 100.0
    story.here(ALPHA)
    assert swarm_report(story.ledger.path).verifying_share is None
    assert "verifying" not in as_text(swarm_report(story.ledger.path))
    for what, seconds in (("audits", 2.0), ("choices", 1.0), ("audits", 2.0)):
        story.ledger.trust.engine_used(what, seconds)
    report = swarm_report(story.ledger.path)
    assert report.wall_s == 100
    assert report.engine_s == {"audits": 4.0, "choices": 1.0}
    assert report.verifying_share == pytest.approx(0.05)
    assert report.teacher_share is None
    story.ledger.trust.engine_used("scores", 0.4 * report.wall_s)
    report = swarm_report(story.ledger.path)
    assert report.verifying_share == pytest.approx(0.05), "a teacher's scores must not count as verification"
    assert "40.0% of the run" in as_text(report)
    assert json.loads(as_json(report))["totals"]["verifying_s"] == report.engine_s
    assert "audits 4 s and tests for selective delivery 1 s of engine time: 5.0% of the run" in as_text(report)


def test_a_ledger_without_audits_has_no_table_of_them(demo: SwarmReport) -> None:
    assert all(peer.audits is None for peer in demo.peers)
    assert "Audits" not in as_text(demo)


def trial(story: Story, *, num_peers: int, num_banned: int) -> SwarmReport:
    """Write a run in which the first peers made most of the rollouts that were trained on, and the last peers were
    banned, the very last one latest.
    """
    story.join(peer_row(LEARNER, "learner", role="learner"))
    peers = [key(number + 40).peer_id for number in range(num_peers)]
    for place, peer in enumerate(peers):
        story.join(peer_row(peer, f"peer {place}"))
        for _ in range(1 + (num_peers - place) // 8):
            lease = story.lease(peer)
            story.deliver(lease, peer, Rule.ADMITTED, version=V0)
            story.train(story.leases, {lease: 1})
    for peer in peers[num_peers - num_banned :]:
        story.now_s += 10
        story.ledger.trust.confidence_written(peer, AuditHistory(banned="see our mail"), story.now_ms, decision=BAN)
    return swarm_report(story.ledger.path)


def test_bans_are_told_at_the_top(story: Story) -> None:
    report = trial(story, num_peers=6, num_banned=2)
    assert [row.name for row in report.banned] == ["peer 4", "peer 5"], (
        "banned peers must be in the order of their bans"
    )
    top = " ".join(as_text(report)[:1500].split())
    assert "trust banned 2 of 6 rollout peers (2 by the operator); 2 of the 6 rollouts trained on were theirs" in top
    totals = json.loads(as_json(report))["totals"]
    assert (totals["banned"], totals["quarantined"]) == (2, 0)


def test_of_very_many_peers_those_have_a_row_that_matter_most(story: Story) -> None:
    report = trial(story, num_peers=60, num_banned=9)
    shown = [row.name for row in listed(report)]
    assert shown[0] == "learner"
    assert {f"peer {place}" for place in range(13)} <= {*shown}, (
        "the peers with the most trained rollouts must be shown"
    )
    assert {f"peer {place}" for place in range(55, 60)} <= {*shown}
    assert len(shown) == 26
    text = as_terminal(report, width=80, color=False)
    said = " ".join(text.split())
    assert "Of 60 rollout peers, these tables show the 20 with the most trained rollouts, and the 5" in said
    assert "The other 35 are added up in one row; --all, --html, --csv and --json have a row for each." in said
    assert text.count("35 others") == text.count("total ") > 1
    assert len(text.splitlines()) < 300
    assert len(as_csv(report).splitlines()) == 62


def test_who_asks_for_all_has_a_row_of_each(story: Story) -> None:
    report = trial(story, num_peers=60, num_banned=23)
    for text in (as_terminal(report, width=80, color=False, everyone=True), as_text(report, everyone=True)):
        assert "others" not in text
        assert all(f"peer {place} " in text for place in range(60))
        assert "Bans, the last" not in text
        assert sum("by the operator" in line for line in text.splitlines() if "banned" in line) >= 23
    assert "Bans, the last 20 of 23" in as_text(report)


def test_of_few_peers_all_have_a_row(story: Story) -> None:
    report = trial(story, num_peers=25, num_banned=9)
    assert listed(report) == report.peers
    assert "others" not in as_text(report)


def test_no_table_is_of_one_column_that_would_fit_elsewhere(story: Story) -> None:
    text = as_terminal(trial(story, num_peers=6, num_banned=1), width=80, color=False)
    tables = [line for line in text.splitlines() if line.startswith(" peer ")]
    assert all(len(line.split()) > 2 for line in tables)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (1.0, "1"), (82.84, "82.8"), (999.4, "999"), (999.9, "1,000"), (12_345.0, "12,300"),
     (999_700.0, "1 million"), (1.3e6, "1.3 million"), (7.64e9, "7.64 billion"), (2e12, "2 trillion"),
     (9e14, "900 trillion"), (9.996e14, "over 10^15"), (1e15, "over 10^15"), (1e304, "over 10^15")],
)  # fmt: skip
def test_large_figures_are_said_in_words(value: float | None, shown: str) -> None:
    assert words.large(value) == shown


def test_a_learner_has_no_reputation_in_any_form(story: Story) -> None:
    report = trial(story, num_peers=2, num_banned=0)
    assert row_of(report, LEARNER).reputation is None
    told = json.loads(as_json(report))["peers"]
    assert [peer["reputation"] is None for peer in told] == [True, False, False]
    first, *others = csv.DictReader(io.StringIO(as_csv(report)))
    assert (first["band"], first["timeliness"], first["score"]) == ("", "", "")
    assert all(row["band"] == "new" for row in others)


def test_a_run_lasts_from_when_its_learner_was_there(tmp_path: Path) -> None:
    """The learner is present, and paid, before its trainer is loaded. Every table and picture counts from that time."""
    story = Story(ledger=Ledger(tmp_path / "ledger.sqlite", swarm=SWARM))
    story.join(peer_row(LEARNER, "learner", role="learner"))
    story.now_s = 8.0
    story.ledger.training.begin_incarnation(0, story.now_ms)
    story.now_s = 380.0
    story.here(LEARNER)
    story.ledger.training.begin_incarnation(1, story.now_ms)
    report = swarm_report(story.ledger.path)
    assert report.wall_s == report.accounts.lasted_s == 380.0
    assert sum(row.ended_s - row.began_s for row in report.accounts.runs) == 380.0
    text = " ".join(as_text(report).split())
    assert "time 6 min 20 s from" in text
    assert re.search(r"total 6 min 20 s", text)


# Nodes that cannot work


def trouble_row(
    peer: PeerId, kind: str, *, version: PolicyVersion | None = V0, ended_ms: int | None = None
) -> TroubleRow:
    reason = "attention 'x' is not supported" if kind == "install" else "too long"
    return TroubleRow(
        peer=peer, kind=kind, version=version, times=3, reason=reason, since_ms=START_MS, ended_ms=ended_ms
    )


def test_a_report_says_which_nodes_cannot_work_with_the_newest_version(story: Story) -> None:
    for peer in (ALPHA, BETA):
        story.join(peer_row(peer, "a peer"))
    story.publish(V0)
    story.ledger.peers.write_troubles(
        [trouble_row(ALPHA, "install"), trouble_row(ALPHA, "lease"), trouble_row(BETA, "lease", ended_ms=START_MS + 1)]
    )
    report = swarm_report(story.ledger.path)
    assert report.unable.text == "1 of 2 nodes cannot install 1.0: attention 'x' is not supported"
    assert report.unable.text in " ".join(as_text(report, width=200).split())
    told = json.loads(as_json(report))
    assert told["nodes_unable"] == {"text": report.unable.text, "nodes": 1, "of": 2}
    assert [(row["kind"], row["ended_ms"]) for row in told["troubles"] if row["peer"] == BETA] == [
        ("lease", START_MS + 1)
    ]
    story.ledger.peers.write_troubles([trouble_row(BETA, "install")])
    assert swarm_report(story.ledger.path).unable.nodes == 2
    story.publish(V1)
    assert swarm_report(story.ledger.path).unable.nodes == 0, "no node has reported on the next version"
    assert "cannot install" not in as_text(swarm_report(story.ledger.path))


def test_a_report_says_that_leases_bring_nothing_until_one_does(story: Story) -> None:
    story.join(peer_row(ALPHA, "a peer"))
    story.publish(V0)

    def spin(leases: int, every_s: float) -> None:
        for number in range(leases):
            story.now_s += every_s
            status = "expired" if number % 4 == 3 else "returned"
            story.ledger.work.leases_closed([story.lease(ALPHA)], status, story.now_ms)

    spin(40, 0.1)
    assert swarm_report(story.ledger.path).fruitless is None, "a pause"
    spin(8, 10.0)
    report = swarm_report(story.ledger.path)
    assert str(report.fruitless) == ("The last 48 leases brought no record, over 84 s: 36 returned, 12 expired.")
    assert "leases" in as_text(report)
    assert json.loads(as_json(report))["fruitless"]["leases"] == 48
    story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V0)
    assert swarm_report(story.ledger.path).fruitless is None


def test_leases_that_were_recalled_are_not_among_those_that_bring_nothing(story: Story) -> None:
    story.join(peer_row(ALPHA, "a peer"))
    for _ in range(20):
        story.now_s += 10.0
        story.ledger.work.leases_closed([story.lease(ALPHA)], "recalled", story.now_ms)
    assert swarm_report(story.ledger.path).fruitless is None


def test_a_ledger_of_before_troubles_were_told_is_read(story: Story) -> None:
    story.join(peer_row(ALPHA, "a peer"))
    path = story.ledger.path
    story.ledger.close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE troubles")
    assert swarm_report(path).troubles == ()
