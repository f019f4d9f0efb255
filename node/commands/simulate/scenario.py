"""What is simulated, and what is asked of it: a swarm as it is, and "what if" one thing or another were different.

Pure. What always holds: the swarm is the same value whatever is asked, so answers can be compared; each machine has a
name of its own and thereby its own luck, in every answer the same.
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
from node.commands.simulate.overrides import Figures, figured, told
from node.runtime.errors import UsageError

MOST_MACHINES = 10_000
"""An hour of a thousand takes a minute."""

MOST_ROLLOUTS = 1 << 20
"""Of a training step: a quarter of a million leases, some seconds."""


@dataclass(frozen=True, kw_only=True)
class Swarm:
    """A swarm as it is.

    Args:
        learning: with the window S; its kappa is that of the beginning.
        kappa: the period, where it is fixed.
        machines: everybody who comes at some time.
        kinds: what each is called in tables, by name.
        currency: of all prices.
        copy_s: how long a copy takes that the source sends to one machine.
        seconds: how long it is simulated if nobody says.
        plans: what a recorded run decided.
        is_planned: whether there is a plan at all, if nobody says.
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
    """What is to be different; None is as it is.

    Args:
        mode: sequential and synchronous have S = 0 and publish every step.
        staleness: S.
        kappa: a period that no plan changes.
        p2p: machines pass versions on; else the source sends each its own copy.
        cost: the plan looks at prices.
        machines: a share of them, or more than all: copies.
        plan: a planner decides who is on; else everybody is.
        figures: others than a recorded swarm's, see `node.commands.simulate.overrides`.
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
        """In a few words."""
        return ", ".join(one for one, _ in self._parts()) or "as it is"

    def parts(self) -> list[WhatIf]:
        """Each difference alone, where there are several."""
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
            yield "without prices", WhatIf(cost=False, plan=self.plan)  # only a plan looks at them
        if self.machines != 1:
            yield f"{self.machines:g} x the machines", WhatIf(machines=self.machines)
        if self.plan is not None:
            yield "planned" if self.plan else "everybody on", WhatIf(plan=self.plan)
        for key, value in self.figures:
            yield told(key, value), WhatIf(figures=((key, value),))


AS_IT_IS = WhatIf()

USUAL = (
    WhatIf(mode=Mode.SEQUENTIAL),
    WhatIf(mode=Mode.SYNCHRONOUS),
    WhatIf(p2p=False),
    WhatIf(cost=False),
    WhatIf(machines=0.5),
    WhatIf(plan=False),
)
"""What is compared when nothing is asked."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a world is made of."""

    learning: Learning
    machines: tuple[Machine, ...]
    steering: Steering | None


def scene(swarm: Swarm, asked: WhatIf, seed: int) -> Scene:
    """The swarm, if that were so. Raises UsageError where it cannot be."""
    if asked.figures:
        learning, machines = figured(swarm.learning, swarm.machines, asked.figures)
        copy_s = dict(asked.figures).get("broadcast_s", swarm.copy_s)
        swarm = replace(swarm, learning=learning, machines=machines, copy_s=copy_s)
    staleness = _window(swarm, asked)
    machines = tuple(_share(swarm.machines, asked.machines))
    if not machines:
        raise UsageError(f"--machines {asked.machines:g} leaves none of {len(swarm.machines)} machines. Give more.")
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
                raise UsageError(f"{asked.mode.value} mode has S = 0. Leave out -S {given}, or --mode.")
            return 0
        case Mode.ASYNC:
            staleness = swarm.learning.staleness if given is None else given
            if staleness == 0:
                raise UsageError("async mode has S of 1 or more. Give -S, or another --mode.")
            return staleness
        case None:
            return swarm.learning.staleness if given is None else given


def _fixed_period(swarm: Swarm, asked: WhatIf, staleness: int) -> int | None:
    most = max(1, staleness)
    if asked.kappa is not None and asked.kappa > most:
        raise UsageError(
            f"--kappa {asked.kappa} is above S = {staleness}: rollouts would be too old. Give 1 to {most}."
        )
    if asked.kappa is not None:
        return asked.kappa
    return min(swarm.kappa, most) if swarm.kappa is not None else None


def _period(swarm: Swarm, machines: Sequence[Machine], staleness: int) -> int:
    """What a planner would begin with, if it knew the machines."""
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
    """So many times all of them; what is not a whole number, evenly over the list."""
    whole, rest = int(share), share - int(share)
    taken = {one.name for one in machines}
    for number in range(whole):
        for one in machines:
            yield one if number == 0 else _copy(one, number + 1, taken)
    for index, one in enumerate(machines):
        if int((index + 1) * rest + 0.5) > int(index * rest + 0.5):
            yield one if whole == 0 else _copy(one, whole + 1, taken)


def _copy(machine: Machine, number: int, taken: set[str]) -> Machine:
    """Under a name that nobody has; `story` finds its kind before the last bracket."""
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
