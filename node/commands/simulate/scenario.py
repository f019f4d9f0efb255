"""Define what is simulated: an unchanged swarm, and "what if" changes to it.

Pure.

Invariants:

- The swarm is the same value for all changes, so that answers can be compared.
- Each machine has its own name and therefore its own random numbers, which are the same in every answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from learner.provisioning.estimation.recording import Planned
from learner.provisioning.model.capacity import Supplier
from learner.provisioning.planner.constants import REVIEW_S
from learner.provisioning.planner.planner import Planner, Settings
from learner.provisioning.planner.publish_period import Publishing, choose_kappa, usual_delay_s
from learner.simulation.machines import Machine
from learner.simulation.plan_driver import Blind, Reviews, Script
from learner.simulation.trace import Learning
from learner.simulation.world import Steering
from node.commands.simulate.options import Mode
from node.commands.simulate.overrides import Figures, figured, setting_text
from node.runtime.errors import UsageError

MOST_MACHINES = 10_000
"""An hour of a thousand machines takes a minute to simulate."""

MOST_ROLLOUTS = 1 << 20
"""Rollouts of a training step: a quarter of a million leases, which take some seconds."""


@dataclass(frozen=True, kw_only=True)
class Swarm:
    """A swarm as it is.

    Args:
        learning: settings with the window S; its kappa is that of the beginning.
        kappa: the publication period, if it is fixed.
        machines: all machines that come at some time.
        kinds: the kind of each machine in tables, by its name.
        currency: currency of all prices.
        copy_s: seconds of a copy that the source sends to one machine.
        seconds: default length of a simulation.
        plans: the decisions of a recorded run.
        is_planned: whether there is a plan by default.
    """

    learning: Learning
    machines: tuple[Machine, ...]
    kinds: Mapping[str, str]
    currency: str
    copy_s: float
    seconds: float
    kappa: int | None = None
    plans: tuple[Planned, ...] = ()
    is_planned: bool = True


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The changes to simulate; None keeps a value as it is.

    Args:
        mode: sequential and synchronous have S = 0, and publish every step.
        staleness: the window S.
        kappa: a publication period that no plan changes.
        p2p: machines relay versions; otherwise the source sends each its own copy.
        cost: the plan compares prices.
        machines: multiple of the machines; above 1 there are copies.
        plan: a planner decides which machines are active; otherwise all are.
        figures: other settings of a recorded swarm, see `node.commands.simulate.overrides`.
    """

    mode: Mode | None = None
    staleness: int | None = None
    kappa: int | None = None
    p2p: bool = True
    cost: bool = True
    machines: float = 1.0
    plan: bool | None = None
    figures: Figures = ()

    @property
    def name(self) -> str:
        """Return the changes in a few words."""
        return ", ".join(one for one, _ in self._parts()) or "as it is"

    def parts(self) -> list[WhatIf]:
        """Return each change alone."""
        return [one for _, one in self._parts()]

    def _parts(self) -> Iterator[tuple[str, WhatIf]]:
        if self.mode is not None:
            yield self.mode.value, WhatIf(mode=self.mode)
        if self.staleness is not None:
            yield f"S = {self.staleness}", WhatIf(staleness=self.staleness)
        if self.kappa is not None:
            yield f"kappa = {self.kappa}", WhatIf(kappa=self.kappa)
        if not self.p2p:
            yield "without P2P", WhatIf(p2p=False)
        if not self.cost:
            yield "without prices", WhatIf(cost=False, plan=self.plan)  # only a plan depends on them
        if self.machines != 1:
            yield f"{self.machines:g} x the machines", WhatIf(machines=self.machines)
        if self.plan is not None:
            yield "planned" if self.plan else "all active", WhatIf(plan=self.plan)
        for key, value in self.figures:
            yield setting_text(key, value), WhatIf(figures=((key, value),))


AS_IT_IS = WhatIf()

USUAL = (
    WhatIf(mode=Mode.SEQUENTIAL),
    WhatIf(mode=Mode.SYNCHRONOUS),
    WhatIf(p2p=False),
    WhatIf(cost=False),
    WhatIf(machines=0.5),
    WhatIf(plan=False),
)
"""Changes that are compared if none is asked for."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The inputs of a simulated world."""

    learning: Learning
    machines: tuple[Machine, ...]
    steering: Steering | None


def scene(swarm: Swarm, asked: WhatIf, seed: int) -> Scene:
    """Return the swarm with the changes in `asked`. Raises UsageError if they are impossible."""
    if asked.figures:
        learning, machines = figured(swarm.learning, swarm.machines, asked.figures)
        copy_s = dict(asked.figures).get("broadcast_s", swarm.copy_s)
        swarm = replace(swarm, learning=learning, machines=machines, copy_s=copy_s)
    staleness = _window(swarm, asked)
    machines = tuple(_share(swarm.machines, asked.machines))
    if not machines:
        raise UsageError(f"--machines {asked.machines:g} leaves none of {len(swarm.machines)} machines. Use more.")
    _require_small(swarm, machines)
    fixed = _fixed_period(swarm, asked, staleness)
    settings = Settings(rollouts=swarm.learning.rollouts, staleness=staleness, kappa=fixed, currency=swarm.currency)
    learning = replace(
        swarm.learning,
        staleness=staleness,
        kappa=fixed or _period(swarm, machines, staleness),
        barrier=asked.mode is Mode.SYNCHRONOUS,
        copy_s=None if asked.p2p else swarm.copy_s,
        currency=swarm.currency,
    )
    return Scene(learning=learning, machines=machines, steering=_steering(swarm, asked, settings, seed))


def _require_small(swarm: Swarm, machines: Sequence[Machine]) -> None:
    if len(machines) > MOST_MACHINES:
        raise UsageError(f"{len(machines):,} machines are more than the {MOST_MACHINES:,} that can be simulated.")
    if swarm.learning.rollouts > MOST_ROLLOUTS:
        raise UsageError(
            f"R = {swarm.learning.rollouts:,} is more than the {MOST_ROLLOUTS:,} that can be simulated one by one. "
            "Give R and all rates in tens or thousands of rollouts."
        )


def _window(swarm: Swarm, asked: WhatIf) -> int:
    given = asked.staleness
    match asked.mode:
        case Mode.SEQUENTIAL | Mode.SYNCHRONOUS:
            if given:
                raise UsageError(f"{asked.mode.value} mode has S = 0. Omit -S {given}, or --mode.")
            return 0
        case Mode.ASYNC:
            staleness = swarm.learning.staleness if given is None else given
            if staleness == 0:
                raise UsageError("async mode needs S of 1 or more. Give -S, or another --mode.")
            return staleness
        case None:
            return swarm.learning.staleness if given is None else given


def _fixed_period(swarm: Swarm, asked: WhatIf, staleness: int) -> int | None:
    most = max(1, staleness)
    if asked.kappa is not None and asked.kappa > most:
        raise UsageError(
            f"--kappa {asked.kappa} is above S = {staleness}, so rollouts would be stale. Give 1 to {most}."
        )
    if asked.kappa is not None:
        return asked.kappa
    return min(swarm.kappa, most) if swarm.kappa is not None else None


def _period(swarm: Swarm, machines: Sequence[Machine], staleness: int) -> int:
    """Return the period that a planner would begin with if it knew the machines."""
    learning = swarm.learning
    suppliers = [
        Supplier(rate=one.rate, broadcast_s=one.broadcast_s + one.install_s, generation_s=one.batch_s)
        for one in machines
    ]
    publishing = Publishing(
        train_s=learning.train_s + learning.overhead_s,
        delay_s=usual_delay_s(suppliers),
        source_s=learning.broadcast_s,
        publish_s=learning.publish_s,
    )
    return choose_kappa(publishing, staleness)


def _share(machines: Sequence[Machine], share: float) -> Iterator[Machine]:
    """Yield the machines `share` times. A fraction is spread evenly over the list."""
    whole, rest = int(share), share - int(share)
    taken = {one.name for one in machines}
    for number in range(whole):
        for one in machines:
            yield one if number == 0 else _copy(one, number + 1, taken)
    for index, one in enumerate(machines):
        if int((index + 1) * rest + 0.5) > int(index * rest + 0.5):
            yield one if whole == 0 else _copy(one, whole + 1, taken)


def _copy(machine: Machine, number: int, taken: set[str]) -> Machine:
    """Return a copy of a machine with a new name; `result` finds its kind before the last bracket."""
    name = f"{machine.name} ({number})"
    while name in taken:
        name += "'"
    taken.add(name)
    return replace(machine, name=name)


def _steering(swarm: Swarm, asked: WhatIf, settings: Settings, seed: int) -> Steering | None:
    if asked.plan is None and swarm.plans and asked in (AS_IT_IS, WhatIf(p2p=False)):
        return Script(swarm.plans)
    if not (swarm.is_planned if asked.plan is None else asked.plan):
        return None
    return Reviews(Planner(settings) if asked.cost else Blind(settings, seed), review_s=REVIEW_S)
