"""Claim "engines": the swarm adds almost nothing to the time that an engine takes to generate.

Every side generates 64 completions of 64 tokens from prompts of 32 tokens, on one thread of a CPU in float32, with
Qwen3 models of 3 M and 50 M parameters. The sides are our transformers engine, transformers' `generate` and
`generate_batch`, bare vLLM, and our vLLM engine. Ours are measured from leases in to signed records out, through the
engine's process and its pipe; the others in their own process, by the call alone.

Bars:

- vs_bare_vllm: tokens per second of ours over bare vLLM, both greedy, so without the seeded sampler.
- vs_bare_vllm_seeded: ours with the seeded sampler, over bare vLLM with its own sampling.
- vs_generate_3m and vs_generate_50m: our transformers engine over `generate`.
- swap_vs_bare: seconds in which our vLLM engine generates nothing because of a new version, over those of vLLM's own
  pause, reload and resume.

Invariants:

- Sides take turns, a ratio is taken within a repetition, and bars are medians; for vLLM, the worse of the two models.
- No prompt occurs twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import trio

from benchmarks.baselines.generation_end import prompts_of
from benchmarks.harness import (
    ROOT,
    Bar,
    BenchmarkError,
    arguments,
    conclude,
    heard,
    main,
    median,
    number,
    say,
    scratch,
    table,
)
from learner.training.model.loading import make_model
from node.engine.interface import InstalledVersion, PolicyEngine
from node.engine.lease_requests import record_of, requests_of
from node.engine.transformers import TransformersConfig
from node.engine.vllm import VllmConfig
from node.engine.worker_engine import open_worker_engine
from protocol.core.codec import pack_tokens
from protocol.core.envelope import sign
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PolicyVersion, SwarmId
from protocol.work import Lease, Sampler

JOB = {"prompts": 64, "prompt_tokens": 32, "new_tokens": 64, "threads": 1}
END = ROOT / "benchmarks" / "baselines" / "generation_end.py"

BARE_AT_LEAST = 0.95
SEEDED_AT_LEAST = 0.85
GENERATE_3M_AT_LEAST = 1.3
GENERATE_50M_AT_LEAST = 1.0
SWAP_AT_MOST = 1.3

SHAPES: dict[str, dict[str, Any]] = {
    "3 M": {"vocab_size": 2048, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4},
    "50 M": {"vocab_size": 32_000, "hidden_size": 512, "num_hidden_layers": 11, "num_attention_heads": 8},
}
SETTLE_S = 2.0
"""Pause between two measurements. For a second after its last request, a worker of vLLM spins on a core (its queue in
shared memory, `SpinCondition`); with two cores that slows the next side."""
LEAVING_S = 20.0
"""Timeout for an opponent to end its own processes."""

BARE_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": str(JOB["threads"]),
    "MKL_NUM_THREADS": str(JOB["threads"]),
}
"""The same settings that our engine gives vLLM, as far as they affect speed."""

OURS, OURS_GREEDY, OURS_SEEDED = "ours, transformers", "ours, vLLM, greedy", "ours, vLLM, seeded"
GENERATE, BATCH = "generate", "generate_batch"
BARE_GREEDY, BARE_SAMPLED = "vLLM, greedy", "vLLM, sampled"
SWAP, BARE_SWAP = "swap, ours", "swap, vLLM"
RATES = (OURS, GENERATE, BATCH, OURS_SEEDED, BARE_SAMPLED, OURS_GREEDY, BARE_GREEDY)


@dataclass(frozen=True, kw_only=True)
class Models:
    """Two sets of weights of one shape."""

    first: Path
    second: Path
    vocab_size: int


def make_models(root: Path, name: str) -> Models:
    config = {
        **SHAPES[name],
        "intermediate_size": 3 * SHAPES[name]["hidden_size"],
        "num_key_value_heads": SHAPES[name]["num_attention_heads"] // 2,
        "head_dim": 64,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    found = [root / f"{name}-{seed}".replace(" ", "") for seed in range(2)]
    for seed, directory in enumerate(found):
        make_model(directory, config, seed)
    return Models(first=found[0], second=found[1], vocab_size=config["vocab_size"])


def version(number: int) -> InstalledVersion:
    return InstalledVersion(name=PolicyVersion(1, number), manifest=ManifestHash(bytes([number % 256]) * 32))


def leases_of(prompts: Sequence[Sequence[int]], peer: str, seed: int) -> list[Lease]:
    """Return one lease for each prompt, of one completion."""
    return [
        Lease(
            id=seed.to_bytes(8, "big") + index.to_bytes(8, "big"),
            peer=peer,
            task="benchmark",
            prompt=pack_tokens(prompt),
            seeds=[(seed << 32) + index],
            sampler=Sampler(),
            stop_ids=[],
            max_new_tokens=JOB["new_tokens"],
            minimum=PolicyVersion(1, 0),
            issued_ms=0,
            deadline_ms=1,
        )
        for index, prompt in enumerate(prompts)
    ]


class Ours:
    """One of our engines with a node's work around it."""

    def __init__(self, engine: PolicyEngine, models: Models) -> None:
        self._engine, self._models = engine, models
        self._keypair, self._swarm = Keypair.generate(), SwarmId(bytes(32))
        self._installed = 0

    async def install(self) -> float:
        """Install the other weights; return the seconds that it took."""
        directory = (self._models.first, self._models.second)[self._installed % 2]
        self._installed += 1
        began = time.perf_counter()
        await self._engine.install(version(self._installed), directory)
        return time.perf_counter() - began

    async def generate(self, seed: int, *, greedy: bool = False) -> float:
        """Return tokens per second, from leases in to records out."""
        leases = leases_of(prompts_of(JOB, self._models.vocab_size, seed), str(self._keypair.peer_id), seed)
        began = time.perf_counter()
        requests = [replace(request, greedy=greedy) for lease in leases for request in requests_of(lease)]
        made = await self._engine.generate(requests)
        records = [
            sign(self._keypair, self._swarm, record_of(lease, 0, completion, 0))
            for lease, completion in zip(leases, made, strict=True)
        ]
        seconds = time.perf_counter() - began
        return per_second(sum(len(one.tokens) for one in made), seconds) if all(records) else 0.0


def per_second(tokens: float, seconds: float) -> float:
    if tokens != JOB["prompts"] * JOB["new_tokens"]:
        raise BenchmarkError(f"{tokens:.0f} tokens were generated instead of {JOB['prompts'] * JOB['new_tokens']}.")
    return tokens / seconds


class End:
    """An opponent in a process of its own, `benchmarks/baselines/generation_end.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        heard(process)

    async def ask(self, how: str, seed: int) -> dict[str, float]:
        return await trio.to_thread.run_sync(self._ask, {"how": how, "seed": seed})

    def _ask(self, asked: dict[str, object]) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer: dict[str, float] = heard(self._process)
        return answer

    async def generate(self, how: str, seed: int) -> float:
        answer = await self.ask(how, seed)
        return per_second(answer["tokens"], answer["seconds"])


@contextmanager
def opened_end(python: Path, kind: str, models: Models, log: Path) -> Iterator[End]:
    """Start an opponent; it ends with the scope."""
    argv = [str(python), str(END), kind, str(models.first), str(models.second), json.dumps(JOB)]
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **BARE_ENVIRONMENT},
            start_new_session=True,
        ) as process,
    ):
        try:
            yield End(process)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Let it end in order, then kill what is left: vLLM's own processes outlive a parent that is only killed."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(LEAVING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


Figures = dict[str, list[float]]
Measured = TypeVar("Measured")


async def measure_transformers(models: Models, repetitions: range, log: Path) -> Figures:
    """Return tokens per second by side, one figure for each repetition but the first, which warms everything up."""
    found: Figures = {}
    config = TransformersConfig(python=Path(sys.executable), threads=JOB["threads"], compute_dtype="float32")
    with opened_end(Path(sys.executable), "transformers", models, log) as end:
        async with open_worker_engine(config) as engine:
            ours = Ours(engine, models)
            await ours.install()
            for seed in repetitions:
                taken = {OURS: await ours.generate(seed), GENERATE: await end.generate("generate", seed + 1)}
                if seed in repetitions[:2]:  # ten times slower, and no bar depends on it
                    taken[BATCH] = await end.generate("generate_batch", seed + 2)
                _note(found, taken, counts=seed != repetitions[0])
    return found


async def measure_vllm(python: Path, models: Models, repetitions: range, log: Path) -> Figures:
    """Return the same for vLLM, with seconds of swaps."""
    found: Figures = {}
    config = VllmConfig(python=python, threads=JOB["threads"], compute_dtype="float32")
    with opened_end(python, "vllm", models, log) as end:
        async with open_worker_engine(config) as engine:
            ours = Ours(engine, models)
            await ours.install()
            for seed in repetitions:
                taken = {
                    OURS_SEEDED: await settled(ours.generate(seed)),
                    BARE_SAMPLED: await settled(end.generate("sampled", seed + 1)),
                    OURS_GREEDY: await settled(ours.generate(seed + 2, greedy=True)),
                    BARE_GREEDY: await settled(end.generate("greedy", seed + 3)),
                    SWAP: await settled(ours.install()),
                    BARE_SWAP: (await settled(end.ask("swap", seed)))["seconds"],
                }
                _note(found, taken, counts=seed != repetitions[0])
    return found


async def settled(measured: Awaitable[Measured]) -> Measured:
    """Return the result of `measured`, which begins once no worker spins any more."""
    await trio.sleep(SETTLE_S)
    return await measured


def _note(found: Figures, taken: dict[str, float], *, counts: bool) -> None:
    if counts:
        for name, value in taken.items():
            found.setdefault(name, []).append(value)


def ratio(found: Figures, left: str, right: str) -> float | None:
    """Return the median of ratios within repetitions; None if a side was not measured."""
    pairs = list(zip(found.get(left, []), found.get(right, []), strict=True))
    return median([one / other for one, other in pairs]) if pairs else None


def worse(values: Sequence[float | None], *, highest: bool = False) -> float | None:
    known = [value for value in values if value is not None]
    return (max if highest else min)(known) if known and len(known) == len(values) else None


def vllm_python(named: Path | None) -> Path | None:
    """Return the interpreter of the environment with vLLM; print a notice and return None without one."""
    environment = os.environ.get("VOLERY_VLLM")
    python = named or (Path(environment) if environment else ROOT / ".venv-vllm" / "bin" / "python")
    if python.is_file():
        return python
    say(f"{python} does not exist: figures of vLLM are left out, so their bars are missed. `make test-vllm` builds it.")
    return None


def shown(found: Mapping[str, Figures], sides: Sequence[str], unit: float) -> list[list[str]]:
    """Return a row for each side, with a column for each model."""
    return [[side, *(number(_middle(one, side, unit), 0) for one in found.values())] for side in sides]


def _middle(found: Figures, side: str, unit: float) -> float | None:
    values = found.get(side)
    return None if not values else (median(values) or 0.0) / unit


def judged(found: Mapping[str, Figures]) -> list[Bar]:
    each = list(found.values())
    greedy = worse([ratio(one, OURS_GREEDY, BARE_GREEDY) for one in each])
    seeded = worse([ratio(one, OURS_SEEDED, BARE_SAMPLED) for one in each])
    swap = worse([ratio(one, SWAP, BARE_SWAP) for one in each], highest=True)
    small, large = (ratio(found[name], OURS, GENERATE) for name in ("3 M", "50 M"))
    return [
        Bar(name="vs_bare_vllm", value=greedy, at_least=BARE_AT_LEAST),
        Bar(name="vs_bare_vllm_seeded", value=seeded, at_least=SEEDED_AT_LEAST),
        Bar(name="vs_generate_3m", value=small, at_least=GENERATE_3M_AT_LEAST),
        Bar(name="vs_generate_50m", value=large, at_least=GENERATE_50M_AT_LEAST),
        Bar(name="swap_vs_bare", value=swap, at_most=SWAP_AT_MOST),
    ]


def claim() -> int:
    parser = arguments(__doc__ or "", reps=5)
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="interpreter of an environment with vLLM")
    asked = parser.parse_args()
    python = vllm_python(asked.vllm)
    repetitions = range(asked.seed, asked.seed + 1000 * (asked.reps + 1), 1000)
    found: dict[str, Figures] = {}
    with scratch(asked.keep) as root:
        for name in SHAPES:
            models, logs = make_models(root, name), root / f"{name} logs"
            logs.mkdir()
            found[name] = trio.run(measure_transformers, models, repetitions, logs / "transformers.log")
            if python is not None:
                found[name] |= trio.run(measure_vllm, python, models, repetitions, logs / "vllm.log")
    say(table(["tokens per second", *SHAPES], shown(found, RATES, 1.0)))
    say("\n" + table(["milliseconds", *SHAPES], shown(found, (SWAP, BARE_SWAP), 0.001)))
    figures = {f"{side} {name}": median(values) for name, one in found.items() for side, values in one.items()}
    return conclude("engines", judged(found), figures)


if __name__ == "__main__":
    main(claim)
