"""Detect that a run takes no training step for too long, and say what it waits for.

A pure core, and a function that writes the sentence. Alarms look at steps, so they would say nothing about a run
without any.

Invariants:

- The limit follows from the duration of the run's own steps, and is never less than STILL_S.
- It is reported again only after twice the time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from learner.monitoring import fruitless_leases as fruitless
from node.learner_role.shared.run_state import RunState
from node.runtime.formatting import counted

STILL_S = 300.0
"""Least seconds without a step before the operator is told. Joining peers, or a model that is loaded, may take
minutes."""

TIMES = 10
"""Multiple of the median duration of recent steps after which the operator is told. Neither a slow peer nor a
publication takes as long."""

STEPS = 8
"""Number of recent steps for the median: a few publication periods."""


@dataclass(kw_only=True)
class Stillness:
    """The time since the last step, and whether it is too long. `now_s` is the time of any steady clock."""

    began_s: float
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    _said_s: float = 0.0

    def stepped(self, now_s: float) -> None:
        """Note that a training step is over."""
        self._took.append(now_s - self.began_s)
        self.began_s, self._said_s = now_s, 0.0

    def seconds(self, now_s: float) -> float:
        """Return the seconds since the last training step."""
        return now_s - self.began_s

    def is_news(self, now_s: float) -> bool:
        """Return whether to tell the operator now. If so, it counts as told."""
        still_s = self.seconds(now_s)
        if still_s < max(STILL_S, TIMES * (median(self._took) if self._took else 0.0), 2 * self._said_s):
            return False
        self._said_s = still_s
        return True


def waits_for(run: RunState, now_ms: int) -> str:
    """Return sentences about what the next training step waits for, and what to do. `now_ms`: the learner's clock."""
    capacity = run.capacity
    if run.waits:
        return run.waits
    if not run.opened.is_set():
        return (
            "The trainer is loading the model: if its size does not explain the time, check the disk of [model] "
            "directory, and what the trainer's process does."
        )
    if capacity.steps and capacity.chain.head.version >= capacity.steps:
        return "All steps are taken. The last checkpoint is being written."
    if capacity.busy:
        step = capacity.collecting
        return f"The trainer is at step {step}, or loads its checkpoint: check what its process does."
    leased = capacity.leasing.open_rollouts
    there = len(capacity.buffer)
    told = (
        f"{there} of {counted(capacity.batch, 'rollout')} {'is' if there == 1 else 'are'} there, "
        f"{leased} {'is' if leased == 1 else 'are'} leased, to {counted(len(run.present), 'peer')}."
    )
    if run.asked:
        return (
            f"{told} {counted(run.asked, 'completion')} {'is' if run.asked == 1 else 'are'} waiting for rewards: check "
            "the events `reward_failed`, and the verifiers."
        )
    unable = run.unable()
    if unable.is_everyone:
        gone = "" if run.present else " They have left."
        return f"{told} No node can work: {unable.text}.{gone} {fruitless.ADVICE}"
    if not run.present:
        return f"{told} No peer is here: hand out the invite, and dial its addresses from outside."
    if run.scheduler.lacks_prompts:
        return f"{told} The task is still writing the next prompts: check how long it takes for one."
    if (loop := run.scheduler.fruitless.loop) is not None:
        reason = unable.text or run.troubles.gave_back_for or "no node says why"
        return f"{told} {loop} {reason}. {fruitless.ADVICE}"
    if run.capacity.leasing.open_rollouts == 0:
        why = ", ".join(_idle(run, now_ms)) or "no peer requests leases, or may have any: check what the nodes report"
        told = f"{told} Nothing is leased: {why}."
    return f"{told} {unable.text}." if unable.nodes else told


def _idle(run: RunState, now_ms: int) -> Iterator[str]:
    """Yield why present peers have no lease, by reason, as far as it is known."""
    reasons = Counter[str]()
    for worker in map(run.scheduler.worker, run.present):
        if worker.until_ms <= now_ms:
            reasons["outside their owners' hours, or paused"] += 1
        elif worker.standby:
            reasons["on standby by the plan"] += 1
        elif worker.installed is None:
            reasons["without a version yet: check whether it reaches them"] += 1
    for reason, peers in reasons.most_common():
        yield f"{peers} of {len(run.present)} nodes are {reason}"
