"""Claim "trainer_gpu": the trainer keeps a GPU busy: a Qwen3 of 0.6 billion parameters, sequences of 2048, bfloat16.

The benchmark trains a model of Qwen3-0.6B's configuration with random weights, by the trainer's own requests
(make_model, load, step, export), on one rank. Completions are random tokens; all tokens of a sequence but the first
count. Weights and moments are in float32, layers in bfloat16 and compiled, sequences packed end to end. `--no-compile`
and `--tokens` (positions of a microbatch) change these settings.

    MFU = tokens/s x FLOP a token / the device's dense bfloat16 peak
    FLOP a token = 6 P + 6 L H D T

The formula is PaLM's (arXiv 2204.02311, appendix B), whose 12 L H D T also counts positions that a causal mask hides. P
counts the parameters that are multiplied with: all but the embedding, which is the head's matrix here and so counts
once. L layers, H heads of D, T positions. Recomputation does not count.

Bar: mfu, at least 0.45 on an H200. Without a GPU nothing can be measured: the benchmark says so and exits with 1.
`--rehearse` takes the same steps with a tiny model on the CPU, to check that they run; its bar has no value.

Invariants:

- Warm-up steps are not counted.
- A step's seconds include all of it: packing, forward, backward, clipping and AdamW.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, number, say, scratch, table
from learner.training.server import Trainer
from protocol.core.pipe import Arrays, Header

QWEN3 = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    "max_position_embeddings": 40_960,
}  # fmt: skip
GROUP = 8
WARM_STEPS = 3
"""Steps for compiling, and for the first touch of memory for moments and buffers."""
MFU_AT_LEAST = 0.45
PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
"""FLOP/s of dense bfloat16 products, from NVIDIA's data sheets (SXM where there are several)."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The training job: `sequences` of `length` positions a step, for a model of this configuration, on a device."""

    config: Mapping[str, Any]
    sequences: int
    length: int
    device: str


FULL = Job(config=QWEN3, sequences=64, length=2048, device="cuda")
TINY = Job(
    config=QWEN3 | {"vocab_size": 2000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    sequences=16, length=64, device="cpu",
)  # fmt: skip


def claim() -> int:
    options = read_options()
    if options.rehearse:
        with scratch(options.keep) as place:
            figures = measure(place, TINY, options)
        bar = Bar(name="mfu", value=None, at_least=MFU_AT_LEAST, why="a rehearsal: a tiny model on the CPU")
        return conclude("trainer_gpu", [bar], figures | {"device": TINY.device})
    if not torch.cuda.is_available():
        raise BenchmarkError(
            "no GPU here, so there is no figure; run it on a machine with an NVIDIA GPU and CUDA's torch"
        )
    device = torch.cuda.get_device_name()
    peak = peak_of(device)
    if peak is None:
        raise BenchmarkError(f"the peak of {device} is not known here; add it to PEAKS from its data sheet")
    with scratch(options.keep) as place:
        figures = measure(place, FULL, options)
    utilisation = figures["tokens_per_s"] * flop_per_token(FULL.config, FULL.length) / peak
    say(table(["figure", "value"], [[name, number(value)] for name, value in (figures | {"mfu": utilisation}).items()]))
    return conclude(
        "trainer_gpu", [Bar(name="mfu", value=utilisation, at_least=MFU_AT_LEAST)], figures | {"device": device}
    )


def read_options() -> argparse.Namespace:
    parser = arguments(__doc__ or "", reps=5)
    parser.add_argument("--no-compile", action="store_true", help="let torch compile nothing")
    parser.add_argument("--rehearse", action="store_true", help="a tiny model on the CPU; measures nothing")
    parser.add_argument("--tokens", type=int, default=16_384, help="positions of a microbatch (default 16384)")
    return parser.parse_args()


def peak_of(device: str) -> float | None:
    """Return the FLOP/s of a GPU by its CUDA name; None if it is not in PEAKS."""
    return next((flops for name, flops in PEAKS.items() if name in device), None)


def measure(place: Path, job: Job, options: argparse.Namespace) -> dict[str, Any]:
    """Train `options.reps` steps and export once."""
    trainer, on_gpu = Trainer(), job.device == "cuda"
    ask(trainer, "make_model", directory=str(place / "model"), config=dict(job.config), seed=options.seed)
    loaded = ask(
        trainer,
        "load",
        directory=str(place / "model"),
        hyperparameters={"max_new_tokens": job.length, "max_tokens_per_microbatch": options.tokens},
        device=job.device,
        compile=on_gpu and not options.no_compile,
        threads=8,
    )
    say(f"{loaded['parameters']} parameters, {loaded['compute_dtype']} on {loaded['device']}")
    seconds = []
    for step in range(WARM_STEPS + options.reps):
        began = time.perf_counter()
        ask(trainer, "step", rollouts(job, options.seed + step))
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        say(f"step {step}: {seconds[-1]:.3f} s")
        if on_gpu and step == WARM_STEPS - 1:
            torch.cuda.reset_peak_memory_stats()
    exported = ask(trainer, "export", directory=str(place / "export"))
    steady = statistics.median(seconds[WARM_STEPS:])
    return {
        "tokens_per_s": job.sequences * job.length / steady,
        "step_s": steady,
        "first_step_s": seconds[0],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None,
        "export_s": exported["seconds"],
        "load_s": loaded["seconds"],
    }


def flop_per_token(config: Mapping[str, Any], length: float) -> float:
    """Return the FLOP of a token by the module's formula; `length` is T, the positions of a sequence."""
    heads = int(config["num_attention_heads"]) * int(config["head_dim"])
    cached = int(config["num_key_value_heads"]) * int(config["head_dim"])
    width, inner = int(config["hidden_size"]), int(config["intermediate_size"])
    layers = int(config["num_hidden_layers"])
    of_layer = width * (2 * heads + 2 * cached) + 3 * width * inner
    return 6.0 * (layers * of_layer + width * int(config["vocab_size"])) + 6.0 * layers * heads * length


def rollouts(job: Job, seed: int) -> Arrays:
    """Return groups of random completions; all tokens but each sequence's first count as generated."""
    generator, sequences = np.random.default_rng(seed), job.sequences
    generated, words = sequences * (job.length - 1), int(job.config["vocab_size"])
    return {
        "tokens": generator.integers(0, words, sequences * job.length).astype(np.int32),
        "lengths": np.full(sequences, job.length, np.int32),
        "mask": np.tile(np.arange(job.length) > 0, sequences).astype(np.uint8),
        "behaviour_logprobs": np.full(generated, -np.log(words), np.float32),
        "lags": np.zeros(generated, np.int32),
        "rewards": generator.normal(size=sequences).astype(np.float32),
        "group_sizes": np.full(sequences // GROUP, GROUP, np.int32),
        "origins": np.zeros(sequences, np.uint8),
    }


def ask(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    reply, _ = trainer.answer({"id": 0, "op": op, **fields}, arrays or {})
    if not reply["ok"]:
        raise BenchmarkError(f"{op}: {reply['error']}")
    return reply


if __name__ == "__main__":
    main(claim)
