"""Simulate one swarm with the lengths of a recording: in today's order, longest first, and with lengths known.

The swarm is that of `learner.simulation`, which runs the learner's own scheduler. The sides of a trial have the same
machines, prompts, lengths and luck. "Today" is `[learn] longest_first = false`. "Known" is longest first with a
scheduler that knows each length beforehand: it shows what better prediction could still gain.

Invariant: a setting and a seed give the same figures everywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from benchmarks.lengths.recording import Recording
from benchmarks.lengths.replay import Replay
from benchmarks.swarms.draw import RATE_SPREAD, TRAIN_S, TRAIN_SPREAD
from learner.scheduling.completion_lengths import CompletionLengths
from learner.simulation.machines import Machine
from learner.simulation.trace import Learning
from learner.simulation.world import World

Side = Literal["today", "longest first", "known"]
SIDES: tuple[Side, ...] = ("today", "longest first", "known")

BATCH_SPREAD = 0.05
"""Deviation over mean of a batch's seconds, besides the effect of its lengths: a machine with little other load."""

BROADCAST_S, INSTALL_S = TRAIN_S / 20, TRAIN_S / 100
"""Seconds of a version's broadcast and of its loading: the least of `benchmarks.swarms.draw`, since neither is
measured."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run and its swarm. `name` is its name in the table."""

    name: str
    staleness: int = 1
    """S."""
    rollouts: int = 128
    """R, in groups of the recording's size."""
    nodes: int = 16
    batch: int = 8
    """Rollouts that an engine generates at once."""
    rate_spread: float = RATE_SPREAD
    """Standard deviation of the logarithm of the nodes' rates; 0: all are equally fast."""
    fixed_share: float = 0.8
    """Share of a full batch's seconds that one completion takes too. On GPUs a token's time is mostly spent on reading
    the weights, once for all sequences."""
    supply: float = 1.0
    """Rollouts a second of all nodes over R / T_train, if all completions had the mean length."""
    repeat: bool = True
    """Whether problems repeat; otherwise each is new."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """Means over all steps of a run."""

    gathered_s: float
    """Seconds from the first lease of a batch until its last completion has come."""
    late_s: float
    """The same over the second half of the steps, when most problems have been seen."""
    step_s: float
    """Seconds from one training step to the next."""
    vain_share: float
    """Share of the started rollouts that became stale, or were recalled before that."""


Trial = dict[Side, Ran]


def run_trial(setting: Setting, recording: Recording, seed: int, *, steps: int | None = None) -> Trial:
    """Run all sides; without `steps`, as many as the recording has groups for."""
    prompts = setting.rollouts // len(recording.groups[0].lengths)
    steps = steps or len(recording.groups) // prompts
    return {side: _run(side, setting, recording, seed, steps) for side in SIDES}


def machines(setting: Setting, seed: int) -> list[Machine]:
    """Return the nodes of that seed."""
    rng = random.Random(f"skew {seed}")
    weights = [rng.lognormvariate(0, setting.rate_spread) for _ in range(setting.nodes)]
    total = setting.supply * setting.rollouts / TRAIN_S
    rates = [total * weight / math.fsum(weights) for weight in weights]
    return [
        Machine(
            name=f"m{number}",
            rate=rate,
            batch_rollouts=setting.batch,
            fixed_share=setting.fixed_share,
            spread=BATCH_SPREAD,
            broadcast_s=BROADCAST_S,
            install_s=INSTALL_S,
            claimed_rate=rate,
        )
        for number, rate in enumerate(rates)
    ]


def _run(side: Side, setting: Setting, recording: Recording, seed: int, steps: int) -> Ran:
    learning = Learning(
        rollouts=setting.rollouts,
        group_size=len(recording.groups[0].lengths),
        staleness=setting.staleness,
        kappa=1,
        train_s=TRAIN_S,
        train_spread=TRAIN_SPREAD,
        broadcast_s=BROADCAST_S,
    )
    replay = Replay(recording=recording, repeat=setting.repeat)
    world = World(learning, machines(setting, seed), generated=replay, longest_first=side != "today", seed=seed)
    if side == "known":
        world.workload.lengths = Known(alike=replay.alike, longest=replay.longest)
    outcome = world.run(steps=steps)
    return Ran(
        gathered_s=fmean(outcome.gathered_s),
        late_s=fmean(outcome.gathered_s[steps // 2 :]),
        step_s=outcome.ended_s / steps,
        vain_share=(outcome.stale + outcome.recalled) / (outcome.completed + outcome.recalled),
    )


@dataclass(kw_only=True)
class Known(CompletionLengths):
    """Lengths that are known beforehand: `longest` returns the tokens of a group's longest completion."""

    longest: Callable[[int], int]

    @property
    def can_tell(self) -> bool:
        """Return that it is known."""
        return True

    def foretold(self, index: int, prompt_tokens: int | None) -> float:
        """Return the length that it will have."""
        return float(self.longest(index))
