"""Find the machines that a recorded run showed to be enough: those with which its learner hardly waited.

Pure. Rates that are read off a recording are those of machines as they were used, so where the learner never waits they
say how fast a machine is at least. That the machines of such a run were enough is a measurement of its own.

Invariants:
- Every peer whose rollouts came in those steps is one of the machines, or nothing was shown.
- The steps are many enough that they cannot have lived on what was in the buffer before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from learner.provisioning.estimation.estimates import ENOUGH, WINDOW
from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.estimation.recording import Delivered, Recorded
from learner.provisioning.estimation.step_stats import steady, steps_of
from learner.provisioning.model.windows import Shown

HARDLY = 0.02
"""The share of its time that a learner may wait and count as never waiting: less than half of the reserve that a plan
asks for, and a few times what the last rollout of a batch makes it wait now and then."""

BUFFERS = 2
"""The steps are at least so many times what can lie in the buffer, S + 1 batches."""


def shown_enough(events: Sequence[Recorded], seen: SwarmEstimator, names: Mapping[str, str]) -> Shown | None:
    """The machines whose rollouts the last steps were made of, as `names` calls the peers; None where the learner
    waited for more than HARDLY of these, took turns, or the steps are too few. `events` end with a training step."""
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
