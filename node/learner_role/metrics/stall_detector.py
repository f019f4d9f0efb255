"""When a run stands still for longer than it ever takes for a step: since when, and what it waits for.

A pure core, and a sentence. What always holds: how long is too long follows from the run's own steps, and is never less
than STILL_S; it is said again only when it has lasted twice as long. Alarms look at steps, so of a run that takes none
they would say nothing.
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
"""Peers that join, or a model of some size that is loaded, take minutes, and nobody need hear of it."""

TIMES = 10
"""As many times what a step takes, by the median of the last: no straggler makes that, nor a publication."""

STEPS = 8
"""Steps that are looked back at: a few periods of publication."""


@dataclass(kw_only=True)
class Stillness:
    """See the module's paragraph. `now_s` is of any steady clock."""

    began_s: float
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    _said_s: float = 0.0

    def stepped(self, now_s: float) -> None:
        """A training step is over."""
        self._took.append(now_s - self.began_s)
        self.began_s, self._said_s = now_s, 0.0

    def seconds(self, now_s: float) -> float:
        """For how long there was no training step."""
        return now_s - self.began_s

    def is_news(self, now_s: float) -> bool:
        """Whether that is to be said now; it then counts as said."""
        still_s = self.seconds(now_s)
        if still_s < max(STILL_S, TIMES * (median(self._took) if self._took else 0.0), 2 * self._said_s):
            return False
        self._said_s = still_s
        return True


def waits_for(run: RunState, now_ms: int) -> str:
    """What the next training step waits for, and what to do, in a few sentences. `now_ms` on the learner's clock."""
    capacity = run.capacity
    if run.waits:
        return run.waits
    if not run.opened.is_set():
        return (
            "The trainer is loading the model: if its size does not explain that, look at the disk of [model] "
            "directory, and at what the trainer's process does."
        )
    if capacity.steps and capacity.chain.head.version >= capacity.steps:
        return "All steps are taken; the last checkpoint is being written."
    if capacity.busy:
        step = capacity.collecting
        return f"The trainer is at step {step}, or loads what it goes on from: see what its process does."
    leased = capacity.leasing.open_rollouts
    there = len(capacity.buffer)
    told = (
        f"{there} of {counted(capacity.batch, 'rollout')} {'is' if there == 1 else 'are'} there, "
        f"{leased} {'is' if leased == 1 else 'are'} leased, to {counted(len(run.present), 'peer')}."
    )
    if run.asked:
        return (
            f"{told} What {counted(run.asked, 'completion')} {'is' if run.asked == 1 else 'are'} worth is being asked: "
            "see `reward_failed` and what became of the verifiers."
        )
    unable = run.unable()
    if unable.is_everyone:
        gone = "" if run.present else " They have left."
        return f"{told} Nobody can work: {unable.text}.{gone} {fruitless.ADVICE}"
    if not run.present:
        return f"{told} Nobody is here: hand out the invite, and dial its addresses from outside."
    if run.scheduler.lacks_prompts:
        return f"{told} The task is still writing the next prompts: see how long it takes for one."
    if (loop := run.scheduler.fruitless.loop) is not None:
        reason = unable.text or run.troubles.gave_back_for or "no node says why"
        return f"{told} {loop} {reason}. {fruitless.ADVICE}"
    if run.capacity.leasing.open_rollouts == 0:
        why = ", ".join(_idle(run, now_ms)) or "nobody asks for leases, or may have any: see what the nodes say"
        told = f"{told} Nothing is leased: {why}."
    return f"{told} {unable.text}." if unable.nodes else told


def _idle(run: RunState, now_ms: int) -> Iterator[str]:
    """Why those who are here hold no lease, by reason, as far as it is known."""
    reasons = Counter[str]()
    for worker in map(run.scheduler.worker, run.present):
        if worker.until_ms <= now_ms:
            reasons["outside their owners' hours, or paused"] += 1
        elif worker.standby:
            reasons["standing by, as the plan has it"] += 1
        elif worker.installed is None:
            reasons["without a version yet: see whether it reaches them"] += 1
    for reason, peers in reasons.most_common():
        yield f"{peers} of {len(run.present)} nodes are {reason}"
