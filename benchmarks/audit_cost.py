"""Claim "audit-cost": once a swarm's peers are trusted, audits take little of the learner's time.

The learner's own trainer takes a step on a batch, and the engine that audits judges the same batch, both on one thread
and in turn. The policies are one of 0.2 M parameters on a demo's batch, and one of 51 M on a small batch. At the floor
share of audits (`learner/trust/audit_history.py`), 3 % of the groups are judged, of one version in four, whose weights
are loaded for it. Checks for selective delivery take a share of the time that
`node/learner_role/trust/engine_budget.py` limits.

Bar: audit_share_pct, the share of the learner's compute that audits and these checks take together, for the worse
model.

Invariants:

- The engine and the trainer are those that ship.
- Figures are medians of several repetitions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trio

from benchmarks.audits.policies import GROUP, LARGE
from benchmarks.harness import Bar, arguments, conclude, main, median, number, say, scratch, table
from learner.curriculum.offline_stream import Logged, LoggedGroup
from learner.rollouts.batch_arrays import offline_arrays
from learner.trainer_api.requests import Hyperparameters
from learner.training.batches.sequences import rollout_batch
from learner.training.model.export import export
from learner.training.model.loading import make_model
from learner.training.model.policy import load_policy
from learner.training.train_state import Training
from learner.trust.audit_history import FLOOR, VERSIONS
from node.engine.interface import Claim, Generation, GenerationRequest, InstalledVersion
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import WorkerEngine, open_worker_engine
from node.learner_role.training.warm_start import TINY_QWEN3
from node.learner_role.trust.engine_budget import ROUTINE_SHARE
from protocol.core.digest import digest_of
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.pipe import Arrays

SHARE_AT_MOST = 5.0
LOADS = 4
"""Loads of the weights in each repetition."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model, and a batch of `groups` prompts of `prompt` tokens with completions of `line` tokens."""

    name: str
    shape: Mapping[str, Any]
    groups: int
    prompt: int
    line: int


SIZES = (
    Size(name="0.2 M", shape=TINY_QWEN3, groups=32, prompt=11, line=8),
    Size(name="51 M", shape=LARGE, groups=4, prompt=8, line=56),
)


@dataclass(frozen=True, kw_only=True)
class Took:
    """Seconds of a training step, of judging its batch, and of loading the weights for that."""

    train_s: float
    verify_s: float
    load_s: float

    @property
    def audits(self) -> float:
        """The time of audits at the floor share, over that of training."""
        return (FLOOR * self.verify_s + VERSIONS * self.load_s) / self.train_s


def arrays_of(prompts: Sequence[tuple[int, ...]], made: Sequence[Generation]) -> Arrays:
    """Return the batch in the learner's format. Every second completion is right, so each group teaches something."""
    logged = [Logged(tokens=one.tokens, logprobs=one.logprobs, reward=place % 2) for place, one in enumerate(made)]
    groups = [
        LoggedGroup(prompt=prompt, completions=tuple(logged[place * GROUP : (place + 1) * GROUP]))
        for place, prompt in enumerate(prompts)
    ]
    return {**offline_arrays(groups), "origins": np.zeros(len(made), np.uint8)}


async def measured(size: Size, root: Path, reps: int, seed: int) -> list[Took]:
    """Run the repetitions one after the other, on one thread."""
    make_model(root / "model", size.shape, seed)
    policy = load_policy(root / "model")
    versions = []
    for name in ("one", "two"):
        export(policy, root / name, "bfloat16", 1 << 30)
        manifest = ManifestHash(digest_of(name.encode()))
        versions.append((InstalledVersion(name=PolicyVersion(1, 0), manifest=manifest), root / name))
    training = Training(policy, Hyperparameters(learning_rate=1e-5, max_new_tokens=size.line))
    chance = np.random.default_rng(seed)
    drawn = chance.integers(1, size.shape["vocab_size"], size=(size.groups, size.prompt))
    prompts = [tuple(int(token) for token in row) for row in drawn]
    requests = [
        GenerationRequest(
            prompt=prompts[place // GROUP], seed=place, temperature=1.0, max_new_tokens=size.line, stop_ids=frozenset()
        )
        for place in range(size.groups * GROUP)
    ]
    found = []
    config = TransformersConfig(python=Path(sys.executable), threads=1, compute_dtype="float32")
    async with open_worker_engine(config) as engine:
        await engine.install(*versions[0])
        made = await engine.generate(requests)
        claims = [
            Claim(prompt=one.prompt, tokens=told.tokens, seed=one.seed, temperature=1.0)
            for one, told in zip(requests, made, strict=True)
        ]
        batch = rollout_batch(arrays_of(prompts, made), policy.vocab_size)
        await engine.verify(claims)  # first calls are slower
        training.step(batch)
        for _ in range(reps):
            load_s = await _seconds_to_load(engine, versions)
            began = time.perf_counter()
            await engine.verify(claims)
            verified = time.perf_counter()
            training.step(batch)
            found.append(Took(train_s=time.perf_counter() - verified, verify_s=verified - began, load_s=load_s))
    return found


async def _seconds_to_load(engine: WorkerEngine, versions: Sequence[tuple[InstalledVersion, Path]]) -> float:
    began = time.perf_counter()
    for place in range(LOADS):
        await engine.install(*versions[(place + 1) % len(versions)])
    return (time.perf_counter() - began) / LOADS


def claim() -> int:
    parser = arguments(__doc__ or "", reps=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows, shares = [], {}
    with scratch(asked.keep) as root:
        for size in SIZES:
            (root / size.name).mkdir()
            took = trio.run(measured, size, root / size.name, asked.reps, asked.seed)
            audits = median([one.audits for one in took])
            shares[size.name] = 100 * (audits + ROUTINE_SHARE)
            tokens = size.groups * GROUP * size.line
            rows.append(
                [
                    size.name,
                    tokens,
                    number(median([one.train_s for one in took]), 3),
                    number(median([one.verify_s for one in took]), 3),
                    number(median([one.load_s for one in took]), 3),
                    number(100 * audits),
                    number(shares[size.name]),
                ]
            )
    header = ["model", "tokens", "training step, s", "judging all, s", "loading, s", "audits, %", "with checks, %"]
    say(table(header, rows))
    bars = [Bar(name="audit_share_pct", value=max(shares.values()), at_most=SHARE_AT_MOST)]
    return conclude("audit-cost", bars, {f"audit share, {name}": share for name, share in shares.items()})


if __name__ == "__main__":
    main(claim)
