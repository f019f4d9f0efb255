"""Test the trainer's benchmarks: the same targets both ways, and a peak that is not missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.footprint import measured
from benchmarks.baselines.padding import measure, padded_microbatches, skewed_batch
from learner.trainer_api.requests import Hyperparameters
from learner.training.model.loading import make_model
from learner.training.model.policy import load_policy
from learner.training.train_state import Training

CONFIG: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


def test_both_ways_score_the_same_targets_and_ours_wastes_less(tmp_path: Path) -> None:
    make_model(tmp_path / "model", CONFIG, 0)
    budget = 512
    training = Training(
        load_policy(tmp_path / "model"), Hyperparameters(max_new_tokens=60, max_tokens_per_microbatch=budget)
    )
    batch = skewed_batch(0, 40, longest=60)
    scores = []
    for parts in (training.parts(batch, np.ones(len(batch), np.bool_)), padded_microbatches(batch, budget)):
        found = np.full(int(batch.targets.sum()), np.nan)
        for part in parts:
            assert part.inputs.numel() <= budget
            assert np.isnan(found[part.numbers]).all(), "no target twice"
            found[part.numbers] = training.policy.score(part, 1.0).logprobs.detach().numpy()
        scores.append(found)
    assert scores[0] == pytest.approx(scores[1], abs=1e-5)
    found_out = measure(training, batch, rounds=1)
    assert found_out.ours_positions < found_out.padded_positions
    assert found_out.tokens == len(batch.tokens)
    assert found_out.gain == found_out.ours / found_out.padded > 0


@pytest.mark.slow
def test_a_trainer_takes_at_most_18_bytes_a_parameter_and_12_more_for_a_checkpoint_that_is_being_written() -> None:
    found = measured()
    assert 16 < found["peak_bytes_per_parameter"] <= 18
    assert found["beside_bytes_per_parameter"] <= 30
