"""Read how long a sequence a model takes from its config.json alone."""

from __future__ import annotations

from typing import Any

import pytest

from learner.artifacts.model_limits import Positions, first_position, original_lengths, positions_in, text_part
from node.engine.common_worker.rotary import original_lengths as workers_rule

SHORT, LONG = [1.0, 1.1], [1.5, 9.0]


def longrope(**changes: Any) -> dict[str, Any]:
    return {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, **changes}


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({}, None),
        ({"max_position_embeddings": 64}, 64),
        ({"n_positions": 24, "n_ctx": 512}, 24),  # GPT-2
        ({"n_ctx": 512}, None),
        ({"max_seq_len": 48}, 48),  # MPT
        ({"seq_length": 48}, None),  # BLOOM, which computes with no such thing
        ({"context_length": 40}, 40),
        ({"max_target_positions": 448, "max_source_positions": 1500}, 448),
        ({"max_position_embeddings": -1}, None),  # XLNet
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": 64, "text_config": {"max_position_embeddings": 32}}, 32),
        ({"decoder": {"max_position_embeddings": 16}}, 16),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 1}, 512),
    ],
)
def test_every_name_of_the_longest_sequence_is_known(config: dict[str, Any], tokens: int | None) -> None:
    found = positions_in(config)
    assert (found and found.tokens) == tokens
    assert found is None or not found.why


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"rope_scaling": longrope(), "original_max_position_embeddings": 24}, 24),
        ({"rope_scaling": longrope(type="su"), "original_max_position_embeddings": 24}, 24),
        ({"rope_scaling": longrope(original_max_position_embeddings=24)}, 24),
        ({"rope_parameters": {**longrope(original_max_position_embeddings=24), "rope_type": "longrope"}}, 24),
        ({"rope_parameters": {"full_attention": longrope(original_max_position_embeddings=24)}}, 24),
        ({"text_config": {"rope_scaling": longrope(), "original_max_position_embeddings": 24}}, 24),
        ({"rope_scaling": longrope(long_factor=SHORT), "original_max_position_embeddings": 24}, 64),
        ({"rope_scaling": longrope(long_factor=SHORT, short_mscale=1.1), "original_max_position_embeddings": 24}, 24),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 24}, 64),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 64),
        ({"rope_scaling": None, "original_max_position_embeddings": 24}, 64),
        ({"rope_scaling": longrope(), "original_max_position_embeddings": 4096}, 64),
    ],
)
def test_factors_that_change_with_the_length_are_a_limit(config: dict[str, Any], tokens: int) -> None:
    named = {"max_position_embeddings": 64}
    inner = {name: {**part, **named} for name, part in config.items() if name == "text_config"}
    found = positions_in({**named, **config, **inner})
    assert found is not None
    assert found.tokens == tokens
    assert bool(found.why) == (tokens == 24)
    # The engines' workers, which know nothing of ours but their own folders, have the rule as well.
    assert sorted(workers_rule({**named, **config, **inner})) == sorted(original_lengths(text_part(config)))
    if found.why:
        assert "original_max_position_embeddings" in found.why
        assert "write the values of long_factor into short_factor" in found.why


def test_a_first_position_comes_behind_the_padding() -> None:
    assert first_position({"model_type": "xlm-roberta", "pad_token_id": 1}) == 2
    assert first_position({"model_type": "xlm-roberta", "pad_token_id": None}) == 1
    assert first_position({"model_type": "llama", "pad_token_id": 1}) == 0


def test_a_limit_has_no_reason_but_its_size() -> None:
    assert positions_in({"n_positions": 24}) == Positions(tokens=24)
