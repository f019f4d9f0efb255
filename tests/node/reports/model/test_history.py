"""A run's history: amounts over time, reasons of rejections, and bounds for a long run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.ledger.work_tables import NUMBER
from node.reports import own_report, swarm_report
from node.reports.model.history import BINS, EVIDENCE_KEPT, RECEIVERS_KEPT, Bins, History, joined, peers_with_history
from node.state.receipts import Receipts
from protocol.accounting.claims import Price
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import Rule
from tests.node.state.test_receipts import receipt
from tests.support.ledgers import ALPHA, BETA, GAMMA, START_MS, Story, key, open_story, peer_row
from tests.support.page_stories import crowd

V0, V1 = PolicyVersion(1, 0), PolicyVersion(1, 1)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return open_story(tmp_path / "ledger.sqlite")


def history_of(story: Story) -> History:
    found = swarm_report(story.ledger.path, with_history=True).history
    assert found is not None
    return found


def test_it_is_read_only_where_it_is_asked_for(story: Story) -> None:
    assert swarm_report(story.ledger.path).history is None


def test_deliveries_are_counted_when_they_came(story: Story) -> None:
    for peer in (ALPHA, BETA):
        story.join(peer_row(peer, "one"))
    story.now_s = 30
    story.deliver(story.lease(ALPHA), ALPHA, *[Rule.ADMITTED] * 4, version=V0)
    story.now_s = 4800
    story.deliver(story.lease(ALPHA), ALPHA, *[Rule.STALE] * 3, version=V0)
    story.deliver(story.lease(BETA), BETA, *[Rule.ADMITTED] * 2, version=V0)
    story.now_s = 9600
    story.deliver(story.lease(BETA), BETA, Rule.ADMITTED, version=V0)
    history = history_of(story)
    assert len(history.judged) == BINS
    told = {peer: [one for one in of.judged if one.admitted or one.rejected] for peer, of in history.peers.items()}
    assert [(one.at_s, one.width_s, one.admitted, one.rejected) for one in told[ALPHA]] == [
        (0.0, 100.0, 4, 0),
        (4800.0, 100.0, 0, 3),
    ]
    assert [(one.at_s, one.admitted) for one in told[BETA]] == [(4800.0, 2), (9500.0, 1)], "the last moment has a place"
    assert sum(one.admitted for one in history.judged) == 7
    assert sum(one.rejected for one in history.judged) == 3
    assert (told[ALPHA][0].admitted_per_min, told[ALPHA][1].rejected_per_min) == (2.4, 1.8)


def test_the_newest_evidence_of_each_rule_is_kept(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    for number in range(5):
        story.now_s = 10.0 * number
        for rule in (Rule.STALE, Rule.REWARD):
            story.deliver(story.lease(ALPHA), ALPHA, rule, version=V1, lag=number)
    story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V1)
    found = history_of(story).peers[ALPHA].evidence
    assert set(found) == {Rule.STALE, Rule.REWARD}
    for rule in found:
        assert [one.lag for one in found[rule]] == [4, 3, 2][:EVIDENCE_KEPT]
        assert [one.at_s for one in found[rule]] == [40.0, 30.0, 20.0]
        assert {(one.detail, one.version, one.index) for one in found[rule]} == {(rule.value, V1, 0)}


def test_rules_that_are_not_known_share_their_evidence(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    leases = [story.lease(ALPHA) for _ in range(8)]
    for lease in leases:
        story.deliver(lease, ALPHA, Rule.STALE, version=V0)
    with story.ledger.transaction() as db:
        for number, lease in enumerate(leases):
            db.execute(f"UPDATE record_rows SET rule = ? WHERE lease = {NUMBER}", (f"rule-{number % 4}", lease))
    found = history_of(story).peers[ALPHA].evidence
    assert {rule: len(kept) for rule, kept in found.items()} == {Rule.OTHER: EVIDENCE_KEPT}


def test_lags_are_those_of_each_step(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    first, second, third = (story.lease(ALPHA) for _ in range(3))
    for lease in (first, second, third):
        story.deliver(lease, ALPHA, *[Rule.ADMITTED] * 4, version=V0)
    story.train(1, {first: 0})
    story.train(2, {second: 1, third: 2})
    lags = history_of(story).lags
    assert {step: (lag.mean, lag.largest) for step, lag in lags.items()} == {1: (0.0, 0), 2: (1.5, 2)}


def test_who_was_given_most_is_named(story: Story) -> None:
    receivers = [key(number).peer_id for number in range(10, 10 + RECEIVERS_KEPT + 2)]
    for peer in (ALPHA, *receivers):
        story.join(peer_row(peer, "one"))
    for number, receiver in enumerate(receivers):
        story.relay(receiver, V0, {ALPHA: 1000 + number})
    story.relay(receivers[0], V1, {ALPHA: 5000})
    given = history_of(story).peers[ALPHA].given
    assert len(given) == RECEIVERS_KEPT
    assert (given[0].receiver, given[0].num_bytes, given[0].versions) == (receivers[0], 6000, 2)
    assert [one.num_bytes for one in given] == sorted((one.num_bytes for one in given), reverse=True)


def test_a_ledger_of_before_relays_has_a_history(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    with story.ledger.transaction() as db:
        db.execute("DROP TABLE relayed")
        db.execute("DROP TABLE relay_receipts")
    assert history_of(story).peers[ALPHA].given == ()


def test_stays_are_joined_where_nobody_could_see_between_them(story: Story) -> None:
    story.join(peer_row(GAMMA, "one"))
    for number in range(300):
        story.now_s = 10.0 * number
        story.join(peer_row(ALPHA, "comes and goes"))
        story.now_s += 9
        story.here(ALPHA, reason="gone")
    story.now_s = 5000
    story.join(peer_row(ALPHA, "comes and goes"))
    story.now_s = 6000
    story.here(ALPHA)
    history = history_of(story)
    assert history.spans[ALPHA] == ((0.0, 2999.0), (5000.0, 6000.0))
    assert history.presences[ALPHA] == 301


def test_only_so_many_peers_have_a_history_and_the_blamed_are_among_them(tmp_path: Path) -> None:
    report = crowd(tmp_path / "ledger.sqlite", 230, blamed=20)
    assert report.history is not None
    assert len(report.history.peers) == 200
    assert len(report.history.spans) == 230
    assert {peer.peer for peer in report.peers if peer.blamed} <= report.history.peers.keys()


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(2, 30))
def test_who_is_told_of(blamed: list[int], limit: int) -> None:
    peers = [(PeerId(str(number)), count) for number, count in enumerate(blamed)]
    told = peers_with_history(peers, limit)
    assert len(told) == min(limit, len(peers))
    order = [peer for peer, _ in peers]
    assert sorted(told, key=order.index) == told, "in the order of the report"
    guilty = sorted((count for _, count in peers if count), reverse=True)[: limit // 2]
    assert sorted((dict(peers)[peer] for peer in told), reverse=True)[: len(guilty)] == guilty


@given(st.floats(0, 1e7), st.lists(st.tuples(st.integers(-5, 200), st.integers(0, 9), st.integers(0, 9))))
def test_nothing_is_lost_between_the_stretches(wall_s: float, counts: list[tuple[int, int, int]]) -> None:
    bins = Bins(wall_s=wall_s)
    found = bins.filled(counts)
    assert len(found) == bins.number <= BINS
    assert sum(one.admitted for one in found) == sum(admitted for _, admitted, _ in counts)
    assert sum(one.rejected for one in found) == sum(rejected for _, _, rejected in counts)
    assert all(one.width_s > 0 for one in found)
    assert bins.number == BINS or found[-1].at_s <= wall_s


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), max_size=12), st.integers(0, 5))
def test_joined_stretches_cover_the_same_and_lie_apart(presences: list[tuple[int, int]], gap: int) -> None:
    spans = [(float(began), float(began + length)) for began, length in presences]
    found = joined(spans, gap_s=gap)
    assert all(any(b <= began and ended <= e for b, e in found) for began, ended in spans)
    assert all(later[0] - before[1] > gap for before, later in pairwise(found))


def test_a_volunteers_own_history(tmp_path: Path) -> None:
    books = Receipts(tmp_path / "receipts.sqlite")
    first = books.session_began(Price(micros_per_hour=1_000_000), START_MS)
    books.session_lasts(first, START_MS + 9_600_000, bytes_up=1, bytes_down=2)
    one = receipt(1, Rule.ADMITTED, Rule.ADMITTED, Rule.STALE)
    books.add(one, b"raw", engine_s=1.0)
    report = own_report(books, peer=ALPHA, with_history=True)
    assert (report.peer.admitted, report.peer.rejected) == (2, 1)
    assert own_report(books, peer=ALPHA).history is None
    assert report.history is not None
    assert sum(each.admitted for each in report.history.judged) == report.peer.admitted
    assert sum(each.rejected for each in report.history.judged) == report.peer.rejected
    assert len(report.spans) == 1
