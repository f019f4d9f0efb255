"""What a staleness window comes to: machines, waits, lag and costs, or how far all machines are from it.

What always holds: these are values; `windows` makes them. Times are seconds, prices are per hour, in one currency.
"""

from __future__ import annotations

from dataclasses import dataclass

from learner.provisioning.model.machine_selection import Choice

_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What machines make of a window: `asked` rollouts per second (with gamma), `over_balance` the rule's own minimum
    over R / T_train, `period_s` per training step, `lag` expected, in training steps, of what is trained on.
    `kappas`: the publication periods, `kappa` among them, that cost the same.
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

    @property
    def bubble(self) -> float:
        """The share of its time that the learner waits, 0 to 1; not below 0 by the last digits of a float."""
        return max(0.0, 1 - self.train_s / self.period_s)

    @property
    def wait_s(self) -> float:
        """Per training step."""
        return self.period_s - self.train_s

    @property
    def price(self) -> float:
        """Per hour, the learner's machine included if its price is known."""
        return self.choice.price + self.learner_price

    @property
    def cost_per_step(self) -> float:
        return self.price * self.period_s / _HOUR


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """Not even all machines suffice: they give `rate`, which is `share` (below 1) of what the strictest condition asks
    for. `is_overtaken`: versions would overtake each other, however many machines."""

    staleness: int
    share: float
    rate: float
    needed: float
    is_overtaken: bool = False


@dataclass(frozen=True, kw_only=True)
class Window:
    """The answer for one S. `everyone`: what all machines together make of a window for which they are too few, None if
    they are not, or would never come to an end."""

    staleness: int
    ours: Outcome | Infeasible
    everyone: Outcome | None = None
