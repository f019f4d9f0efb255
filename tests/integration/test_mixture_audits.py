"""Audit rollouts of a mixture of experts in bfloat16 with a float32 engine.

With the experts reported, honest rollouts are within the margins of dense models, and forged experts are not followed.
The engines are real, one for the peer and one for the learner.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from learner.trust.audit_queue import Passage
from learner.trust.ban_evidence import Found
from learner.trust.margins import Experts, margins_of
from node.engine.interface import EngineRefused, GenerationRequest
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import WorkerEngine
from tests.support.audited_engines import VERSION, audit, open_auditor, passages_by, passes

TOKENS, COMPLETIONS = 48, 32
LAYERS, EXPERTS, TOP_K = 6, 16, 2
PARAMETERS = 1_000_000


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two mixtures of one shape."""
    config = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=EXPERTS, num_experts_per_tok=TOP_K,
        norm_topk_prob=True, max_position_embeddings=128, initializer_range=0.15, tie_word_embeddings=False,
    )  # fmt: skip
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        made.append(tmp_path_factory.mktemp("models") / f"moe-{seed}")
        AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(made[-1])
    return made


@pytest.fixture(scope="module")
def requests() -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt=(1, 2, 3 + seed), seed=seed, temperature=1.0, max_new_tokens=TOKENS, stop_ids=frozenset(),
            experts=True,
        )
        for seed in range(COMPLETIONS)
    ]  # fmt: skip


async def passages_of(directory: Path, requests: Sequence[GenerationRequest]) -> list[Passage]:
    """Return the delivery of a peer that computes in bfloat16, with its experts."""
    return await passages_by(TransformersConfig(device="cpu", compute_dtype="bfloat16"), directory, requests)


@pytest.fixture
async def auditor() -> AsyncIterator[WorkerEngine]:
    async with open_auditor() as engine:
        yield engine


def has_passed(found: Sequence[Found], experts: Experts) -> bool:
    """Return whether one audit of these tokens, the first of its peer, passes."""
    return passes(found, margins_of(PARAMETERS, experts=experts))


def without(passages: Sequence[Passage]) -> list[Passage]:
    return [replace(one, experts=b"") for one in passages]


async def test_told_experts_bring_honest_records_within_rounding_and_forged_ones_are_not_followed(
    directories: list[Path], requests: list[GenerationRequest], auditor: WorkerEngine
) -> None:
    passages = await passages_of(directories[0], requests)
    told = await audit(auditor, directories[0], passages)
    untold = await audit(auditor, directories[0], without(passages))
    assert len(told) == len(untold) == TOKENS * COMPLETIONS
    assert max(one.apart for one in untold) > 2 * max(one.apart for one in told), "routers chose otherwise"
    assert has_passed(told, Experts.TOLD)
    assert has_passed(untold, Experts.UNKNOWN)
    # Each token goes through the neighbours of its experts, which here and there are as likely.
    found = await audit(auditor, directories[0], [forged(one) for one in passages[:8]])
    followed = sum(abs(one.apart - other.apart) > 1e-3 for one, other in zip(found, untold, strict=False))
    assert followed < 0.4 * len(found)
    # One request has passages with experts and passages without.
    some = [one if place % 2 else replace(one, experts=b"") for place, one in enumerate(passages)]
    mixed = await audit(auditor, directories[0], some)
    for place, one in enumerate(mixed):
        alike = told if place // TOKENS % 2 else untold
        assert abs(one.apart - alike[place].apart) < 1e-3


def forged(passage: Passage) -> Passage:
    experts = np.frombuffer(passage.experts, np.uint8)
    return replace(passage, experts=((experts + 5) % EXPERTS).astype(np.uint8).tobytes())


async def test_other_weights_are_found_whatever_experts_they_tell(
    directories: list[Path], requests: list[GenerationRequest], auditor: WorkerEngine
) -> None:
    passages = await passages_of(directories[1], requests[:8])
    assert not has_passed(await audit(auditor, directories[0], passages), Experts.TOLD)
    assert not has_passed(await audit(auditor, directories[0], without(passages)), Experts.UNKNOWN)


async def test_bytes_that_are_no_experts_are_refused(directories: list[Path], auditor: WorkerEngine) -> None:
    for raw in (b"\x01" * 7, bytes([1, EXPERTS] * LAYERS), bytes([1, 1] * LAYERS)):
        one = Passage(
            prompt=(1, 2), tokens=(3,), logprobs=(-1.0,), parts=((0, 1),), seed=1, temperature=1.0,
            version=VERSION.name, manifest=VERSION.manifest, experts=raw,
        )  # fmt: skip
        with pytest.raises(EngineRefused, match="these experts do not fit the model"):
            await audit(auditor, directories[0], [one])
