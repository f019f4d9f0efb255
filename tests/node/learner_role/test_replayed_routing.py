"""Router replay is refused before a run begins where the model, or the size of its leases, does not allow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from learner.trust.margins import Experts
from node.config.swarm_config import SwarmConfig
from node.learner_role.replayed_routing import audited_experts, replayed_routing
from node.runtime.errors import UsageError
from protocol.experts import Routing

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}


def config(directory: Path, *, replay: bool = True, **learn: Any) -> SwarmConfig:
    sizes = {"group_size": 8, "max_new_tokens": 64, "prompts_per_step": 2, "steps": 1, **learn}
    plain = {
        "swarm": {"name": "a swarm"},
        "model": {"directory": str(directory)},
        "task": {"spec": "reverse"},
        "learn": sizes,
        "trainer": {"router_replay": replay},
    }
    return msgspec.convert(plain, SwarmConfig)


def write(directory: Path, **changes: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({**MOE, **changes}))
    return directory


def test_a_mixture_of_experts_is_replayed_where_that_is_asked_for(tmp_path: Path) -> None:
    assert replayed_routing(config(write(tmp_path))) == Routing(layers=48, experts=128, top_k=8)
    assert replayed_routing(config(tmp_path / "nowhere", replay=False)) is None


def test_audits_know_of_experts_what_leases_ask_for(tmp_path: Path) -> None:
    assert audited_experts(config(write(tmp_path))) is Experts.TOLD
    assert audited_experts(config(tmp_path, replay=False)) is Experts.UNKNOWN
    assert audited_experts(config(write(tmp_path, num_experts=1), replay=False)) is Experts.NONE
    with pytest.raises(UsageError, match=r"\[model\] directory: .* cannot be read"):
        audited_experts(config(tmp_path / "nowhere", replay=False))


@pytest.mark.parametrize(
    ("changes", "learn", "said"),
    [
        ({"model_type": "qwen3"}, {}, r"no mixture of experts that can be replayed \(model_type 'qwen3'\)"),
        ({"model_type": "deepseek_v3"}, {}, "Known types: mixtral, olmoe, qwen2_moe, qwen3_moe. Set the key to false"),
        ({}, {"max_new_tokens": 30_000, "group_size": 2}, "Lower max_new_tokens to 21845"),
        ({}, {"max_new_tokens": 8000}, "384 bytes of experts a token, but a delivery may have at most 16777216"),
    ],
    ids=["no experts", "an unknown kind", "a record too long", "a delivery too large"],
)
def test_what_cannot_be_replayed_is_refused_by_its_key(
    tmp_path: Path, changes: dict[str, Any], learn: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=r"\[trainer\] router_replay") as caught:
        replayed_routing(config(write(tmp_path, **changes), **learn))
    with pytest.raises(UsageError, match=said):
        raise caught.value


def test_a_config_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json cannot be read"):
        replayed_routing(config(tmp_path))
