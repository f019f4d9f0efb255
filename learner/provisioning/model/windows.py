"""Compute for every staleness window S which machines it needs, their cost, the learner's waits, and the rollouts' age.

Pure. For S >= 1 these are the cheapest machines with which the learner never waits. S = 0 is sequential: the learner
trains, then all machines install the version and generate R rollouts with it:

    step = T_train + F^-1(R),    for machines that are alike  T_train + T_bcast + T_gen + R / mu

A run may have shown machines to be enough (`Shown`).

Invariants:

- If no machines of the pool are enough, the answer is a value that says how far all of them are from it.
- It never asks for more than was shown to be enough for that window or a narrower one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from learner.provisioning.model.capacity import Clockwork, Supplier, least_kappa, period_s, rate_needed, supply_of
from learner.provisioning.model.expected_lag import expected_lag, usual_ahead
from learner.provisioning.model.machine_selection import (
    MARGIN,
    Candidate,
    Choice,
    Requirement,
    Shortage,
    cheapest,
)

STANDS_S = 24 * 3600.0
"""Seconds over which the start of a machine is charged by default: a plan made beforehand is for a day at least."""

SAME_PRICE = 1e-3
"""Sets whose prices differ by a smaller share are equally good; the solver's own gap is a tenth of it."""

_MOST_SLACK = 1000
"""As much as the widest window has; the delay of a machine that no version reaches is infinite."""

_ROUNDING = 1e-9
_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The measured or assumed times of a swarm.

    Args:
        train_s: T_train, one training step.
        rollouts: R, taken by one training step.
        broadcast_s: T_bcast, from the end of a step until QUORUM of the active peers have its version installed.
        generation_s: T_gen, from the start of a rollout until it is admitted; the 95th percentile.

    Raises ValueError for a value that is not a finite number, or is out of range.
    """

    train_s: float
    rollouts: int
    broadcast_s: float
    generation_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("T_train", self.train_s), ("R", self.rollouts)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} = {value} is not a positive number")
        for name, value in (("T_bcast", self.broadcast_s), ("T_gen", self.generation_s)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} = {value} is neither zero nor a positive number")

    @property
    def delay_s(self) -> float:
        """T_bcast + T_gen: from a version's publication until its first rollouts are admitted."""
        return self.broadcast_s + self.generation_s


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A run in which the learner hardly waited: the share `bubble` of its time. It had the candidates of these names,
    the window S = `staleness` >= 1 and the publication period `kappa`.

    Rates and delays of machines that sometimes stood still are only bounds, and the reserve is for what was not tried.
    So the fact that these machines were enough is more reliable than what a plan computes for them.
    """

    names: frozenset[str]
    staleness: int
    kappa: int
    bubble: float


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The conditions that are the same for every window.

    Args:
        timings: T_train, R, T_bcast (until QUORUM of the machines have a version) and T_gen.
        source_s: seconds that the source is busy with one version.
        candidates: the pool; each with its own T_bcast and T_gen.
        learner_price: price per hour of the learner's own machine; None if it is not known, and then left out of costs.
        kappa: publication period, as far as the window allows it; None lets the plan choose it.
        margin: gamma, the factor on what is just enough.
        ahead: batches leased or waiting at most; None means the default of a learner.
        stands_s: seconds that machines are kept, over which their start is charged.
        shown: machines that were enough in a run with exactly these timings; None if none are known.
    """

    timings: Timings
    source_s: float
    candidates: tuple[Candidate, ...]
    learner_price: float | None = None
    kappa: int | None = None
    margin: float = MARGIN
    ahead: float | None = None
    stands_s: float = STANDS_S
    shown: Shown | None = None

    def clock(self, staleness: int, kappa: int, suppliers: Sequence[Supplier]) -> Clockwork:
        """Return the clockwork of this window, with leases granted as far ahead as these suppliers need."""
        timings = self.timings
        usual = usual_ahead(staleness, suppliers, train_s=timings.train_s)
        return Clockwork(
            train_s=timings.train_s,
            rollouts=timings.rollouts,
            staleness=staleness,
            kappa=kappa,
            ahead=usual if self.ahead is None else self.ahead,
            broadcast_s=self.source_s,
        )

    @property
    def balance(self) -> float:
        """R / T_train: the rollouts per second of a learner that never waits."""
        return self.timings.rollouts / self.timings.train_s

    @property
    def least_kappa(self) -> int:
        """The least publication period at which versions do not overtake each other."""
        return least_kappa(self.source_s, self.timings.train_s)

    def periods(self, staleness: int) -> range:
        """Return the publication periods that our rule may take; empty if versions would overtake each other."""
        if self.kappa is not None:
            kappa = min(self.kappa, staleness)
            return range(kappa, kappa + (kappa >= self.least_kappa))
        return range(self.least_kappa, staleness + 1)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a window with certain machines.

    `asked` is rollouts per second (with gamma), `over_balance` the rule's own minimum over R / T_train, `period_s` the
    time per training step. `lag` is the expected lag of what is trained on, in training steps. `kappas` has the
    publication periods, including `kappa`, that cost the same. `is_shown`: a run had these machines, and its learner
    hardly waited. By their rates and delays alone they would be too few, or others would cost more.
    """

    staleness: int
    kappa: int
    kappas: tuple[int, ...] = ()
    choice: Choice
    asked: float
    over_balance: float
    train_s: float
    period_s: float
    lag: float
    lag_bound: int
    learner_price: float = 0.0
    is_shown: bool = False

    @property
    def bubble(self) -> float:
        """The share of its time that the learner waits, 0 to 1; rounding does not make it negative."""
        return max(0.0, 1 - self.train_s / self.period_s)

    @property
    def wait_s(self) -> float:
        """Seconds of waiting per training step."""
        return self.period_s - self.train_s

    @property
    def price(self) -> float:
        """Price per hour, including the learner's machine if its price is known."""
        return self.choice.price + self.learner_price

    @property
    def cost_per_step(self) -> float:
        return self.price * self.period_s / _HOUR


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """Not even all machines are enough: they give `rate`, which is `share` (below 1) of what the strictest condition
    asks for. `is_overtaken`: versions would overtake each other, with any number of machines."""

    staleness: int
    share: float
    rate: float
    needed: float
    is_overtaken: bool = False


@dataclass(frozen=True, kw_only=True)
class Window:
    """The answer for one S. `everyone` is the outcome with all machines if they are too few; None if they are enough,
    or would never finish."""

    staleness: int
    ours: Outcome | Infeasible
    everyone: Outcome | None = None


class Windows:
    """The answers for one setting.

    The choice depends only on S - kappa, the slack, and is kept. From a slack as long as the slowest machine's delay
    on, it stays the same: any machines that then supply R rollouts in each step are in time.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._choices: dict[int, Choice | Shortage] = {}
        slowest_s = max((one.broadcast_s + one.generation_s for one in setting.candidates), default=0.0)
        self._most_slack = math.ceil(min(slowest_s / setting.timings.train_s, _MOST_SLACK))

    def window(self, staleness: int, *, same: Choice | None = None) -> Window:
        """Return the answer for S = `staleness`. `same`: the machines that take turns at S = 0 if the learner's price
        is unknown."""
        if staleness == 0:
            return Window(staleness=0, ours=self.sequential(same))
        ours = self.ours(staleness)
        everyone = self._everyone(staleness) if isinstance(ours, Infeasible) else None
        return Window(staleness=staleness, ours=ours, everyone=everyone)

    def ours(self, staleness: int) -> Outcome | Infeasible:
        """Return the cheapest machines with which the learner never waits, and the largest period that costs no more.
        Return those that were shown to be enough if no others are, or the others cost more or are more machines."""
        reckoned, shown = self._reckoned(staleness), self._shown(staleness)
        if shown is None:
            return reckoned
        if isinstance(reckoned, Infeasible):
            return shown
        more = self._charged(reckoned.choice) - self._charged(shown.choice) * (1 + SAME_PRICE) - _ROUNDING
        fewer = len(shown.choice.chosen) < len(reckoned.choice.chosen)
        return shown if more > 0 or (fewer and self._charged(reckoned.choice) == 0) else reckoned

    def _shown(self, staleness: int) -> Outcome | None:
        """Return the set that was shown to be enough, if it is for this window: machines in time for one are so for a
        wider one."""
        shown = self.setting.shown
        if shown is None or staleness < shown.staleness:
            return None
        chosen = tuple(
            sorted(
                (one for one in self.setting.candidates if one.name in shown.names), key=lambda one: (one.rho, one.name)
            )
        )
        choice = Choice(chosen=chosen, price=math.fsum(one.running_price for one in chosen))
        outcome = self.outcome(staleness, shown.kappa, choice)
        longest_s = outcome.train_s / (1 - shown.bubble)
        return replace(outcome, kappas=(shown.kappa,), period_s=min(outcome.period_s, longest_s), is_shown=True)

    def _reckoned(self, staleness: int) -> Outcome | Infeasible:
        """Return the same by rates and delays alone."""
        periods = self.setting.periods(staleness)
        if not periods:
            return self._overtaken(staleness)
        best = self._chosen(staleness - periods[0])
        if isinstance(best, Shortage):
            return Infeasible(staleness=staleness, share=best.share, rate=best.rate, needed=best.needed)
        limit = self._charged(best) * (1 + SAME_PRICE) + _ROUNDING
        # If all are volunteers, every period costs the same, and the number of machines decides.
        most = math.inf if self._charged(best) > 0 else len(best.chosen)
        same = [
            kappa
            for kappa in periods
            if isinstance(other := self._chosen(staleness - kappa), Choice)
            and self._charged(other) <= limit
            and len(other.chosen) <= most
        ]
        choice = self._chosen(staleness - same[-1])
        assert isinstance(choice, Choice)
        return replace(self.outcome(staleness, same[-1], choice), kappas=tuple(same))

    def sequential(self, same: Choice | None = None) -> Outcome | Infeasible:
        """Return the outcome of S = 0, with learner and machines taking turns. If the learner's price is known, it uses
        the machines for which a step costs least, in the order of price per rollout. Else it uses `same`, or all
        machines: without that price, fewer machines are always cheaper, only slower."""
        candidates = sorted(self.setting.candidates, key=lambda one: (one.rho, one.name))
        if not any(one.usable_rate > 0 for one in candidates):
            return Infeasible(staleness=0, share=0.0, rate=0.0, needed=0.0)
        if not self.setting.learner_price:
            return self.in_turns(same.chosen if same else candidates)
        prefixes = (self.in_turns(candidates[:count]) for count in range(1, len(candidates) + 1))
        return min(prefixes, key=lambda outcome: outcome.cost_per_step)

    def in_turns(self, machines: Sequence[Candidate]) -> Outcome:
        """Return the outcome of S = 0 with these machines. `machines` is not empty."""
        setting = self.setting
        supply = supply_of(one.supplier() for one in machines)
        return Outcome(
            staleness=0,
            kappa=1,
            kappas=(1,),
            choice=Choice(chosen=tuple(machines), price=math.fsum(one.running_price for one in machines)),
            asked=0.0,
            over_balance=0.0,
            train_s=setting.timings.train_s,
            period_s=setting.timings.train_s + supply.time(setting.timings.rollouts),
            lag=0.0,
            lag_bound=0,
            learner_price=setting.learner_price or 0.0,
        )

    def outcome(self, staleness: int, kappa: int, choice: Choice) -> Outcome:
        """Return the outcome of the window with these machines, by our model and compared with our rule."""
        setting = self.setting
        suppliers = [one.supplier() for one in choice.chosen]
        clock = setting.clock(staleness, kappa, suppliers)
        took_s = period_s(clock, suppliers)
        least = rate_needed(clock, delay_s=setting.timings.delay_s)
        return Outcome(
            staleness=staleness,
            kappa=kappa,
            choice=choice,
            asked=setting.margin * least,
            over_balance=least / setting.balance,
            train_s=setting.timings.train_s,
            period_s=took_s,
            lag=expected_lag(clock, suppliers, took_s),
            lag_bound=staleness,
            learner_price=setting.learner_price or 0.0,
        )

    def share(self, staleness: int) -> float:
        """Return how much of the requirement all machines supply, at the strictest condition; 1 is enough."""
        periods = self.setting.periods(staleness)
        if not periods or not self.setting.candidates:
            return 0.0
        return self.requirement(staleness - periods[0]).share(np.ones(len(self.setting.candidates)))

    def suffices(self, staleness: int) -> bool:
        """Return whether all machines are enough, by what they supply or since it was shown."""
        shown = self.setting.shown
        return (shown is not None and staleness >= shown.staleness) or self.share(staleness) >= 1

    def requirement(self, slack: int) -> Requirement:
        """Return what a set must supply if S is above kappa by `slack`."""
        # periods() rules out overtaken versions. With kappa = 1, machines that deliver too late are of the least use.
        clock = replace(self.setting.clock(slack + 1, 1, ()), broadcast_s=0.0)
        return Requirement(clock, self.setting.candidates, self.setting.margin)

    def _chosen(self, slack: int) -> Choice | Shortage:
        slack = min(slack, self._most_slack)
        if slack not in self._choices:
            self._choices[slack] = cheapest(self.requirement(slack), stands_s=self.setting.stands_s)
        return self._choices[slack]

    def _charged(self, choice: Choice | Shortage) -> float:
        if isinstance(choice, Shortage):
            return math.inf
        return choice.price + math.fsum(one.moving_price(self.setting.stands_s) for one in choice.chosen)

    def _overtaken(self, staleness: int) -> Infeasible:
        rate = math.fsum(one.usable_rate for one in self.setting.candidates)
        needed = self.setting.margin * self.setting.balance
        return Infeasible(staleness=staleness, share=0.0, rate=rate, needed=needed, is_overtaken=True)

    def _everyone(self, staleness: int) -> Outcome | None:
        pool, given = self.setting.candidates, self.setting.kappa
        # If the period was given, it is the reason for the shortage, so all machines are judged with it, too.
        kappa = min(self.setting.least_kappa if given is None else given, staleness)
        choice = Choice(chosen=pool, price=math.fsum(one.running_price for one in pool))
        outcome = self.outcome(staleness, kappa, choice)
        return outcome if math.isfinite(outcome.period_s) else None
