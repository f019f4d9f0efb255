"""Claim "router_replay": with the engine's experts, a mixture's trainer is ten times nearer to its engine.

A small Qwen3-MoE learns the documentation of this project, byte by byte, until its routers are sure of most tokens.
Engines (transformers and vLLM, each in its own process) continue passages of it. The trainer scores the very same
tokens, once with its own routers' choices and once with the engine's (`[trainer] router_replay`). The benchmark
compares `mismatch_kl` as a training step reports it (k3, the mean over tokens of r - 1 - log r).

Bars: with_of_without (transformers) and with_of_without_vllm, at most 0.1: `mismatch_kl` with replay over that without.
The engine computes in bfloat16 with weights in bfloat16, as published by default, and the trainer in float32, without
lag; the median of the seeds.

Among the figures:

- the same after `LAG` training steps, when only the policy's own change remains;
- the same with an engine in float32, where routers hardly ever differ on one machine;
- the share of tokens that replay changes;
- `replayed`, the least share of the engine's choices that the trainer found likely enough to follow, and
  `replayed_of_forged`, the same for choices drawn at random;
- the bytes that experts add to a token, and the share that remains after a record's are packed with zstd.

vLLM is that of `--vllm`, by default the one that `make test-vllm` builds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trio
import zstandard

from benchmarks.harness import ROOT, Bar, BenchmarkError, arguments, conclude, main, median, number, say, scratch, table
from learner.training.server import Trainer
from node.engine.interface import Generation, GenerationRequest, InstalledVersion
from node.engine.transformers import TransformersConfig
from node.engine.vllm import VllmConfig
from node.engine.worker_engine import WorkerConfig, open_worker_engine
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.pipe import Arrays, Header
from protocol.experts import experts_bytes

REPS = 3
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
LAYERS, EXPERTS, TOP_K = 6, 16, 2
MODEL: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64,
    "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "norm_topk_prob": True, "tie_word_embeddings": True,
    "max_position_embeddings": 256, "initializer_range": 0.05,
}  # fmt: skip
"""Heads of size 32, which vLLM supports on a CPU."""
TAUGHT = 400
"""Steps of 16 passages: enough to make the routers sure, at a loss of about 1.6 nats a byte."""
PASSAGE, PROMPT, COMPLETION = 64, 32, 64
GROUPS, GROUP = 32, 4
LAG = 4
RATE = 1e-4
WITH_OF_WITHOUT_AT_MOST = 0.1


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The mismatch of one engine and the trainer on the same tokens."""

    without: float
    with_replay: float
    differ: float
    """Share of tokens whose log probability moves with replay. It stands for the engine's choices, one for each layer
    and token, that the trainer would make otherwise, as far as they change its score."""

    @property
    def ratio(self) -> float:
        return self.with_replay / self.without


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Results of one model."""

    rounded: Shown
    on_vllm: Shown | None
    lagging: Shown
    exact: Shown
    replayed: float
    forged: float
    packed: float


def claim() -> int:
    """Run everything, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--vllm", type=Path, default=VLLM, help="the interpreter of an environment with vLLM")
    options = parser.parse_args()
    vllm = options.vllm.absolute() if options.vllm.exists() else None
    found = []
    with scratch(options.keep) as out:
        for repetition in range(options.reps):
            found.append(measure(out / str(repetition), options.seed + repetition, vllm))
            say(f"repetition {repetition + 1}: {found[-1].rounded.ratio:.3f} of the mismatch without replay")
    tell(found)
    on_vllm = [one.on_vllm for one in found if one.on_vllm is not None]
    bars = [
        Bar(
            name="with_of_without",
            value=median([one.rounded.ratio for one in found]),
            at_most=WITH_OF_WITHOUT_AT_MOST,
        ),
        Bar(
            name="with_of_without_vllm",
            value=median([one.ratio for one in on_vllm]) if on_vllm else None,
            at_most=WITH_OF_WITHOUT_AT_MOST,
            why="" if on_vllm else f"{options.vllm} does not exist",
        ),
    ]
    figures = {
        "without": median([one.rounded.without for one in found]),
        "with": median([one.rounded.with_replay for one in found]),
        "with_of_without_each": [round(one.rounded.ratio, 4) for one in found],
        "with_of_without_lagging": median([one.lagging.ratio for one in found]),
        "with_of_without_float32": median([one.exact.ratio for one in found]),
        "without_float32": median([one.exact.without for one in found]),
        "tokens_that_moved": median([one.rounded.differ for one in found]),
        "replayed": min(one.replayed for one in found),
        "replayed_of_forged": max(one.forged for one in found),
        "bytes_a_token": LAYERS * TOP_K,
        "packed": median([one.packed for one in found]),
        "lag": LAG,
        "layers": LAYERS,
        "experts": EXPERTS,
        "top_k": TOP_K,
        "with_of_without_vllm_each": [round(one.ratio, 4) for one in on_vllm],
        "without_vllm": median([one.without for one in on_vllm]) if on_vllm else None,
        "with_vllm": median([one.with_replay for one in on_vllm]) if on_vllm else None,
    }
    return conclude("router_replay", bars, figures)


def tell(found: Sequence[Seed]) -> None:
    """Print a row for each seed and engine."""
    rows: list[list[str]] = []
    for repetition, one in enumerate(found, start=1):
        sides = {"bfloat16": one.rounded, f"bfloat16, lag {LAG}": one.lagging, "float32": one.exact}
        sides |= {} if one.on_vllm is None else {"vLLM, bfloat16": one.on_vllm}
        for name, shown in sides.items():
            figures = [f"{shown.without:.3g}", f"{shown.with_replay:.3g}", number(shown.ratio, 3)]
            rows.append([str(repetition), name, *figures, number(100 * shown.differ, 1)])
    say(table(["repetition", "engine", "without", "with", "with of without", "tokens that moved, %"], rows))


def measure(out: Path, seed: int, vllm: Path | None) -> Seed:
    """Teach a model, let engines continue passages, and score their tokens."""
    out.mkdir(parents=True)
    trainer, dice = Trainer(), np.random.default_rng(seed)
    text = corpus()
    ask(trainer, "make_model", directory=str(out / "untaught"), config=MODEL, architecture="qwen3_moe", seed=seed)
    settings = {"learning_rate": RATE, "max_new_tokens": COMPLETION, "objective": "grpo"}
    ask(
        trainer, "load", directory=str(out / "untaught"), seed=seed, hyperparameters=settings, router_replay=True,
        threads=1,
    )  # fmt: skip
    for _ in range(TAUGHT):
        ask(trainer, "supervised", passages(text, dice), learning_rate=2e-3)
    ask(trainer, "export", directory=str(out / "bfloat16"), dtype="bfloat16")
    ask(trainer, "export", directory=str(out / "float32"), dtype="float32")
    starts = dice.integers(0, len(text) - PROMPT, GROUPS)
    prompts = [tuple(text[start : start + PROMPT].tolist()) for start in starts]
    said = {
        dtype: trio.run(generate, TransformersConfig(device="cpu", compute_dtype=dtype), out / dtype, prompts)
        for dtype in DTYPES
    }
    rounded, exact = (compare(trainer, prompts, said[dtype]) for dtype in DTYPES)
    on_vllm = None
    if vllm is not None:
        config = VllmConfig(python=vllm, compute_dtype="bfloat16", kv_cache_bytes=64 * 2**20)
        on_vllm = compare(trainer, prompts, trio.run(generate, config, out / "bfloat16", prompts))
    batch = rollouts(prompts, said["bfloat16"], dice)
    honest = [ask(trainer, "step", batch)["replayed"] for _ in range(LAG)]
    lagging = compare(trainer, prompts, said["bfloat16"])
    drawn = np.argsort(dice.random((*batch["experts"].shape[:2], EXPERTS)))[..., :TOP_K]
    forged = batch | {"experts": drawn.astype(np.uint8)}
    return Seed(
        rounded=rounded,
        on_vllm=on_vllm,
        lagging=lagging,
        exact=exact,
        replayed=min(honest),
        forged=ask(trainer, "step", forged)["replayed"],
        packed=packed(said["bfloat16"]),
    )


DTYPES = ("bfloat16", "float32")


def corpus() -> np.ndarray[Any, Any]:
    """Return the documentation as bytes below 128, the model's vocabulary."""
    whole = b"\n".join(file.read_bytes() for file in sorted((ROOT / "docs").glob("*.md")))
    return np.minimum(np.frombuffer(whole, np.uint8), 127).astype(np.int32)


def passages(text: np.ndarray[Any, Any], dice: np.random.Generator) -> Arrays:
    """Return sixteen passages; the model learns every byte of them but the first."""
    starts = dice.integers(0, len(text) - PASSAGE, 16)
    return {
        "tokens": np.concatenate([text[start : start + PASSAGE] for start in starts]),
        "lengths": np.full(16, PASSAGE, np.int32),
        "mask": np.tile((np.arange(PASSAGE) > 0).astype(np.uint8), 16),
    }


async def generate(config: WorkerConfig, directory: Path, prompts: Sequence[tuple[int, ...]]) -> list[Generation]:
    """Return the completions that an engine generates for each prompt, GROUP of each."""
    requests = [
        GenerationRequest(
            prompt=prompt, seed=seed, temperature=1.0, max_new_tokens=COMPLETION, stop_ids=frozenset(), experts=True
        )
        for number, prompt in enumerate(prompts)
        for seed in range(number * GROUP, (number + 1) * GROUP)
    ]
    version = InstalledVersion(name=PolicyVersion(1, 0), manifest=ManifestHash(bytes(32)))
    async with open_worker_engine(config) as engine:
        await engine.install(version, directory)
        return await engine.generate(requests)


def compare(trainer: Trainer, prompts: Sequence[tuple[int, ...]], said: Sequence[Generation]) -> Shown:
    """Score the completions with and without the engine's experts."""
    arrays, routes = sequences(prompts, said), experts_of(said)
    behaviour = np.concatenate([one.logprobs for one in said])
    plain, replayed = (answer(trainer, "logprobs", sent)[1]["logprobs"] for sent in (arrays, arrays | routes))
    moved = float(np.mean(np.abs(plain - replayed) > 1e-4))
    return Shown(without=k3(plain, behaviour), with_replay=k3(replayed, behaviour), differ=moved)


def k3(trained: np.ndarray[Any, Any], behaviour: np.ndarray[Any, Any]) -> float:
    """Return the mean of r - 1 - log r, in nats."""
    apart = trained.astype(np.float64) - behaviour
    return float(np.mean(np.expm1(apart) - apart))


def sequences(prompts: Sequence[tuple[int, ...]], said: Sequence[Generation]) -> Arrays:
    """Return prompts and their completions in the trainer's format."""
    whole = [(prompts[number // GROUP], one.tokens) for number, one in enumerate(said)]
    return {
        "tokens": np.concatenate([np.array((*prompt, *tokens), np.int32) for prompt, tokens in whole]),
        "lengths": np.array([len(prompt) + len(tokens) for prompt, tokens in whole], np.int32),
        "mask": np.concatenate([np.repeat([0, 1], [len(prompt), len(tokens)]) for prompt, tokens in whole]).astype(
            np.uint8
        ),
    }


def experts_of(said: Sequence[Generation]) -> Arrays:
    """Return the engine's choices for every token."""
    experts = np.concatenate([one.experts for one in said if one.experts is not None])
    return {"experts": experts, "routed": np.ones(len(experts), np.uint8)}


def rollouts(prompts: Sequence[tuple[int, ...]], said: Sequence[Generation], dice: np.random.Generator) -> Arrays:
    """Return a training batch with random rewards, so that every sequence teaches something."""
    behaviour = np.concatenate([one.logprobs for one in said]).astype(np.float32)
    return {
        **sequences(prompts, said),
        **experts_of(said),
        "behaviour_logprobs": behaviour,
        "lags": np.zeros(len(behaviour), np.int32),
        "rewards": dice.normal(size=len(said)).astype(np.float32),
        "group_sizes": np.full(GROUPS, GROUP, np.int32),
        "origins": np.zeros(len(said), np.uint8),
    }


def packed(said: Sequence[Generation]) -> float:
    """Return the share of a record's expert bytes that zstd leaves. A layer's choices are sorted first, at no loss."""
    raws = [experts_bytes(np.sort(one.experts, axis=-1)) for one in said if one.experts is not None]
    packer = zstandard.ZstdCompressor(level=3)
    return sum(len(packer.compress(raw)) for raw in raws) / sum(map(len, raws))


def ask(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    return answer(trainer, op, arrays or {}, **fields)[0]


def answer(trainer: Trainer, op: str, arrays: Arrays, **fields: Any) -> tuple[Header, Arrays]:
    reply, found = trainer.answer({"id": 1, "op": op, **fields}, arrays)
    if not reply["ok"]:
        raise BenchmarkError(f"{op} failed: {reply['error']}")
    return reply, found


if __name__ == "__main__":
    main(claim)
