"""Rotary embeddings whose factors change with the length: engine, audit and trainer compute the same values.

A model for which they could not is refused by all three.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from learner.training.batches.sequences import BadBatch, supervised_batch
from learner.trial.logprob_agreement import Reading, disagreement
from node.engine.common_worker.errors import Refused
from node.tasks.tokenizer import limit_of
from tests.architectures.outcomes import SAME, Tried
from tests.architectures.readings import Said, trained
from tests.architectures.shrinking import NotMade, architectures, tiny_config, tiny_model

ORIGINAL = 24
POSITIONS = 72
SHARPNESS = 12.0
"""By which queries and keys are larger than usual, so that positions matter."""

EVERY = 12
"""Every twelfth architecture with one kind of rotary embeddings is tried."""


def save(model_type: str, directory: Path, rope: dict[str, Any]) -> None:
    """A tiny model of this type with other rotary embeddings, and queries and keys that tell positions apart."""
    config = tiny_config(model_type)
    config.max_position_embeddings = POSITIONS
    with torch.device("meta"):
        size = _frequencies(AutoModelForCausalLM.from_config(config))
    changes = {name: value * size if isinstance(value, list) else value for name, value in rope.items()}
    config.rope_parameters = {**config.rope_parameters, **changes}
    config.original_max_position_embeddings = ORIGINAL
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            if any(part in name for part in ("q_proj.weight", "k_proj.weight", "qkv_proj.weight")):
                parameter.mul_(SHARPNESS if "qkv" not in name else SHARPNESS**0.5)
    model.save_pretrained(directory)


def _frequencies(model: Any) -> int:
    return next(len(buffer) for name, buffer in model.named_buffers() if name.endswith("rotary_emb.inv_freq"))


def longrope(short: float = 1.0, long: float = 4.0) -> dict[str, Any]:
    factors = {"short_factor": [short], "long_factor": [long]}
    return {"rope_type": "longrope", **factors, "original_max_position_embeddings": ORIGINAL}


def apart(tried: Tried, said: Said) -> str:
    audited, _ = tried.engine.audit(said)
    readings = {"engine": said.logprobs, "audit": audited, "trainer": trained(tried.policy, said)}
    return disagreement([Reading(who=who, logprobs=logprobs) for who, logprobs in readings.items()], SAME)


PROMPTS = [(5, 6, 7), (9, 8, 7, 6, 5), (5, 6, 7), (11,)]


def require_limit(tried: Tried, directory: Path, limit: int) -> None:
    """Within the limit all agree, in any company and whatever was computed before; beyond it all refuse."""
    assert not apart(tried, tried.engine.generate(PROMPTS, [limit - 3, 7, 4, 9]))
    assert not apart(tried, tried.engine.generate([(5, 6, 7)], [2]))
    with pytest.raises(Refused, match=f"3 prompt and {limit - 2} new tokens exceed the model's {limit} positions"):
        tried.engine.generate([(5, 6, 7)], [limit - 2])
    long = Said(prompts=[(5, 6, 7)], completions=[list(range(limit - 2))], logprobs=np.zeros(limit - 2))
    with pytest.raises(Refused, match=f"{limit + 1} tokens exceed the model's {limit} positions"):
        tried.engine.audit(long)
    arrays = {
        "tokens": np.arange(limit + 1, dtype=np.int32),
        "lengths": np.array([limit + 1], np.int32),
        "mask": np.arange(limit + 1, dtype=np.uint8).clip(max=1),
    }
    with pytest.raises(BadBatch, match=f"a sequence has {limit + 1} tokens, but the model takes at most {limit}"):
        supervised_batch(arrays, 1000, tried.policy.positions)
    told = limit_of(directory)
    assert told is not None
    assert told.tokens == limit


def test_longrope_ends_where_its_factors_change(tmp_path: Path) -> None:
    save("phi3", tmp_path / "model", longrope())
    require_limit(Tried.load(tmp_path / "model"), tmp_path / "model", ORIGINAL)


def test_longrope_with_equal_factors_goes_all_the_way(tmp_path: Path) -> None:
    """What a refusal advises: the factors of long sequences for all of them."""
    save("phi3", tmp_path / "model", longrope(short=4.0))
    require_limit(Tried.load(tmp_path / "model"), tmp_path / "model", POSITIONS)


def test_dynamic_scaling_ends_where_it_would_begin(tmp_path: Path) -> None:
    save("llama", tmp_path / "model", {"rope_type": "dynamic", "factor": 4.0})
    require_limit(Tried.load(tmp_path / "model"), tmp_path / "model", POSITIONS)


def rotary() -> list[str]:
    """Architectures with rotary embeddings of one kind for all layers."""
    found = []
    for model_type in architectures():
        try:
            config = tiny_config(model_type)
            with torch.device("meta"):
                _frequencies(AutoModelForCausalLM.from_config(config))
        except Exception:  # the library raises anything: a class of several parts, or no such buffer
            continue
        turns = getattr(config, "rope_parameters", None)
        if isinstance(turns, dict) and "rope_theta" in turns:
            found.append(model_type)
    return found


@pytest.mark.slow
def test_whatever_turns_its_keys_ends_where_factors_change(tmp_path: Path) -> None:
    chosen = rotary()[::EVERY]
    assert len(chosen) > 4
    for model_type in chosen:
        directory = tmp_path / model_type
        made = tiny_model(model_type)
        assert not isinstance(made, NotMade)
        save(model_type, directory, longrope())
        require_limit(Tried.load(directory), directory, ORIGINAL)
        print(model_type, flush=True)
