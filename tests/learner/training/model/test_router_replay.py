"""Router replay in the trainer: it uses the forced experts in every layout, with gradients for the router.

It never uses experts that the policy would not choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, OlmoeConfig, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig

from learner.artifacts.expert_routing import routers_of, routing_in
from learner.artifacts.model_directory import BadModel
from learner.training.batches.packing import Layout, dealt_microbatches, mini_batches
from learner.training.batches.routes import Routes
from learner.training.batches.sequences import BadBatch, Prepared, Ragged, supervised_batch
from learner.training.model import router_replay
from learner.training.model.policy import Policy, load_policy

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
QWEN3 = Qwen3MoeConfig(
    **SIZES,
    moe_intermediate_size=24,
    num_experts=6,
    num_experts_per_tok=2,
    norm_topk_prob=True,
    mlp_only_layers=[1],
)
KINDS = {
    "qwen3_moe": QWEN3,
    "qwen3_moe-plain-weights": Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False
    ),
    "qwen2_moe": Qwen2MoeConfig(
        **SIZES,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
        num_experts=6,
        num_experts_per_tok=2,
    ),
    "olmoe": OlmoeConfig(**SIZES, num_experts=6, num_experts_per_tok=2),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=6, num_experts_per_tok=2),
}
LENGTHS = (9, 7, 12, 5)
PROMPTS = (3, 3, 4, 2)


def write(directory: Path, config: Any) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "moe", QWEN3)


@pytest.fixture
def anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is believed: what is forced is used, however unlikely."""
    monkeypatch.setattr(router_replay, "LEAST_SHARE", 0.0)


def batch(routes: Routes | None = None) -> Ragged:
    """Four sequences, the first two with one prompt."""
    draw = np.random.default_rng(0)
    tokens = [draw.integers(0, 40, length) for length in LENGTHS]
    tokens[1][:3] = tokens[0][:3]
    targets = [np.arange(length) >= prompt for length, prompt in zip(LENGTHS, PROMPTS, strict=True)]
    return Ragged(
        tokens=np.concatenate(tokens), lengths=np.array(LENGTHS), targets=np.concatenate(targets), routes=routes
    )


TARGETS = sum(LENGTHS) - sum(PROMPTS)


def score(policy: Policy, ragged: Ragged, layout: Layout = Layout.ROWS, max_tokens: int = 64) -> torch.Tensor:
    found = torch.zeros(TARGETS)
    for part in parts(ragged, layout, max_tokens):
        found[torch.from_numpy(part.numbers)] = policy.score(part, 1.0).logprobs
    return found


def parts(ragged: Ragged, layout: Layout, max_tokens: int) -> Iterator[Any]:
    keep = np.ones(len(ragged), np.bool_)
    return iter(dealt_microbatches(ragged, keep, max_tokens, layout=layout, rank=0, ranks=1))


def own_routes(policy: Policy) -> Routes:
    """What the policy's routers choose for the batch, as an engine of the same weights would tell."""
    routing = routing_in(policy.model.config.to_dict())
    assert routing is not None
    heard: list[torch.Tensor] = []
    handles = [
        router.register_forward_hook(lambda module, inputs, output: heard.append(output[2]))
        for router in routers_of(policy.model)
    ]
    found = np.zeros((TARGETS, routing.layers, routing.top_k), np.uint8)
    with torch.no_grad():
        for part in parts(batch(), Layout.ROWS, 64):
            heard.clear()
            policy.score(part, 1.0)
            for layer, chosen in enumerate(heard):
                found[part.numbers, layer] = chosen[part.predictors].numpy()
    for handle in handles:
        handle.remove()
    return Routes(experts=found, routed=np.ones(TARGETS, np.bool_))


def others(routes: Routes) -> Routes:
    """The two first experts that were not chosen, in every layer."""
    free = np.ones((*routes.experts.shape[:2], 6), np.bool_)
    np.put_along_axis(free, routes.experts.astype(np.int64), values=False, axis=-1)
    found = np.argsort(~free, axis=-1, kind="stable")[..., :2]
    return Routes(experts=found.astype(np.uint8), routed=routes.routed)


@pytest.mark.parametrize("kind", KINDS)
def test_the_choices_of_the_same_weights_change_nothing(tmp_path: Path, kind: str) -> None:
    policy = load_policy(write(tmp_path / kind, KINDS[kind]), router_replay=True)
    with torch.no_grad():
        plain = score(policy, batch())
        replayed = score(policy, batch(own_routes(policy)))
    assert torch.allclose(replayed, plain, atol=1e-5)
    assert policy.replayed()[0] == policy.replayed()[1] > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("anything")
def test_forced_experts_get_the_weights_that_the_live_router_has_for_them(tmp_path: Path, kind: str) -> None:
    policy = load_policy(write(tmp_path / kind, KINDS[kind]), router_replay=True)
    routes = own_routes(policy)
    with torch.no_grad():
        plain, forced = score(policy, batch()), score(policy, batch(others(routes)))
    assert not torch.allclose(forced, plain, atol=1e-3)
    with torch.no_grad():
        for router in routers_of(policy.model):
            logits = torch.randn(5, 6)
            chosen = logits.topk(2).indices
            odds = logits.softmax(-1).gather(1, chosen)
            shares = kind != "qwen3_moe-plain-weights" and kind not in ("olmoe", "qwen2_moe")
            expected = odds / odds.sum(-1, keepdim=True) if shares else odds
            layer = next(iter(router._forward_hooks.values()))
            layer.__self__.forced, layer.__self__.believed = chosen, None
            wrong = torch.zeros(5, 2), torch.zeros(5, 2, dtype=torch.int64)
            _, weights, experts = layer(router, (), (logits, *wrong))
            assert torch.equal(experts, chosen)
            assert torch.allclose(weights, expected)


@pytest.mark.usefixtures("anything")
def test_layouts_agree(model: Path) -> None:
    policy = load_policy(model, router_replay=True)
    forced = others(own_routes(policy))
    # Siblings share the position that predicts their first tokens, so they must share its experts, too.
    forced.experts[LENGTHS[0] - PROMPTS[0]] = forced.experts[0]
    with torch.no_grad():
        rows = score(policy, batch(forced))
        small = score(policy, batch(forced), max_tokens=12)
        groups = score(policy, batch(forced), Layout.GROUPS)
        end_to_end = score(policy, batch(forced), Layout.END_TO_END) if policy.lay_end_to_end() else rows
    for other in (small, groups, end_to_end):
        assert torch.allclose(other, rows, atol=1e-4)


@pytest.mark.usefixtures("anything")
def test_tokens_without_experts_route_themselves(model: Path) -> None:
    policy = load_policy(model, router_replay=True)
    forced = others(own_routes(policy))
    last = Routes(experts=forced.experts, routed=np.arange(TARGETS) == TARGETS - 1)
    with torch.no_grad():
        plain, found = score(policy, batch()), score(policy, batch(last))
        nothing = score(policy, batch(Routes(experts=forced.experts, routed=np.zeros(TARGETS, np.bool_))))
    assert torch.equal(nothing, plain)
    assert torch.allclose(found[:-1], plain[:-1], atol=1e-5)
    assert abs(float(found[-1] - plain[-1])) > 1e-3


def test_experts_that_the_policy_would_not_choose_are_ignored(model: Path) -> None:
    policy = load_policy(model, router_replay=True)
    with torch.no_grad():
        for router in routers_of(policy.model):
            router.weight.mul_(50)  # routers that are sure of themselves
        routes = own_routes(policy)
        plain, found = score(policy, batch()), score(policy, batch(others(routes)))
    taken, given = policy.replayed()
    assert given == TARGETS * 2
    assert taken < 0.1 * given
    assert taken or torch.equal(found, plain)


@pytest.mark.usefixtures("anything")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_the_router(model: Path, checkpointing: bool) -> None:
    policy = load_policy(model, router_replay=True, gradient_checkpointing=checkpointing)
    forced = others(own_routes(policy))
    reference = gradients(policy, forced)
    assert all(float(one.abs().max()) > 0 for one in reference)
    plain = gradients(load_policy(model, router_replay=True), forced)
    for one, other in zip(reference, plain, strict=True):
        assert torch.allclose(one, other, atol=1e-6), "a recomputed layer must be routed as the first time"


def gradients(policy: Policy, routes: Routes) -> list[torch.Tensor]:
    policy.model.zero_grad()
    for part in parts(batch(routes), Layout.ROWS, 24):
        policy.score(part, 1.0).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    return [router.weight.grad.clone() for router in routers_of(policy.model)]


def test_parts_of_a_batch_keep_their_own_experts(model: Path) -> None:
    routes = own_routes(load_policy(model))
    whole = batch(routes)
    columns = {"advantages": np.ones(TARGETS, np.float32)}
    prepared = Prepared(sequences=whole, trained=np.ones(4, np.bool_), groups=np.array([2, 2]), columns=columns)
    first, second = mini_batches(prepared, 2)
    assert first.sequences.routes is not None
    assert second.sequences.routes is not None
    joined = [first.sequences.routes.experts, second.sequences.routes.experts]
    assert np.array_equal(np.concatenate(joined), routes.experts)
    assert len(joined[0]) == sum(LENGTHS[:2]) - sum(PROMPTS[:2])


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path / "dense", Qwen3Config(**SIZES, head_dim=8))
    with pytest.raises(BadModel, match="this is a qwen3: set"):
        load_policy(directory, router_replay=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"experts": np.zeros((2, 2, 2), np.int64)}, "must be uint8 or uint16"),
        ({"experts": np.zeros((2, 3, 2), np.uint8)}, r"\(2, 2, 2\); it is uint8 \(2, 3, 2\)"),
        ({"experts": np.full((2, 2, 2), 6, np.uint8)}, "each layer of the model has 6"),
        ({"routed": np.ones(3, np.uint8)}, "routed has 3 values for 2 generated tokens"),
    ],
    ids=["another dtype", "another shape", "no such expert", "too many flags"],
)
def test_arrays_that_are_no_experts_are_refused(changes: dict[str, Any], said: str) -> None:
    routing = routing_in(QWEN3.to_dict())
    arrays = {
        "tokens": np.array([1, 2, 3], np.int32),
        "lengths": np.array([3], np.int32),
        "mask": np.array([0, 1, 1], np.uint8),
        "experts": np.zeros((2, 2, 2), np.uint8),
        "routed": np.ones(2, np.uint8),
        **changes,
    }
    with pytest.raises(BadBatch, match=said):
        supervised_batch(arrays, 40, None, routing)
    with pytest.raises(BadBatch, match="load the model with router_replay"):
        supervised_batch(arrays, 40)
