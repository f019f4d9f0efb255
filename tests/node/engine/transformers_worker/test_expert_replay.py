"""An audit follows told experts where its own router nearly chose them, and nowhere else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Qwen3Config

from learner.artifacts.expert_routing import AUDITED_SHARE
from node.engine.common_worker.errors import Refused
from node.engine.transformers_worker.expert_replay import NOBODY, _followed, replaying

EXPERTS, TOP_K = 6, 2
LOGITS = st.lists(st.floats(-4, 4, width=16), min_size=EXPERTS, max_size=EXPERTS)
TOLD = st.permutations(range(EXPERTS)).map(lambda order: order[:TOP_K]) | st.just([NOBODY] * TOP_K)


@given(LOGITS, TOLD, st.booleans())
def test_what_is_told_is_followed_where_the_least_likely_expert_is_as_good(
    logits: list[float], told: list[int], shares: bool
) -> None:
    scores = torch.tensor([logits])
    odds = torch.softmax(scores, -1)
    weights, own = odds.topk(TOP_K, dim=-1)
    if shares:
        weights = weights / weights.sum(-1, keepdim=True)
    _, found_weights, found = _followed(scores, weights, own, torch.tensor([told]), shares=shares)
    if NOBODY in told or odds[0, told].min() < AUDITED_SHARE * odds[0, own[0]].min():
        assert torch.equal(found, own)
        assert torch.equal(found_weights, weights)
        return
    assert found[0].tolist() == told
    expected = odds[0, told]
    assert torch.allclose(found_weights[0], expected / expected.sum() if shares else expected)
    assert found_weights.sum() <= 1 + 1e-6


@given(LOGITS, st.booleans())
def test_its_own_choice_in_another_order_changes_no_weight(logits: list[float], shares: bool) -> None:
    scores = torch.tensor([logits])
    weights, own = torch.softmax(scores, -1).topk(TOP_K, dim=-1)
    if shares:
        weights = weights / weights.sum(-1, keepdim=True)
    _, found_weights, found = _followed(scores, weights, own, own.flip(-1), shares=shares)
    assert torch.equal(found, own.flip(-1))
    assert torch.allclose(found_weights, weights.flip(-1))


def test_a_dense_model_has_no_experts_to_follow() -> None:
    config = Qwen3Config(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    with (
        pytest.raises(Refused, match="experts of a qwen3 must be followed"),
        replaying(AutoModelForCausalLM.from_config(config)),
    ):
        pass
