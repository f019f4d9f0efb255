"""Run the planner in the simulation: what it sees, which peers it activates, and what that costs."""

from __future__ import annotations

import pytest

from learner.provisioning.estimation.recording import Delivered, Installed, Planned, Stepped
from learner.provisioning.planner.planner import Settings
from learner.simulation.machines import Absence
from learner.simulation.plan_driver import Blind, Reviews, Script
from learner.simulation.world import World
from tests.support.simulated_swarms import LEARNING, machine, machines, of, world

CHEAP, DEAR = 0.1, 1.0


def mixed(**more: object) -> list[object]:
    return [*(machine(f"cheap {n}", price=CHEAP, **more) for n in range(5)), *dear(5)]


def dear(count: int) -> list[object]:
    return [machine(f"dear {n}", price=DEAR) for n in range(count)]


def test_the_dear_ones_are_released_and_then_cost_nothing() -> None:
    simulated, events = world(mixed(), plan=True)  # type: ignore[arg-type]
    outcome = simulated.run(until_s=5400)
    plans = of(events, Planned)
    assert len(plans[0].active) == 10
    assert set(plans[-1].active) == {f"cheap {n}" for n in range(5)}
    assert any("dearest per rollout" in reason for plan in plans for reason in plan.reasons)
    assert outcome.paid["dear 0"] < 0.5 * DEAR
    assert outcome.active_s["cheap 0"] == pytest.approx(5400)
    assert simulated.nodes["dear 0"].worker.standby.startswith("On standby")  # type: ignore[index]


def test_who_stands_by_follows_versions_and_does_no_work() -> None:
    simulated, events = world(mixed(), plan=True)  # type: ignore[arg-type]
    simulated.run(until_s=5400)
    released_s = max(plan.at_s for plan in of(events, Planned))
    late = released_s + 60
    assert [event for event in of(events, Installed) if event.peer == "dear 0" and event.at_s > late]
    assert not [event for event in of(events, Delivered) if event.peer == "dear 0" and event.at_s > late]


def test_half_is_killed_and_replaced_and_nothing_is_too_old() -> None:
    gone = [Absence(from_s=3600.0)]
    pool = [machine(f"cheap {n}", price=CHEAP, absences=gone if n < 3 else []) for n in range(5)]
    simulated, events = world([*pool, *dear(5)], plan=True)  # type: ignore[list-item]
    simulated.run(until_s=7200)
    before = next(plan for plan in reversed(of(events, Planned)) if plan.at_s < 3600)
    after = next(plan for plan in of(events, Planned) if plan.at_s > 3600)
    assert set(before.active) == {f"cheap {n}" for n in range(5)}
    assert after.at_s <= 3600 + 30
    assert "left" in " ".join(after.reasons)
    assert sum(name.startswith("dear") for name in of(events, Planned)[-1].active) >= 2
    late = [step for step in of(events, Stepped) if step.at_s > 4200]
    assert sum(step.waited_s for step in late) < 0.05 * sum(step.busy_s for step in late)
    assert max(lag for step in of(events, Stepped) for lag in step.lags) <= LEARNING.staleness


def test_without_an_eye_for_prices_it_costs_more() -> None:
    def price(chooser: object) -> float:
        events: list[object] = []
        World(LEARNING, mixed(), watch=events.append, steering=chooser).run(until_s=5400)  # type: ignore[arg-type]
        return float(of(events, Planned)[-1].price)  # type: ignore[arg-type]

    settings = Settings(rollouts=LEARNING.rollouts, staleness=LEARNING.staleness, kappa=1)
    simulated, events = world(mixed(), plan=True)  # type: ignore[arg-type]
    simulated.run(until_s=5400)
    blind = [price(Reviews(Blind(settings, seed))) for seed in range(3)]
    assert sum(blind) / 3 > 1.5 * of(events, Planned)[-1].price


def test_a_script_says_what_was_said() -> None:
    orders = [
        Planned(at_s=300.0, active=["m0", "m1"], kappa=3, price=0.0, reasons=[]),
        Planned(at_s=600.0, active=["m1"], kappa=1, price=0.0, reasons=[]),
    ]
    events: list[object] = []
    simulated = World(LEARNING, machines(3), watch=events.append, steering=Script(orders))  # type: ignore[arg-type]
    outcome = simulated.run(until_s=900)
    assert [(plan.at_s, plan.kappa, plan.active) for plan in of(events, Planned)] == [  # type: ignore[arg-type]
        (300.0, 3, ["m0", "m1"]),
        (600.0, 1, ["m1"]),
    ]
    assert [outcome.active_s[f"m{n}"] for n in range(3)] == pytest.approx([600.0, 900.0, 300.0])
