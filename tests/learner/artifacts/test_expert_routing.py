"""Read a mixture of experts from a config.json; a router of an unknown kind is never replayed by guess."""

from __future__ import annotations

from typing import Any

import pytest

from learner.artifacts.expert_routing import has_experts, routing_in, shares_weights
from protocol.experts import Routing

QWEN3: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}


def test_a_config_says_how_many_layers_have_experts() -> None:
    assert routing_in(QWEN3) == Routing(layers=48, experts=128, top_k=8)
    assert routing_in({**QWEN3, "decoder_sparse_step": 2, "mlp_only_layers": [1, 2]}) == Routing(
        layers=23, experts=128, top_k=8
    )
    mixtral = {"model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 8, "num_experts_per_tok": 2}
    assert routing_in(mixtral) == Routing(layers=2, experts=8, top_k=2)
    assert shares_weights(mixtral)
    assert shares_weights(QWEN3)
    assert not shares_weights({**QWEN3, "norm_topk_prob": False})


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen3"},
        {"model_type": "deepseek_v3"},
        {"num_experts": 0},
        {"num_experts": "128"},
        {"num_experts": 70_000},
        {"num_experts_per_tok": 129},
        {"num_hidden_layers": 0},
        {"mlp_only_layers": list(range(48))},
    ],
    ids=lambda changes: "-".join(map(str, changes.items()))[:40],
)
def test_what_is_not_known_to_route_so_has_no_routing(changes: dict[str, Any]) -> None:
    assert routing_in({**QWEN3, **changes}) is None


@pytest.mark.parametrize(
    ("config", "has"),
    [
        (QWEN3, True),
        ({"model_type": "mixtral", "num_local_experts": 8}, True),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, True),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": [64, 64]}, True),
        ({"model_type": "gemma4", "text_config": {"num_experts": 128}}, True),
        ({"model_type": "jamba", "num_experts": 1}, False),
        ({"model_type": "qwen3", "num_experts": None, "num_experts_per_tok": 8}, False),
        ({"model_type": "qwen3", "moe_num_experts": [True], "num_hidden_layers": 4}, False),
    ],
)
def test_a_mixture_is_told_by_how_many_experts_a_layer_has(config: dict[str, Any], has: bool) -> None:
    assert has_experts(config) == has
