"""The engine tells the experts that made each token: those that the model's routers choose for it in one plain pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from learner.artifacts.expert_routing import routers_of
from node.engine.common_worker.errors import Refused
from node.engine.common_worker.generate_call import Call, Row
from node.engine.transformers_worker.generation import Generator
from node.engine.transformers_worker.policy import Policy, Settings

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
STOPS = (3, 4, 5, 6)
PROMPTS = [(1, 2, 3), (4, 5), (30, 31, 32, 33), (1, 2, 3), (1, 2, 3), (4, 5)]


def policy(directory: Path, config: Any) -> Policy:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    made = Policy(Settings(device="cpu"))
    made.install(directory, {"version": 1})
    return made


def mixture(directory: Path, experts: int = 6) -> Policy:
    return policy(
        directory,
        Qwen3MoeConfig(
            **SIZES, moe_intermediate_size=8, num_experts=experts, num_experts_per_tok=2, mlp_only_layers=[1]
        ),
    )


def rows(*asked: bool) -> list[Row]:
    call = Call(0)
    call.rows = [
        Row(
            call=call,
            prompt=prompt,
            seed=seed,
            temperature=1.0,
            greedy=False,
            budget=12,
            stop_ids=STOPS,
            with_experts=with_experts,
        )
        for seed, (prompt, with_experts) in enumerate(zip(PROMPTS, asked, strict=True))
    ]
    return call.rows


@torch.inference_mode()
def chosen(policy: Policy, row: Row) -> np.ndarray[Any, Any]:
    """Return the routers' choices at the predictions of the row's tokens, in one pass over all of it."""
    heard: list[torch.Tensor] = []
    handles = [
        router.register_forward_hook(lambda module, inputs, output: heard.append(output[2]))
        for router in routers_of(policy.model)
    ]
    policy.model(input_ids=torch.tensor([[*row.prompt, *row.tokens.tolist()]]), use_cache=False)
    for handle in handles:
        handle.remove()
    first = len(row.prompt) - 1
    return torch.stack(heard, dim=1)[first : first + row.length].numpy()


@pytest.mark.parametrize("experts", [6, 300], ids=["one byte", "two bytes"])
def test_what_is_recorded_is_what_the_routers_choose(tmp_path: Path, experts: int) -> None:
    made = mixture(tmp_path / "moe", experts)
    some = rows(*[True] * 6)
    Generator(made, lambda: False).run(some)
    assert len({row.length for row in some}) > 1, "rows end at different steps"
    for row in some:
        assert row.experts is not None
        assert row.experts.dtype == (np.uint8 if experts == 6 else np.uint16)
        assert row.experts.shape == (row.length, 2, 2)
        assert np.array_equal(np.sort(row.experts, -1), np.sort(chosen(made, row), -1))


def test_recording_changes_no_token(tmp_path: Path) -> None:
    made = mixture(tmp_path / "moe")
    asked, plain = rows(*[True] * 6), rows(*[False] * 6)
    for some in (asked, plain):
        Generator(made, lambda: False).run(some)
    for one, other in zip(asked, plain, strict=True):
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.logprobs, other.logprobs)
        assert other.experts is None
    assert not any(router._forward_hooks for router in routers_of(made.model))


def test_a_reply_says_which_rows_have_experts(tmp_path: Path) -> None:
    made = mixture(tmp_path / "moe")
    some = rows(True, False, True, True, False, False)
    Generator(made, lambda: False).run(some)
    _, arrays = some[0].call.reply()
    assert arrays["routed"].tolist() == [1, 0, 1, 1, 0, 0]
    assert len(arrays["experts"]) == sum(row.length for row in some if row.with_experts)
    plain = rows(*[False] * 6)
    Generator(made, lambda: False).run(plain)
    assert "experts" not in plain[0].call.reply()[1]


def test_experts_of_a_model_that_has_none_are_refused(tmp_path: Path) -> None:
    made = policy(tmp_path / "dense", Qwen3Config(**SIZES, head_dim=8))
    with pytest.raises(Refused, match="the experts of a qwen3 were requested"):
        Generator(made, lambda: False).run(rows(*[True] * 6))
