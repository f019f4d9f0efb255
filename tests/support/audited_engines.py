"""Run two engines, a peer's and the learner's: generate with the first, and audit with the second."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from learner.trust.audit_history import AuditHistory, after
from learner.trust.audit_queue import Passage, Portion
from learner.trust.ban_evidence import Found, Margin, count_above
from node.engine.interface import GenerationRequest, InstalledVersion
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import WorkerEngine, open_worker_engine
from node.learner_role.trust.auditor import found_by
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion
from protocol.experts import experts_bytes
from protocol.versions.formats import STORED

VERSION = InstalledVersion(name=PolicyVersion(1, 3), manifest=ManifestHash(bytes([3]) * 32))
LEASE = LeaseId(bytes(16))


async def passages_by(
    config: TransformersConfig, directory: Path, requests: Sequence[GenerationRequest], *, said: str = STORED
) -> list[Passage]:
    """Return the delivery of a peer with an engine of that `config`, which signs that its weights are
    held as `said`.
    """
    async with open_worker_engine(config) as engine:
        await engine.install(VERSION, directory)
        made = await engine.generate(requests)
    return [
        Passage(
            prompt=request.prompt,
            tokens=one.tokens,
            logprobs=one.logprobs,
            parts=((0, len(one.tokens)),),
            seed=request.seed,
            temperature=1.0,
            version=VERSION.name,
            manifest=VERSION.manifest,
            form=said,
            experts=b"" if one.experts is None else experts_bytes(one.experts),
        )
        for request, one in zip(requests, made, strict=True)
    ]


@asynccontextmanager
async def open_auditor() -> AsyncIterator[WorkerEngine]:
    """Yield the learner's engine, as the learner opens it on a CPU."""
    async with open_worker_engine(TransformersConfig(device="cpu", name="evaluation")) as engine:
        yield engine


async def audit(engine: WorkerEngine, directory: Path, passages: Sequence[Passage]) -> list[Found]:
    """Return the learner's audit of all tokens of these passages, which are of one format."""
    portion = Portion(
        version=VERSION.name,
        manifest=VERSION.manifest,
        passages=tuple((LEASE, place, one) for place, one in enumerate(passages)),
        form=passages[0].form,
    )
    return [token for found in await found_by(engine, portion, lambda _: directory) for token in found]


def passes(found: Sequence[Found], margins: Sequence[Margin]) -> bool:
    """Return whether one audit of these tokens, the first of its peer, passes."""
    return after(AuditHistory(), count_above(found, margins), margins)[1].passed
