"""Costs by version, start and day: each cost is in the right row, and each table adds up to the run."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learner.ledger.queries.peers import PeerPresence
from node.reports import accounts_as_csv, as_csv, as_html, as_json, as_terminal, as_text, swarm_report
from node.reports.model.cost_allocation import DAY_MS, MAX_DAYS
from node.reports.model.costs import NO_ACCOUNTS, Account, CostTerms, Reference
from node.reports.model.presences import presences_of
from node.reports.model.report import PeerReport, SwarmReport
from protocol.accounting.claims import MAX_WATTS, EnergySource, Price
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import Rule
from tests.support.examples import examples
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, START_MS, Story, demo_run, open_story, peer_row

HOUR_S = 3600.0
NVML, RAPL = EnergySource.NVML, EnergySource.RAPL
TERMS = CostTerms(
    currency="USD", per_kwh=0.5, reference=Reference(name="a rented GPU", per_hour=0.36, tokens_per_s=1000.0)
)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return open_story(tmp_path / "ledger.sqlite")


def report_of(story: Story, terms: CostTerms = TERMS) -> SwarmReport:
    return swarm_report(story.ledger.path, terms=terms, with_history=True)


def row_of(report: SwarmReport, peer: PeerId) -> PeerReport:
    return next(row for row in report.peers if row.peer == peer)


def adds_up(report: SwarmReport) -> None:
    for kind, rows in report.accounts.kinds.items():
        assert sum(row.active_ms for row in rows) == round(1000 * sum(peer.active_s for peer in report.peers)), kind
        assert sum(row.standby_ms for row in rows) == round(1000 * sum(peer.standby_s for peer in report.peers)), kind
        for currency in {peer.price.currency for peer in report.peers}:
            spent = sum(row.costs.get(currency, 0) for row in rows)
            asked = [peer for peer in report.peers if peer.price.currency == currency]
            assert spent == report.costs.get(currency, 0) == sum(peer.cost_micros for peer in asked), kind
        assert sum(row.bytes_up for row in rows) == report.bytes_up, kind
        assert sum(row.bytes_down for row in rows) == report.bytes_down, kind
        assert sum(row.tokens for row in rows) == report.tokens == sum(peer.tokens for peer in report.peers), kind
        assert sum(row.joules or 0 for row in rows) == round(report.joules or 0.0), kind
        assert report.joules is None or report.joules == sum(peer.joules or 0.0 for peer in report.peers)
        assert all(before.ended_s <= after.began_s for before, after in pairwise(rows)), kind


def two_days(story: Story) -> SwarmReport:
    """A learner at 1 USD an hour for 30 hours, a peer at 0.6 for the first two and the last two, one that stands by."""
    story.join(peer_row(LEARNER, "learner", role="learner", micros=1_000_000))
    story.join(peer_row(ALPHA, "atlas", micros=600_000))
    story.publish(PolicyVersion(1, 0))
    story.deliver(story.lease(ALPHA), ALPHA, *[Rule.ADMITTED] * 4, version=PolicyVersion(1, 0), tokens=250)
    story.now_s = HOUR_S
    story.publish(PolicyVersion(1, 1))
    story.now_s = 2 * HOUR_S
    story.here(ALPHA, up=1000, nvml=3.6e6, rapl=7.2e5)
    story.now_s = 28 * HOUR_S
    story.ledger.training.begin_incarnation(1, story.now_ms)
    story.join(peer_row(ALPHA, "atlas", micros=600_000))
    story.join(peer_row(BETA, "borealis", micros=9_000_000))
    story.now_s = 29 * HOUR_S
    story.deliver(story.lease(ALPHA), ALPHA, *[Rule.ADMITTED] * 4, version=PolicyVersion(1, 1), tokens=500)
    story.now_s = 30 * HOUR_S
    story.here(LEARNER, up=3000, down=10, owner=1.08e8)
    story.here(ALPHA, up=2000, nvml=1.8e6)
    story.here(BETA, standby_s=2 * HOUR_S)
    return report_of(story)


def hours(rows: tuple[Account, ...]) -> list[float]:
    return [row.active_ms / 3_600_000 for row in rows]


def test_what_falls_where(story: Story) -> None:
    report = two_days(story)
    adds_up(report)
    runs, versions = report.accounts.runs, report.accounts.versions
    assert [row.name for row in runs] == ["1", "2"]
    assert hours(runs) == [30.0, 4.0], "the learner's stay began at its first start, and is at work for all of it"
    assert [row.standby_ms for row in runs] == [0, 7_200_000]
    assert [row.costs for row in runs] == [{"USD": 29_200_000}, {"USD": 3_200_000}]
    assert [row.learners for row in runs] == [{"USD": 28_000_000}, {"USD": 2_000_000}]
    assert [row.tokens for row in runs] == [1000, 2000]
    assert [row.bytes_up for row in runs] == [3800, 2200]
    assert [row.joules for row in runs] == [round(4.32e6 + 1.08e8 * 28 / 30), round(1.8e6 + 1.08e8 * 2 / 30)]
    assert runs[1].cents_per_1000_tokens == {"USD": pytest.approx(160.0)}
    assert [row.name for row in versions] == ["1.0", "1.1"], "nothing was before the first"
    assert hours(versions) == [2.0, 32.0]
    assert [row.tokens for row in versions] == [1000, 2000]
    assert [(row.began_s, row.ended_s) for row in versions] == [(0.0, HOUR_S), (HOUR_S, 30 * HOUR_S)]


def test_days_are_those_of_utc(story: Story) -> None:
    days = two_days(story).accounts.days
    assert START_MS % DAY_MS == 32_000_000, "08:53:20"
    assert [row.name for row in days] == ["2025-10-09", "2025-10-10"]
    to_midnight = (DAY_MS - 32_000_000) / 3_600_000
    assert hours(days) == [pytest.approx(2 + to_midnight, abs=1e-6), pytest.approx(34 - 2 - to_midnight, abs=1e-6)]


def test_days_on_which_nothing_happened_are_left_out(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.now_s = 60
    story.here(ALPHA)
    story.now_s = 10 * 86_400
    story.join(peer_row(ALPHA, "atlas"))
    story.now_s += 60
    story.here(ALPHA)
    report = report_of(story)
    assert [row.name for row in report.accounts.days] == ["2025-10-09", "2025-10-19"]
    adds_up(report)


def test_a_clock_that_was_set_makes_no_endless_table(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas", micros=1_000_000))
    with story.ledger.transaction() as db:
        db.execute("UPDATE presence SET began_ms = 0, ended_ms = 9000000000000000")
        db.execute("UPDATE incarnations SET began_ms = 0")
    report = report_of(story)
    assert len(report.accounts.days) == MAX_DAYS
    adds_up(report)


def test_orphaned_groups_count_when_they_were_delivered(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.publish(PolicyVersion(1, 0))
    story.now_s = 10
    story.publish(PolicyVersion(1, 1))
    story.now_s = 20
    story.deliver(story.lease(ALPHA), ALPHA, *[Rule.ORPHANED] * 4, version=PolicyVersion(1, 0), tokens=25)
    story.here(ALPHA)
    report = report_of(story)
    assert [row.tokens for row in report.accounts.versions] == [0, 100]
    adds_up(report)


def test_a_ledger_of_before_joules_were_kept(story: Story) -> None:
    two_days(story)
    with story.ledger.transaction() as db:
        db.execute("DROP TABLE energy")
    report = report_of(story)
    assert report.joules is None
    assert {row.joules for row in report.accounts.versions} == {None}
    assert "kWh" not in as_text(report, width=200)
    adds_up(report)


# What is believed


def test_time_that_two_stays_share_is_the_earlier_ones() -> None:
    first = PeerPresence(peer=ALPHA, began_ms=0, ended_ms=10_000, bytes_up=1, bytes_down=2, standby_s=4.0)
    second = PeerPresence(peer=ALPHA, began_ms=5000, ended_ms=8000, bytes_up=3, bytes_down=4, standby_s=3.0)
    third = PeerPresence(peer=ALPHA, began_ms=9000, ended_ms=15_000, bytes_up=5, bytes_down=6, standby_s=60.0)
    found = presences_of([third, first, second], 1000)
    assert [(one.began_s, one.ended_s, one.active_s, one.standby_s) for one in found] == [
        (-1.0, 9.0, 6.0, 4.0), (9.0, 9.0, 0.0, 0.0), (9.0, 14.0, 0.0, 5.0),
    ]  # fmt: skip


def test_claims_are_held_against_the_time_since_the_stay_before() -> None:
    def presence(began_s: float, ended_s: float, joules: float) -> PeerPresence:
        return PeerPresence(
            peer=ALPHA, began_ms=round(1000 * began_s), ended_ms=round(1000 * ended_s), bytes_up=0, bytes_down=0,
            energy={NVML: joules / 2, RAPL: joules / 2},
        )  # fmt: skip

    most = MAX_WATTS * 1000
    assert [one.is_believed for one in presences_of([presence(0, 1000, most), presence(2000, 3000, 2 * most)], 0)] == [
        True,
        True,
    ]
    found = presences_of([presence(0, 1000, most + 1), presence(2000, 3000, 2 * most + 1)], 0)
    assert [one.is_believed for one in found] == [
        False, False,
    ]  # fmt: skip
    assert presences_of([presence(0, 0, 60 * MAX_WATTS)], 0)[0].is_believed


def test_who_exaggerates_spoils_no_sum_and_is_named(story: Story) -> None:
    for peer, name in ((ALPHA, "atlas"), (BETA, "boaster"), (GAMMA, "silent")):
        story.join(peer_row(peer, name, micros=100_000))
    story.now_s = HOUR_S
    story.here(ALPHA, nvml=3.6e6)
    story.here(BETA, other=1e15)
    story.here(GAMMA)
    report = report_of(story)
    assert (report.joules, row_of(report, BETA).joules, row_of(report, BETA).joules_disbelieved) == (3.6e6, None, 1e15)
    assert (row_of(report, ALPHA).energy, row_of(report, GAMMA).joules) == ({NVML: 3.6e6}, None)
    adds_up(report)
    text = " ".join(as_text(report, width=200).split())
    assert "1 kWh, as reported: 1 by GPU meters; electricity cost 0.5000 USD" in text
    assert "1 of 3 reported none, and are not included" in text
    assert "not included, because more than 10 kW: 277,777,778 kWh reported by boaster" in text
    page = as_html(report)
    assert "energy, not included" in page
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(as_csv(report)))}
    atlas = rows["atlas"]
    assert (atlas["joules_nvml"], atlas["kwh"], atlas["electricity"]) == ("3600000.0", "1.0", "0.5")
    assert (rows["boaster"]["joules"], rows["boaster"]["joules_disbelieved"]) == ("", "1000000000000000.0")


# Against a reference


def test_peers_are_held_against_a_rented_machine(story: Story) -> None:
    report = two_days(story)
    alpha = row_of(report, ALPHA)
    assert TERMS.reference is not None
    assert TERMS.reference.per_1000_tokens == pytest.approx(1e-4)
    assert alpha.cents_per_1000_tokens == pytest.approx(80.0)
    assert alpha.against(TERMS.reference, "USD") == pytest.approx(8000.0)
    assert alpha.against(TERMS.reference, "EUR") is None, "prices are never converted"
    assert alpha.against(None, "USD") is None
    gift = replace(alpha, price=Price())
    assert gift.against(TERMS.reference, "EUR") == 0.0, "nothing is nothing in any currency"
    assert row_of(report, BETA).against(TERMS.reference, "USD") is None, "without tokens"
    text = " ".join(as_text(report, width=200).split())
    assert "a rented GPU, at 0.3600 USD an hour and 1,000 tokens per s, would cost 0.01 cents" in text
    assert "rollout peers cost 80 cents (USD) per 1000 admitted tokens, 800000.0% of that" in text
    assert "32.40 USD (30.00 USD of it for the learner), or 1,080 cents (USD) per 1000 admitted tokens" in text
    assert "reference" not in as_text(report_of(story, CostTerms(currency="USD")))


# As people and programs read it


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_tables_fit_and_name_what_they_are_of(story: Story, width: int) -> None:
    text = as_terminal(two_days(story), width=width, color=False)
    assert max(map(len, text.splitlines())) <= width
    for kind in NO_ACCOUNTS.kinds:
        assert f"Cost by {kind}" in text


def test_only_the_latest_versions_are_listed_for_people(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    demo_run(path, steps=90, restart_at=40)
    report = swarm_report(path, with_history=True)
    adds_up(report)
    text = as_text(report)
    assert "Cost by version, the last 12 of 95" in text
    assert "Cost by day" not in text, "a single row would repeat the line of all"
    page = as_html(report)
    assert "Cost by version, the last 60 of 95, the newest first" in page
    assert len(json.loads(as_json(report))["accounts"]["versions"]) == 95
    assert len(list(csv.DictReader(io.StringIO(accounts_as_csv(report, "version"))))) == 95


def test_the_json_and_csv_of_accounts_are_a_promise(story: Story) -> None:
    report = two_days(story)
    found = json.loads(as_json(report))
    assert found["cost_terms"] == {
        "currency": "USD",
        "per_kwh": 0.5,
        "reference": {
            "name": "a rented GPU", "per_hour": 0.36, "tokens_per_s": 1000.0,
            "cents_per_1000_tokens": pytest.approx(0.01),
        },
    }  # fmt: skip
    assert list(found["accounts"]) == ["runs", "days", "versions"]
    assert list(found["accounts"]["runs"][0]) == [
        "name", "began_s", "ended_s", "hours_active", "hours_standby", "costs", "costs_micros", "learner_costs", "kwh",
        "joules", "electricity", "bytes_up", "bytes_down", "tokens", "cents_per_1000_tokens",
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(accounts_as_csv(report, "run"))))
    assert [(row["name"], row["currency"], row["cost_micros"], row["learner_cost"]) for row in rows] == [
        ("1", "USD", "29200000", "28.0"), ("2", "USD", "3200000", "2.0"),
    ]  # fmt: skip


def test_several_currencies_have_a_row_each(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas", micros=1_000_000, currency="EUR"))
    story.join(peer_row(BETA, "borealis", micros=2_000_000))
    story.now_s = HOUR_S
    story.here(ALPHA)
    story.here(BETA)
    report = report_of(story)
    adds_up(report)
    rows = list(csv.DictReader(io.StringIO(accounts_as_csv(report, "run"))))
    assert [(row["currency"], row["cost"]) for row in rows] == [("EUR", "1.0"), ("USD", "2.0")]


def test_nobody_was_here_yet(story: Story) -> None:
    report = report_of(story)
    assert [row.name for row in report.accounts.runs] == ["1"]
    assert report.accounts.days == ()
    assert "Cost by" not in as_html(report)


# Whatever happened


STAYS = st.lists(
    st.tuples(
        st.sampled_from([LEARNER, ALPHA, BETA, GAMMA]),
        st.floats(0, 4e5),  # until it comes
        st.floats(0, 2e5),  # for how long
        st.floats(0, 2e5),  # of that standing by, perhaps more than there is
        st.floats(0, 1e10),  # joules, believed or not
        st.integers(0, 1 << 40),
    ),
    max_size=8,
)


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    presences=STAYS, versions=st.lists(st.floats(0, 8e5), max_size=5), restarts=st.lists(st.floats(0, 8e5), max_size=3)
)
def test_every_table_adds_up_whatever_happened(
    tmp_path_factory: pytest.TempPathFactory,
    presences: list[tuple[PeerId, float, float, float, float, int]],
    versions: list[float],
    restarts: list[float],
) -> None:
    story = open_story(tmp_path_factory.mktemp("run") / "ledger.sqlite")
    prices = {LEARNER: ("USD", 400_000), ALPHA: ("USD", 123_457), BETA: ("EUR", 999_999), GAMMA: ("USD", 0)}
    for peer, come_s, long_s, standby_s, joules, moved in presences:
        story.now_s = come_s
        currency, micros = prices[peer]
        role = "learner" if peer == LEARNER else "rollout"
        story.join(peer_row(peer, "a peer", role=role, micros=micros, currency=currency))
        story.now_s += long_s
        if role == "rollout":
            tokens = [Rule.ADMITTED, Rule.STALE, Rule.ADMITTED]
            story.deliver(story.lease(peer), peer, *tokens, version=PolicyVersion(1, 0), tokens=moved % 97)
        story.here(peer, standby_s=standby_s, up=moved, down=moved // 3, nvml=joules)
    for number, at_s in enumerate(sorted(versions)):
        story.now_s = at_s
        story.publish(PolicyVersion(1, number))
    for at_s in sorted(restarts):
        story.now_s = at_s
        story.ledger.training.begin_incarnation(0, story.now_ms)
    story.ledger.close()
    adds_up(report_of(story))
