"""Run a simulation from beginning to end, as one value from which text, JSON and picture are made.

Invariants:

- Waits, lags and shares leave out the first S + 1 steps, which wait for machines to come at all. Costs and the
  machines' rollouts are about the whole run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from learner.provisioning.estimation.recording import Began, Planned, Recorded, Stepped
from learner.provisioning.estimation.step_stats import Steps, steady, steps_of
from learner.simulation.trace import Outcome
from learner.simulation.world import World
from node.commands.simulate.scenario import Scene, Swarm, WhatIf, scene

MOST_SPANS = 200_000
"""Spans that are kept: enough for some steps of a large swarm. Older ones are forgotten."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the machines of one kind did.

    Args:
        count: number of machines; `on` of them were active on average.
        paid: what they cost.
        made: admitted rollouts.
    """

    name: str
    count: int
    on: float
    paid: float
    made: int


@dataclass(frozen=True, kw_only=True)
class Story:
    """The result for `asked`.

    Args:
        kinds: kinds of machines, in the order of the pool.
        plans: all decisions of the plan.
        on: machines that are active at the end.
        price: price per hour at the end, learner included.
    """

    asked: WhatIf
    scene: Scene
    outcome: Outcome
    steps: Steps
    left_out: int
    kinds: tuple[Kind, ...]
    plans: tuple[Planned, ...]
    kappa: int
    on: int
    price: float

    @property
    def num_steps(self) -> int:
        """Return the number of training steps, including the first ones."""
        return len(self.outcome.busy_s)

    @property
    def hours(self) -> float:
        """Return the simulated hours."""
        return self.outcome.ended_s / 3600

    @property
    def cost_per_hour(self) -> float:
        """Return the average cost per hour of the whole run."""
        return self.outcome.cost / self.hours if self.hours > 0 else 0.0

    @property
    def cost_per_step(self) -> float | None:
        """Return the average cost per training step of the whole run; None without a step."""
        return self.outcome.cost / self.num_steps if self.num_steps else None


def tell(
    swarm: Swarm,
    asked: WhatIf,
    *,
    seed: int,
    steps: int | None,
    until_s: float,
    spans: bool = False,
    record: list[Recorded] | None = None,
) -> Story:
    """Simulate the swarm with the changes in `asked`, for `steps` training steps or until `until_s`.

    All events are added to `record`. Raises UsageError.
    """
    set_up = scene(swarm, asked, seed)
    kept: list[Recorded] = []

    def watch(event: Recorded) -> None:
        if isinstance(event, Began | Stepped | Planned):
            kept.append(event)
        if record is not None:
            record.append(event)

    world = World(
        set_up.learning,
        set_up.machines,
        seed=seed,
        watch=watch,
        spans=MOST_SPANS if spans else 0,
        steering=set_up.steering,
    )
    outcome = world.run(steps=steps, until_s=until_s)
    chosen, left_out = steady(kept)
    on = [node for node in world.nodes.values() if node.is_active]
    return Story(
        asked=asked,
        scene=set_up,
        outcome=outcome,
        steps=steps_of(chosen),
        left_out=left_out,
        kinds=tuple(_kinds(swarm, set_up, outcome)),
        plans=tuple(event for event in kept if isinstance(event, Planned)),
        kappa=world.kappa,
        on=len(on),
        price=math.fsum(node.price for node in on) + set_up.learning.price,
    )


def _kinds(swarm: Swarm, set_up: Scene, outcome: Outcome) -> Iterator[Kind]:
    counts = Counter(_kind(swarm, one.name) for one in set_up.machines)
    active_s: Counter[str] = Counter()
    paid: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for one in set_up.machines:
        kind = _kind(swarm, one.name)
        active_s[kind] += outcome.active_s.get(one.name, 0.0)  # type: ignore[assignment]
        paid[kind] += outcome.paid.get(one.name, 0.0)  # type: ignore[assignment]
        made[kind] += outcome.made[one.name]
    for kind, count in counts.items():
        mean = active_s[kind] / outcome.ended_s if outcome.ended_s > 0 else 0.0
        yield Kind(name=kind, count=count, on=mean, paid=paid[kind], made=made[kind])


def _kind(swarm: Swarm, name: str) -> str:
    """Return the kind of a machine; a copy has the kind of its original."""
    return swarm.kinds.get(name) or swarm.kinds.get(name.rpartition(" (")[0], name)
