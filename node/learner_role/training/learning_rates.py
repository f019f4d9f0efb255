"""Return the learning rates that suit a model's size, for `volery init` and `volery warmup`.

The usual rates suit models of 0.5 B parameters and more, and hardly move much smaller ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.config.swarm_config import TrainerSection

SMALL_PARAMETERS = 100_000_000
"""Parameters below which a model needs the rates of small ones."""


@dataclass(frozen=True, kw_only=True)
class LearningRates:
    """The rates of reinforcement learning, and of a warm start of all weights or of an adapter."""

    reinforcement: float
    supervised: float
    adapter: float


USUAL = LearningRates(reinforcement=TrainerSection().learning_rate, supervised=2e-5, adapter=2e-4)
"""Those of a warm start are TRL's, for `SFTConfig` and in its guide for LoRA."""

SMALL = LearningRates(reinforcement=3e-4, supervised=1e-3, adapter=1e-3)
"""Rates at which the demo's model learns. At 1e-3 it learns a file of 400 problems in 40 s on a laptop; in 18 steps at
2e-5 it learned nothing."""


def rates_of(parameters: int) -> LearningRates:
    """Return the rates for a model with so many parameters."""
    return SMALL if parameters < SMALL_PARAMETERS else USUAL
