"""Measure the memory that the trainer takes for each parameter.

    python -m benchmarks.baselines.footprint        one JSON object on stdout

Invariants:

- It is measured in a process of its own, whose libraries were warmed on a tiny model first, so that the memory that
  they keep for themselves does not count.
- Memory is the process's own (anonymous pages), sampled every two milliseconds, since a peak may be short.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from learner.training.server import Trainer
from protocol.core.pipe import Arrays, Header

SMALL: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 14,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
"""48 million parameters."""
TINY = {**SMALL, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
BESIDE = "beside"
MAPPED_FROM = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""glibc always maps blocks of more than 32 MiB separately, and smaller ones only at first. What it keeps of those
differs by chance, by up to 1.6 bytes a parameter. This setting maps a small model's blocks like a large one's."""


def measured() -> dict[str, float]:
    """Measure in a process of its own and return the figures."""
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    argv = [sys.executable, "-m", "benchmarks.baselines.footprint"]
    done = subprocess.run(argv, cwd=root, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory(place: Path) -> dict[str, float]:
    """Return the peak bytes a parameter, above what the libraries had, of each thing a trainer does on a few tokens."""
    trainer = Trainer()
    ask(trainer, "make_model", directory=str(place / "tiny"), config=TINY)
    size = int(ask(trainer, "make_model", directory=str(place / "small"), config=SMALL)["parameters"])
    # Making models leaves memory behind that loading them does not take.
    argv = [sys.executable, "-m", "benchmarks.baselines.footprint", "memory-child", str(place), str(size)]
    done = subprocess.run(argv, env=os.environ | MAPPED_FROM, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_child(place: Path, size: int) -> dict[str, float]:
    trainer = Trainer()
    work(trainer, place / "tiny", place, "child", int(TINY["vocab_size"]))
    base = _own_bytes()
    peaks: dict[str, float] = {}
    for name, peak in work(trainer, place / "small", place, "small", int(SMALL["vocab_size"])).items():
        peaks[f"{name}_bytes_per_parameter"] = (peak - base) / size
    beside = peaks.pop(f"{BESIDE}_bytes_per_parameter")
    return {
        "parameters": float(size),
        **peaks,
        "peak_bytes_per_parameter": max(peaks.values()),
        f"{BESIDE}_bytes_per_parameter": beside,
    }


def work(trainer: Trainer, model: Path, place: Path, name: str, vocab_size: int) -> dict[str, int]:
    """Perform the requests of a run; return the peak of each, and of a step BESIDE a checkpoint that is being written.

    The other requests run while no checkpoint is being written.
    """
    peaks: dict[str, int] = {}

    def ask_watched(op: str, arrays: Arrays | None = None, *, name: str = "", **fields: Any) -> None:
        with _watched() as seen:
            ask(trainer, op, arrays, **fields)
            if not name:
                trainer.wait_until_written()
        peaks[name or op] = max(peaks.get(name or op, 0), *seen)

    batch = few_tokens(vocab_size)
    ask_watched("load", directory=str(model), hyperparameters={"max_new_tokens": 8}, threads=1)
    for number in range(2):
        ask_watched("step", batch)
        ask_watched("step", batch)
        ask_watched("export", directory=str(place / f"{name} export {number}"))
        ask_watched("save", directory=str(place / f"{name} saved {number}"), wait=False)
    ask(trainer, "save", directory=str(place / f"{name} saved beside"), wait=False)
    ask_watched("step", batch, name=BESIDE)
    trainer.wait_until_written()
    ask_watched("restore", directory=str(place / f"{name} saved 1"))
    ask_watched("step", batch)
    return peaks


def few_tokens(vocab_size: int) -> Arrays:
    """Return two completions of four tokens: almost no activations."""
    generator = np.random.default_rng(0)
    return {
        "tokens": generator.integers(0, vocab_size, 12).astype(np.int32),
        "lengths": np.array([6, 6], np.int32),
        "mask": np.array([0, 0, 1, 1, 1, 1] * 2, np.uint8),
        "behaviour_logprobs": np.full(8, -3.0, np.float32),
        "lags": np.zeros(8, np.int32),
        "rewards": np.array([0.0, 1.0], np.float32),
        "group_sizes": np.array([2], np.int32),
        "origins": np.zeros(2, np.uint8),
    }


@contextmanager
def _watched() -> Iterator[list[int]]:
    seen, over = [_own_bytes()], threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            seen.append(_own_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _own_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def ask(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    reply, _ = trainer.answer({"id": 0, "op": op, **fields}, arrays or {})
    assert reply["ok"], reply
    return reply


def main(words: list[str]) -> None:
    if words:
        print(json.dumps(memory_child(Path(words[1]), int(words[2]))))
        return
    with tempfile.TemporaryDirectory(prefix="volery-footprint-") as place:
        print(json.dumps(memory(Path(place))))


if __name__ == "__main__":
    main(sys.argv[1:])
