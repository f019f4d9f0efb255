"""What rollout peers cost over time, and what the plans said that they would.

Pure. What always holds: the curve of the cost ends at what the report says that they cost, in the swarm's currency; a
peer's cost is spread evenly over each of its stays, by how long of that it was at work; the planned curve
rises at the price per hour of the plan that stood, from the first plan on.
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
    """Both curves in whole units of `currency`; `planned` is empty where nothing was planned. `others` is how many
    rollout peers ask for money in another currency and are not counted in.
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
        """By which share of the plan it cost more; None without a plan that cost anything."""
        return self.total / self.planned_total - 1 if self.planned_total else None


def costs_of(report: SwarmReport) -> Costs:
    """Return what is said above of the rollout peers of `report`."""
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
    """The learner's: plans are made in it. Without a learner in the ledger, that of the first who asks for money."""
    asked = [peer for peer in report.rollout_peers if peer.price.micros_per_hour]
    learners = [peer for peer in report.peers if peer.role is Role.LEARNER]
    return next((peer.price.currency for peer in (*learners, *asked)), CURRENCY)


def _spent(peers: list[PeerReport], wall_s: float) -> tuple[Point, ...]:
    """The cost at each of CURVE_POINTS moments."""
    moments = [wall_s * number / (CURVE_POINTS - 1) for number in range(CURVE_POINTS)]
    pieces = [piece for peer in peers for piece in cost_pieces(peer)]
    return tuple(zip(moments, accumulated(pieces, moments), strict=True))


def _planned(report: SwarmReport) -> tuple[Point, ...]:
    """The sum of the plans' prices: corners of a line of straight pieces, at most CURVE_POINTS of them."""
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
