"""Provide small swarms for the tests of the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from learner.provisioning.estimation.recording import Recorded
from learner.provisioning.planner.planner import Planner, Settings
from learner.simulation.machines import Machine
from learner.simulation.plan_driver import Reviews
from learner.simulation.trace import Learning
from learner.simulation.world import World

LEARNING = Learning(rollouts=64, group_size=4, staleness=3, kappa=1, train_s=30.0, broadcast_s=5.0)
"""A learner that consumes 2.13 rollouts a second."""


def machine(name: str, rate: float = 0.5, **more: Any) -> Machine:
    """Return a machine that generates eight at a time."""
    figures: dict[str, Any] = {"batch_rollouts": 8, "broadcast_s": 5.0, "install_s": 0.5, "claimed_rate": rate, **more}
    return Machine(name=name, rate=rate, **figures)


def machines(count: int, rate: float = 0.5, **more: Any) -> list[Machine]:
    return [machine(f"m{number}", rate, **more) for number in range(count)]


def reviews(learning: Learning = LEARNING, kappa: int | None = 1) -> Reviews:
    return Reviews(Planner(Settings(rollouts=learning.rollouts, staleness=learning.staleness, kappa=kappa)))


def world(pool: list[Machine], *, seed: int = 0, plan: bool = False, **changed: Any) -> tuple[World, list[Recorded]]:
    """Return the world, and the list that fills with its events."""
    learning = replace(LEARNING, **changed)
    events: list[Recorded] = []
    return World(learning, pool, seed=seed, watch=events.append, steering=reviews(learning) if plan else None), events


def of(events: list[Recorded], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]
