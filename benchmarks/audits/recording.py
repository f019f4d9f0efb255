"""Record completions of engines, honest and not, and their audits by a verifying engine.

Invariants:

- Completions come from the engines that nodes run, by the seeded sampler, from the leases' seeds.
- Findings come from the engine that learners audit with.
- Each completion is audited with the weights that it claims.
- One engine uses one thread, and two engines work at a time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.audits.evidence import Pool, pool_of
from benchmarks.audits.policies import FAST, GROUP, LAGS, SLOW, PolicySet
from learner.trust.audit_queue import Passage
from node.engine.interface import Generation, GenerationRequest, InstalledVersion, Verified
from node.engine.transformers import TransformersConfig
from node.engine.vllm import VllmConfig
from node.engine.worker_engine import WorkerEngine, open_worker_engine
from node.learner_role.trust.auditor import claim_of, found_of
from protocol.core.digest import digest_of
from protocol.core.ids import ManifestHash, PolicyVersion

TOGETHER = 64
"""Groups in one request to an engine."""

HONEST = "honest"

OWN, RELABELLED = "own", "relabelled"
"""The source of the claimed log probabilities: the sampled policy, or exactly the claimed one."""


@dataclass(frozen=True, kw_only=True, order=True)
class Peer:
    """The engine and number format of a peer."""

    engine: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.engine} {SHORT[self.dtype]}"


SHORT = {"float32": "fp32", "bfloat16": "bf16"}

PLAIN = Peer(engine="transformers", dtype="float32")
PEERS = (
    PLAIN,
    *(Peer(engine=e, dtype=d) for e, d in (("transformers", "bfloat16"), ("vLLM", "float32"), ("vLLM", "bfloat16"))),
)
VERIFIERS = ("float32", "bfloat16")
"""Number formats in which learners audit: float32 on a CPU, by default; bfloat16 on a GPU, as weights are published."""


@dataclass(frozen=True, kw_only=True)
class Deed:
    """A peer's behaviour under the name of `claimed`: completions generated with `weights`, sampled or greedy."""

    name: str
    weights: Path
    claimed: Path
    greedy: bool = False


def deeds_of(policy_set: PolicySet) -> list[Deed]:
    """Return honest work and every cheat."""
    current = policy_set.current
    cheats = [Deed(name=name, weights=weights, claimed=current) for name, weights in policy_set.others.items()]
    for rate, claimed, older in ((FAST, current, policy_set.older), (SLOW, policy_set.slow, policy_set.slow_older)):
        cheats += [Deed(name=lag_name(lag, rate), weights=older[lag], claimed=claimed) for lag in LAGS]
    return [
        Deed(name=HONEST, weights=current, claimed=current),
        *cheats,
        Deed(name="greedy", weights=current, claimed=current, greedy=True),
    ]


def lag_name(lag: int, rate: float) -> str:
    return f"lag {lag}, {rate:g}"


BARRED = ("other", "4-bit", lag_name(1, FAST), lag_name(3, FAST), lag_name(10, FAST))
"""Cheats that must be detected with every engine; the others are tried only on the plainest."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """Completions of one deed by one peer."""

    peer: Peer
    deed: Deed
    prompts: Sequence[tuple[int, ...]]
    """One for each completion."""
    completions: Sequence[Generation]
    seeds: Sequence[int]


Found = dict[tuple[Peer, str, str], Pool]
"""Findings by peer, deed and the verifier's dtype."""


@dataclass(kw_only=True)
class Recorded:
    """The recording of one model.

    `verify_s`, `score_s`: seconds a token of an audit on one thread, and of a test of log probabilities alone, by the
    verifier's dtype.
    """

    pools: Found = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    verify_s: dict[str, float] = field(default_factory=dict)
    score_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Groups of honest work for each pair, and of each cheat."""

    honest: int
    cheat: int


@asynccontextmanager
async def opened(peer: Peer, vllm: Path | None) -> AsyncIterator[WorkerEngine]:
    """Yield the engine of a peer, on one thread."""
    if peer.engine == "vLLM":
        assert vllm is not None
        async with open_worker_engine(VllmConfig(python=vllm, threads=1, compute_dtype=peer.dtype)) as engine:
            yield engine
        return
    config = TransformersConfig(python=Path(sys.executable), threads=1, compute_dtype=peer.dtype)
    async with open_worker_engine(config) as engine:
        yield engine


async def record(policy_set: PolicySet, amounts: Amounts, vllm: Path | None, seed: int) -> Recorded:
    """Record everything for one model."""
    recorded = Recorded()
    cores = trio.CapacityLimiter(2)
    async with trio.open_nursery() as nursery:
        for peer in PEERS:
            if peer.engine != "vLLM" or vllm is not None:
                nursery.start_soon(_generate_all, policy_set, amounts, peer, vllm, seed, recorded, cores)
    recorded.made.sort(key=lambda made: (made.peer, made.deed.name))
    async with trio.open_nursery() as nursery:
        for dtype in VERIFIERS:
            nursery.start_soon(_verify_all, recorded, dtype, cores)
    return recorded


async def _generate_all(
    policy_set: PolicySet,
    amounts: Amounts,
    peer: Peer,
    vllm: Path | None,
    seed: int,
    recorded: Recorded,
    cores: trio.CapacityLimiter,
) -> None:
    deeds = [deed for deed in deeds_of(policy_set) if peer == PLAIN or deed.name in (HONEST, *BARRED)]
    async with cores, opened(peer, vllm) as engine:
        for number, deed in enumerate(sorted(deeds, key=lambda deed: str(deed.weights))):
            if engine.installed is None or engine.installed != version_of(deed.weights):
                await engine.install(version_of(deed.weights), deed.weights)
            groups = amounts.honest if deed.name == HONEST else amounts.cheat
            # Prompts of cheats differ from each other's; seeds differ from those of all others.
            first = (seed << 40) + (number << 24)
            prompts = [prompt for prompt in policy_set.prompts[:groups] for _ in range(GROUP)]
            seeds = [first + place for place in range(len(prompts))]
            recorded.made.append(
                Made(
                    peer=peer,
                    deed=deed,
                    prompts=prompts,
                    seeds=seeds,
                    completions=await generated(
                        engine,
                        prompts,
                        seeds,
                        max_new_tokens=policy_set.max_new_tokens,
                        stop_ids=policy_set.stop_ids,
                        greedy=deed.greedy,
                    ),
                )
            )


async def generated(
    engine: WorkerEngine,
    prompts: Sequence[tuple[int, ...]],
    seeds: Sequence[int],
    *,
    max_new_tokens: int,
    stop_ids: frozenset[int] = frozenset(),
    greedy: bool = False,
) -> list[Generation]:
    """Return a completion of each prompt, drawn by its seed at temperature 1, or greedy."""
    requests = [
        GenerationRequest(
            prompt=prompt,
            seed=seed,
            temperature=1.0,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            greedy=greedy,
        )
        for prompt, seed in zip(prompts, seeds, strict=True)
    ]
    found = []
    for first in range(0, len(requests), TOGETHER * GROUP):
        found += await engine.generate(requests[first : first + TOGETHER * GROUP])
    return found


async def _verify_all(recorded: Recorded, dtype: str, cores: trio.CapacityLimiter) -> None:
    """Audit all completions, one claim's weights after the other; time the honest part."""
    async with cores, opened(Peer(engine="transformers", dtype=dtype), None) as engine:
        for made in sorted(recorded.made, key=lambda made: str(made.deed.claimed)):
            if engine.installed is None or engine.installed != version_of(made.deed.claimed):
                await engine.install(version_of(made.deed.claimed), made.deed.claimed)
            passages = passages_of(made)
            began = time.perf_counter()
            told = await verified(engine, passages)
            took_s = time.perf_counter() - began
            pool = pool_of([found_of(one, passage) for one, passage in zip(told, passages, strict=True)], GROUP)
            recorded.pools[made.peer, made.deed.name, dtype] = pool
            if made.peer == PLAIN and made.deed.name == HONEST:
                recorded.verify_s[dtype] = took_s / pool.tokens
                recorded.score_s[dtype] = await _seconds_to_score(engine, made) / pool.tokens


def passages_of(made: Made) -> list[Passage]:
    """Return the completions as a learner has them, with the claimed weights."""
    return [
        Passage(
            prompt=prompt,
            tokens=completion.tokens,
            logprobs=completion.logprobs,
            parts=((0, len(completion.tokens)),),
            seed=seed,
            temperature=1.0,
            version=version_of(made.deed.claimed).name,
            manifest=version_of(made.deed.claimed).manifest,
        )
        for prompt, completion, seed in zip(made.prompts, made.completions, made.seeds, strict=True)
    ]


async def verified(engine: WorkerEngine, passages: Sequence[Passage]) -> list[Verified]:
    """Return the engine's finding for each passage."""
    found = []
    for first in range(0, len(passages), TOGETHER * GROUP):
        found += await engine.verify([claim_of(one) for one in passages[first : first + TOGETHER * GROUP]])
    return found


async def _seconds_to_score(engine: WorkerEngine, made: Made) -> float:
    sequences = [(prompt, one.tokens) for prompt, one in zip(made.prompts, made.completions, strict=True)]
    began = time.perf_counter()
    for first in range(0, len(sequences), TOGETHER * GROUP):
        await engine.score(sequences[first : first + TOGETHER * GROUP], 1.0)
    return time.perf_counter() - began


def version_of(directory: Path) -> InstalledVersion:
    """Return a name for weights; engines only compare names."""
    return InstalledVersion(name=PolicyVersion(1, 0), manifest=ManifestHash(digest_of(str(directory).encode())))
