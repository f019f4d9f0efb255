"""The simulated swarm where completions differ in length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import pytest

from learner.rollouts.admission import GrantedLease
from learner.rollouts.open_leases import Prompt
from learner.simulation.machines import Luck
from learner.simulation.world import World
from tests.support.simulated_swarms import LEARNING, machine, machines

PROBLEMS = 32


@dataclass
class Skewed:
    """One problem in eight is eight times as long as the others, or as `long` says."""

    long: int = 800
    usual: float = 100.0

    def __post_init__(self) -> None:
        self._numbers = count()

    def next_prompt(self) -> Prompt:
        return Prompt(task="skewed", index=next(self._numbers), tokens=(1,))

    def alike(self, index: int) -> tuple[int, int]:
        return index % PROBLEMS, 0

    def lengths(self, granted: GrantedLease) -> Sequence[int]:
        return [self.long if granted.prompt_index % 8 == 0 else 100] * len(granted.lease.seeds)


def simulated(prompts: Skewed | None, *, longest_first: bool) -> World:
    learning = replace(LEARNING, staleness=0, rollouts=128, train_s=1.0)
    return World(learning, machines(4, fixed_share=0.8), generated=prompts, longest_first=longest_first, seed=3)


def test_completions_that_are_all_usual_take_as_long_as_figures_say() -> None:
    plain, usual = simulated(None, longest_first=False), simulated(Skewed(long=100), longest_first=True)
    assert plain.run(steps=6).ended_s == pytest.approx(usual.run(steps=6).ended_s)


def test_a_batch_takes_as_long_as_its_longest_and_what_is_done_costs_nothing() -> None:
    batch = machine("m", rate=1.0, fixed_share=0.5, spread=0.0)
    assert Luck(batch, 0).generation_s(8, 1.0) == 8.0
    assert Luck(batch, 0).generation_s(8, 1.0, [1.0] * 8) == 8.0
    assert Luck(batch, 0).generation_s(8, 1.0, [3.0] + [1.0] * 7) == 0.5 * 8 * 3.0 + 0.5 * 10.0


def test_the_last_completion_of_a_batch_is_there_sooner_longest_first() -> None:
    today, mine = (simulated(Skewed(), longest_first=is_sorted).run(steps=12) for is_sorted in (False, True))
    assert len(mine.gathered_s) == 12
    assert sum(mine.gathered_s[4:]) < 0.8 * sum(today.gathered_s[4:])
    assert sorted(mine.prompts) == sorted(today.prompts)
    assert mine.stale == mine.lost == 0
