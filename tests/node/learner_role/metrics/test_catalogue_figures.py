"""The figures of a real trainer are declared, and those that are declared as its own come from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learner.training.server import Trainer
from node.learner_role.metrics.collect import BY_LAG, is_trainers
from protocol.core.pipe import Header
from tests.integration.test_mixture_of_experts import CONFIG as MIXTURE
from tests.integration.test_mixture_of_experts import rollouts as rollouts_of_mixture
from tests.learner.training.test_server import CONFIG, HYPERPARAMETERS, ok, rollouts
from tests.node.learner_role.metrics.test_catalogue import FIGURES

NOT_FIGURES = {"id", "ok", "seconds", "blocked_s", "steps", "by_lag"}
"""Keys of a reply that are no metrics: parts of the conversation, and values that are recorded by lag."""

OBJECTIVES: list[dict[str, Any]] = [{"objective": "grpo", "kl": 0.1}, {"objective": "ppo"}, {"objective": "dpo"}]


def pairs(seed: int) -> Any:
    """Rollouts in groups of two."""
    arrays = rollouts(seed)
    return arrays | {"group_sizes": arrays["group_sizes"].repeat(2) // 2}


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> list[Header]:
    model = tmp_path_factory.mktemp("models") / "qwen3"
    ok(Trainer(), "make_model", directory=str(model), config=CONFIG)
    found = []
    for objective in OBJECTIVES:
        trainer = Trainer()
        ok(trainer, "load", directory=str(model), hyperparameters=HYPERPARAMETERS | objective)
        found.append(ok(trainer, "step", pairs(0)))
    mixture = tmp_path_factory.mktemp("models") / "moe"
    ok(Trainer(), "make_model", directory=str(mixture), config=MIXTURE, architecture="qwen3_moe")
    trainer = Trainer()
    ok(trainer, "load", directory=str(mixture), hyperparameters=HYPERPARAMETERS, router_replay=True)
    some = rollouts_of_mixture(0)
    routes = {"experts": np.tile(np.array([0, 1], np.uint8), (48, 2, 1)), "routed": np.ones(48, np.uint8)}
    found.append(ok(trainer, "step", some | routes))
    return found


def test_a_trainers_figures_are_declared_and_told(replies: list[Header]) -> None:
    told = {name for reply in replies for name in reply} - NOT_FIGURES
    assert [name for name in told if not is_trainers(name)] == []
    assert told == set(FIGURES) - {"offline_sequences"}  # the node's to tell


def test_figures_by_lag_are_declared_and_told(replies: list[Header]) -> None:
    told = {name for reply in replies for figures in reply["by_lag"].values() for name in figures}
    assert told - {"reference_kl"} == set(BY_LAG) - {"reward"}  # the reward is the node's to tell
