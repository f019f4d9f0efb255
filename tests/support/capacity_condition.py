"""Compute the condition of `learner.provisioning.model.capacity` a second time, peer by peer."""

from __future__ import annotations

import math
from collections.abc import Iterable

from learner.provisioning.model.capacity import Clockwork, Supplier, period_s

_ROUNDING = 1e-9
"""Relative error below which a rate counts as the one that was asked for."""


def useful_s(clock: Clockwork, delay_s: float, at_s: float) -> float:
    """Return for how many seconds rollouts of one version have come from a peer, `at_s` after its publication. The peer
    delivers the first after `delay_s`, and those of the next version take their place after kappa T_train.
    """
    return min(clock.kappa * clock.train_s, max(0.0, at_s - delay_s))


def never_waits(clock: Clockwork, suppliers: Iterable[Supplier]) -> bool:
    """Return whether that module's condition holds, for versions that do not overtake each other and no limit on
    pacing.
    """
    peers = list(suppliers)
    enough = clock.rollouts * (1 - _ROUNDING)
    return not clock.is_overtaken and all(
        math.fsum(one.rate * useful_s(clock, one.delay_s, at_s) for one in peers) >= k * enough
        for k, at_s in enumerate(clock.due_s, start=1)
    )


def bubble(clock: Clockwork, suppliers: Iterable[Supplier]) -> float:
    """Return the fraction of its time that the learner waits (ECHO-2's bubble ratio), 0 to 1."""
    return 1 - clock.train_s / period_s(clock, suppliers)
