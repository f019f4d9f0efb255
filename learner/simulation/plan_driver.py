"""Choose a simulated swarm's active machines: by the planner, by the planner with random prices, or as recorded.

Invariants:

- A planner sees what a learner would see, the estimates from what is recorded, and nothing of the machines' true
  numbers.
- Each change of the active machines, or of kappa, is recorded as `Planned`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.estimation.recording import Joined, Left, Planned, Recorded
from learner.provisioning.planner.constants import REVIEW_S, SOON_S
from learner.provisioning.planner.planner import Planner, Settings
from learner.provisioning.planner.review import Decision, Situation, situation_of
from learner.simulation.world import World


class Chooser(Protocol):
    """A planner, or a substitute for one."""

    def review(self, situation: Situation) -> Decision: ...

    def explain(self, name: str) -> str: ...


class Reviews:
    """Calls a chooser at regular times, and when a peer comes or leaves."""

    def __init__(self, chooser: Chooser, *, review_s: float = REVIEW_S) -> None:
        self._chooser = chooser
        self._review_s = review_s
        self._observatory = SwarmEstimator()
        self._world: World | None = None
        self._due_s = 0.0
        self._plan: tuple[frozenset[str], int] | None = None

    def begin(self, world: World) -> None:
        """Begin: the first review is of those who are here at once."""
        self._world = world
        world.after(0.0, lambda: self._review(0.0))

    def hear(self, event: Recorded) -> None:
        """Take in an event."""
        self._observatory.handle(event)
        if isinstance(event, Joined | Left) and event.at_s > 0:
            self._at(event.at_s + SOON_S)

    def _at(self, at_s: float) -> None:
        """Review at that time, unless there is a review before."""
        world = self._world
        assert world is not None
        if world.now_s < self._due_s <= at_s:
            return
        self._due_s = at_s
        world.after(at_s - world.now_s, lambda: self._review(at_s))

    def _review(self, due_s: float) -> None:
        world = self._world
        assert world is not None
        if due_s != self._due_s:
            return  # another review took its place
        decision = self._chooser.review(situation_of(self._observatory, world.now_s))
        plan = decision.active, decision.kappa
        if plan != self._plan:
            self._plan = plan
            world.tell(planned(decision, world.now_s))
            world.steer(decision.active, decision.kappa, self._chooser.explain)
        self._at(world.now_s + min(self._review_s, decision.next_review_s))


def planned(decision: Decision, at_s: float) -> Planned:
    """Return the decision, as it is recorded."""
    reasons = [f"{change.peer}: {change.reason}" for change in decision.changes]
    return Planned(
        at_s=at_s,
        kappa=decision.kappa,
        active=sorted(decision.active),
        price=decision.price,
        reasons=[*reasons, decision.kappa_reason] if decision.kappa_reason else reasons,
    )


class Blind:
    """The same planner with random prices per rollout, so that its choice is as good as a random order.

    The active machines still cost what they cost.
    """

    def __init__(self, settings: Settings, seed: int) -> None:
        self._planner = Planner(settings)
        self._random = random.Random(f"{seed}/blind")
        self._prices: dict[str, float] = {}

    def review(self, situation: Situation) -> Decision:
        """Decide again."""
        for one in situation.candidates:
            if one.rate > 0 and one.name not in self._prices:
                self._prices[one.name] = one.rate * self._random.uniform(0.5, 1.5)
        drawn = [replace(one, price=self._prices.get(one.name, one.price)) for one in situation.candidates]
        decision = self._planner.review(replace(situation, candidates=drawn))
        price = sum(one.running_price for one in situation.candidates if one.name in decision.active)
        changes = tuple(replace(change, reason=_drawn(active=change.active)) for change in decision.changes)
        return replace(decision, price=price, changes=changes)

    def explain(self, name: str) -> str:
        """Return that the choice was random."""
        return "On standby: others were chosen at random."


def _drawn(*, active: bool) -> str:
    return "active: chosen at random" if active else "deactivated: others were chosen at random"


class Script:
    """The decisions of a recorded run, applied again; `plans` name machines, and count time as the world does."""

    def __init__(self, plans: Sequence[Planned]) -> None:
        self._plans = sorted(plans, key=lambda plan: plan.at_s)
        self._plan: Planned | None = None
        self._world: World | None = None

    def begin(self, world: World) -> None:
        """Begin: until the first plan, all machines are active."""
        self._world = world
        for plan in self._plans:
            world.after(plan.at_s, partial(self._follow, plan))

    def hear(self, event: Recorded) -> None:
        """Apply the current plan to a machine that comes."""
        if isinstance(event, Joined) and (world := self._world) is not None:
            world.after(0.0, self._apply)

    def _follow(self, plan: Planned) -> None:
        assert self._world is not None
        self._plan = plan
        self._world.tell(plan)
        self._apply()

    def _apply(self) -> None:
        world, plan = self._world, self._plan
        assert world is not None
        everybody = [str(peer) for peer in world.nodes]
        active, kappa = (everybody, world.kappa) if plan is None else (frozenset(plan.active), plan.kappa)
        world.steer(active, kappa, lambda name: "On standby, as recorded.")
