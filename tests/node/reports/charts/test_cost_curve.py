"""Cost against the planned cost: the curves end at their totals."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.reports import swarm_report
from node.reports.charts.cost_curve import Costs, costs_of
from node.reports.charts.run_curves import cost_sentence
from node.reports.charts.scale import CURVE_POINTS
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, Story, open_story, peer_row

HOUR_S = 3600.0


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return open_story(tmp_path / "ledger.sqlite")


def costs(story: Story) -> Costs:
    return costs_of(swarm_report(story.ledger.path, with_history=True))


def at(points: tuple[tuple[float, float], ...], moment: float) -> float:
    return min(points, key=lambda point: abs(point[0] - moment))[1]


def test_a_run_of_two_hours(story: Story) -> None:
    story.join(peer_row(LEARNER, "learner", role="learner", micros=9_000_000))
    story.join(peer_row(ALPHA, "atlas", micros=2_000_000))
    story.plan(ALPHA, micros=1_500_000)
    story.now_s = HOUR_S
    story.here(ALPHA)
    story.join(peer_row(BETA, "borealis", micros=1_000_000))
    story.plan(ALPHA, BETA, micros=3_000_000)
    story.now_s = 2 * HOUR_S
    for peer in (LEARNER, ALPHA, BETA):
        story.here(peer)
    found = costs(story)
    assert found.currency == "USD"
    assert found.total == pytest.approx(5.0), "without the learner"
    assert found.planned_total == pytest.approx(4.5)
    assert found.excess == pytest.approx(5 / 4.5 - 1)
    assert at(found.spent, HOUR_S) == pytest.approx(2.0, abs=0.02)
    assert at(found.planned, HOUR_S) == pytest.approx(1.5)
    assert [amount for _, amount in found.spent] == sorted(amount for _, amount in found.spent)
    assert cost_sentence(found) == "5.00 USD, 11.1% more than the 4.50 USD of the plans in force."


def test_time_before_the_first_start_is_paid_as_well(story: Story) -> None:
    story.now_s = -HOUR_S
    story.join(peer_row(ALPHA, "early", micros=1_000_000))
    story.now_s = HOUR_S
    story.here(ALPHA)
    found = costs(story)
    assert (found.spent[0], found.total) == (pytest.approx((0.0, 1.0)), pytest.approx(2.0))


def test_other_currencies_are_not_added_up(story: Story) -> None:
    story.join(peer_row(LEARNER, "learner", role="learner", micros=1, currency="EUR"))
    story.join(peer_row(ALPHA, "atlas", micros=2_000_000, currency="EUR"))
    story.join(peer_row(BETA, "borealis", micros=2_000_000))
    story.join(peer_row(GAMMA, "a gift"))
    story.now_s = HOUR_S
    for peer in (ALPHA, BETA, GAMMA):
        story.here(peer)
    found = costs(story)
    assert (found.currency, found.others) == ("EUR", 1)
    assert found.total == pytest.approx(2.0)
    assert found.planned == ()
    assert cost_sentence(found) == "2.00 EUR; no plan was made. 1 with a price in another currency are not included."


def test_nobody_asks_for_money(story: Story) -> None:
    story.join(peer_row(ALPHA, "a gift"))
    story.plan(ALPHA)
    story.now_s = HOUR_S
    story.here(ALPHA)
    assert cost_sentence(costs(story)) == "No peer asked for money."


def test_very_many_plans_are_a_curve_of_few_points(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas", micros=1_000_000))
    for _ in range(1000):
        story.plan(ALPHA, micros=1_000_000)
        story.now_s += 3.6
    story.here(ALPHA)
    found = costs(story)
    assert len(found.planned) <= CURVE_POINTS + 1
    assert found.planned_total == pytest.approx(1.0)
