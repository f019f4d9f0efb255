"""Define the tasks, models and cells of the study.

Invariants:

- A cell names everything that its outcome depends on, except the code, so a recorded cell can be run again on another
  machine.
- Cells of one seed and task share the starting model, the order of the problems and the seeds of all draws, so that
  differences between them are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from node.learner_role.training.warm_start import TINY_QWEN3

LAGS = (0, 1, 3, 6, 11)
SEEDS = range(10, 20)
"""Seeds that judge the default. Seeds 0 to 9 were used to choose it, and would flatter it."""

RATES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {"reversal": (8e-4, 1.2e-3, 1.8e-3, 2.7e-3), "arithmetic": (6e-4, 9e-4, 1.35e-3, 2e-3)}
)
"""By recipe, the candidates for the best learning rate of S = 0, a factor of 1.5 apart."""

DEFAULT = "topr"
OTHERS = ("grpo", "tis", "reinforce")
"""Plain GRPO, truncated importance sampling, no correction."""

SEEDS_BESIDE = SEEDS[:5]
"""The seeds of the other objectives."""

CONSTANT: Mapping[str, tuple[tuple[str, int], ...]] = MappingProxyType(
    {
        "reversal": ((DEFAULT, 0), (DEFAULT, 6), (DEFAULT, 11)),
        "arithmetic": (),
    }
)
"""By recipe, the (objective, S) that also run with a constant rate."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One task and its training: steps of `prompts` groups of `group` completions.

    The model is taught by example first, with each character of an answer replaced by another with probability `noise`,
    until `begin` of its draws are right.
    """

    task: str
    max_new_tokens: int
    steps: int = 200
    prompts: int = 16
    group: int = 8
    noise: float = 0.2
    begin: float = 0.2
    example_rate: float = 2e-3
    example_batch: int = 64
    look_every: int = 10
    """Steps by example between two checks of the draws."""
    alphabet: str = ""
    every: int = 5
    """Steps between two evaluations."""
    held_out: int = 2048
    last: int = 5
    """Number of final evaluations that are averaged."""


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "reversal": Recipe(task="reverse:letters=6", max_new_tokens=8),
        "arithmetic": Recipe(
            task="arithmetic",
            max_new_tokens=5,
            steps=300,
            prompts=32,
            noise=0.15,
            begin=0.55,
            alphabet="Calcute +.0123456789",
        ),
    }
)

MODEL = TINY_QWEN3


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """One run: its recipe, objective, S, learning rate and seed.

    The rate falls to a tenth over the run, as it does by default, or is `constant`.
    """

    recipe: str
    objective: str
    staleness: int
    learning_rate: float
    seed: int
    constant: bool = False

    def __str__(self) -> str:
        rate = f"{self.learning_rate:g}{' constant' if self.constant else ''}"
        return f"{self.recipe} {self.objective} S={self.staleness} lr={rate} seed {self.seed}"


def fresh_cells(recipe: str) -> Iterator[Cell]:
    """Yield S = 0 at every rate: without stale rollouts the objectives are the same."""
    for seed in SEEDS:
        for rate in RATES[recipe]:
            yield Cell(recipe=recipe, objective=DEFAULT, staleness=0, learning_rate=rate, seed=seed)


def stale_cells(recipe: str, rate: float) -> Iterator[Cell]:
    """Yield every objective at every S above 0, at the best rate of S = 0, the default first; then the cells with a
    constant rate."""
    for objective in (DEFAULT, *OTHERS):
        for seed in SEEDS if objective == DEFAULT else SEEDS_BESIDE:
            for staleness in LAGS[1:]:
                yield Cell(recipe=recipe, objective=objective, staleness=staleness, learning_rate=rate, seed=seed)
    for seed in SEEDS:
        for objective, staleness in CONSTANT[recipe]:
            yield Cell(
                recipe=recipe, objective=objective, staleness=staleness, learning_rate=rate, seed=seed, constant=True
            )
