"""Find the machines that were enough in a recorded run: those with which its learner hardly waited.

Pure. Rates in a recording are those of machines as they were used. So if the learner never waits, they are lower
bounds. That the machines of such a run were enough is a measurement of its own.

Invariants:

- The machines include every peer whose rollouts came in those steps; otherwise the run shows nothing.
- The steps are so many that they cannot have used only the rollouts buffered before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from learner.provisioning.estimation.estimates import ENOUGH, WINDOW
from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.estimation.recording import Delivered, Recorded
from learner.provisioning.estimation.step_stats import steady, steps_of
from learner.provisioning.model.windows import Shown

HARDLY = 0.02
"""Fraction of its time that a learner may wait and still count as never waiting: less than half of a plan's reserve,
and a few times the occasional wait for the last rollout of a batch."""

BUFFERS = 2
"""The steps are at least this many times what the buffer can hold, S + 1 batches."""


def shown_enough(events: Sequence[Recorded], seen: SwarmEstimator, names: Mapping[str, str]) -> Shown | None:
    """Return the machines whose rollouts the last steps were trained on, with the peers named by `names`.

    None if the learner waited more than HARDLY of that time, the mode is sequential, or the steps are too few. `events`
    end with a training step.
    """
    began = seen.terms
    if began is None or began.mode == "sequential" or began.staleness == 0:
        return None
    steps = steady(events)[0][-WINDOW:]
    late = steps_of(steps)
    if late.count < max(ENOUGH, BUFFERS * (began.staleness + 1)) or late.bubble > HARDLY:
        return None
    since_s = steps[0].at_s - steps[0].busy_s - steps[0].waited_s
    supplied = {one.peer for one in _deliveries(events) if one.at_s >= since_s and one.admitted}
    if not supplied or not supplied <= names.keys():
        return None
    return Shown(
        names=frozenset(names[peer] for peer in supplied),
        staleness=began.staleness,
        kappa=min(seen.kappa or began.kappa, began.staleness),
        bubble=late.bubble,
    )


def _deliveries(events: Sequence[Recorded]) -> list[Delivered]:
    return [event for event in events if isinstance(event, Delivered)]
