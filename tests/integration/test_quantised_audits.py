"""Audit rollouts of quantised engines: a peer that reports its real number format passes, another one is found.

The engines are real, one for the peer and one for the learner; all compute in float32, as on processors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from learner.trust.audit_queue import Passage
from learner.trust.ban_evidence import Found
from learner.trust.margins import Arithmetic, margins_of
from node.engine.interface import GenerationRequest
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import WorkerEngine
from tests.support.audited_engines import audit, open_auditor, passages_by, passes
from tests.support.node_fixtures import Models

TOKENS, COMPLETIONS = 48, 16


async def passages_of(directory: Path, form: str, said: str) -> list[Passage]:
    """Return the delivery of a peer whose engine holds the format `form`, and which signs that it is `said`."""
    requests = [
        GenerationRequest(
            prompt=(1, 2, 3 + seed), seed=seed, temperature=1.0, max_new_tokens=TOKENS, stop_ids=frozenset()
        )
        for seed in range(COMPLETIONS)
    ]
    config = TransformersConfig(device="cpu", quantization="" if form == "stored" else form)
    return await passages_by(config, directory, requests, said=said)


@pytest.fixture
async def auditor() -> AsyncIterator[WorkerEngine]:
    async with open_auditor() as engine:
        yield engine


def has_passed(found: Sequence[Found]) -> bool:
    """Return whether one audit of these tokens, the first of its peer, passes."""
    return passes(found, margins_of(200_000, Arithmetic.FLOAT32))


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("int8", "int8"),
        ("int4", "int4"),
        ("int4", "int8"),
        ("int8", "int4"),
        ("int8", "stored"),
        ("int4", "stored"),
        ("stored", "int8"),
    ],
)
async def test_who_says_another_format_than_it_computes_in_is_found(
    models: Models, auditor: WorkerEngine, form: str, said: str
) -> None:
    found = await audit(auditor, models.first, await passages_of(models.first, form, said))
    assert len(found) == TOKENS * COMPLETIONS
    if form == said:
        assert max(one.apart for one in found) < 1e-4
        assert max(one.gap for one in found) < 1e-3
    assert has_passed(found) == (form == said), f"weights held as {form} were reported as {said}"
    assert auditor.installed is not None
    assert auditor.installed.weights == ("" if said == "stored" else said)


async def test_the_auditor_goes_from_one_format_to_another_and_back(models: Models, auditor: WorkerEngine) -> None:
    for form in ("int4", "stored", "int8", "stored"):
        found = await audit(auditor, models.first, await passages_of(models.first, form, form))
        assert max(one.apart for one in found) < 1e-4
