"""What an observatory has seen, as the question that a planner answers.

Pure. What always holds: it follows from the recording alone, so a running swarm, its recording and a simulation of it
ask the same; whoever has nothing admitted to show is unproven, and its rate a promise.
"""

from __future__ import annotations

from learner.provisioning.estimation.estimator import Observatory
from learner.provisioning.planner.review import Situation


def situation_of(observatory: Observatory, now_s: float) -> Situation:
    """The situation at `now_s`, by the clock of the recording."""
    step, publish = observatory.step_s, observatory.publish_s
    return Situation(
        now_s=now_s,
        train_s=step.value if step is not None and step.value > 0 else None,
        candidates=observatory.candidates(now_s),
        resting=observatory.resting(now_s),
        unproven=frozenset(
            one.peer for one in observatory.profiles() if (shown := one.shown_rate) is None or shown.value <= 0
        ),
        broadcast_s=observatory.source_s or 0.0,
        publish_s=publish.value if publish is not None else 0.0,
    )
