"""Compute what rollout peers cost over time, and what the plans expected. Pure.

A peer's cost is spread over each of its presences by its active time.

Invariants:

- The cost curve ends at the cost that the report states, in the swarm's currency.
- The planned curve rises at the price per hour of the plan in force, from the first plan on.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.reports.charts.scale import CURVE_POINTS, Point
from node.reports.model.cost_allocation import cost_pieces
from node.reports.model.report import PeerReport, Role, SwarmReport
from node.reports.model.time_spread import accumulated
from protocol.accounting.claims import CURRENCY, MICROS


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Both curves in whole units of `currency`; `planned` is empty without plans. `others`: number of rollout peers
    that ask for another currency and are not included.
    """

    currency: str
    spent: tuple[Point, ...]
    planned: tuple[Point, ...]
    others: int

    @property
    def total(self) -> float:
        return self.spent[-1][1] if self.spent else 0.0

    @property
    def planned_total(self) -> float | None:
        return self.planned[-1][1] if self.planned else None

    @property
    def excess(self) -> float | None:
        """By which fraction of the plan it cost more; None without a plan that cost anything."""
        return self.total / self.planned_total - 1 if self.planned_total else None


def costs_of(report: SwarmReport) -> Costs:
    """Return both curves for the rollout peers of `report`."""
    currency = _currency(report)
    peers = [peer for peer in report.rollout_peers if peer.price.currency == currency]
    others = [peer for peer in report.rollout_peers if peer.price.currency != currency and peer.cost_micros]
    return Costs(
        currency=currency,
        spent=_spent(peers, report.wall_s),
        planned=_planned(report),
        others=len(others),
    )


def _currency(report: SwarmReport) -> str:
    """Return the learner's currency, which plans use; without a learner, that of the first peer with a price."""
    asked = [peer for peer in report.rollout_peers if peer.price.micros_per_hour]
    learners = [peer for peer in report.peers if peer.role is Role.LEARNER]
    return next((peer.price.currency for peer in (*learners, *asked)), CURRENCY)


def _spent(peers: list[PeerReport], wall_s: float) -> tuple[Point, ...]:
    """Return the cost at each of CURVE_POINTS moments."""
    moments = [wall_s * number / (CURVE_POINTS - 1) for number in range(CURVE_POINTS)]
    pieces = [piece for peer in peers for piece in cost_pieces(peer)]
    return tuple(zip(moments, accumulated(pieces, moments), strict=True))


def _planned(report: SwarmReport) -> tuple[Point, ...]:
    """Return the sum of the plans' prices: corners of straight pieces, at most CURVE_POINTS of them."""
    if not report.plans:
        return ()
    amount = 0.0
    corners: list[Point] = [(max(0.0, report.plans[0].at_s), 0.0)]
    ends = [*(plan.at_s for plan in report.plans[1:]), report.wall_s]
    for plan, end_s in zip(report.plans, ends, strict=True):
        amount += plan.micros_per_hour / MICROS * max(0.0, end_s - plan.at_s) / 3600
        corners.append((end_s, amount))
    every = -(-len(corners) // CURVE_POINTS)
    return tuple(corners[::every]) if corners[::every][-1] == corners[-1] else (*corners[::every], corners[-1])
