"""What the trainer takes beside its arithmetic: memory by parameter, and the time from weights to a signed version.

    python -m benchmarks.baselines.footprint memory | publication       one JSON object on stdout

What always holds: each is measured in a process of its own, whose libraries were warmed on a tiny model first, so that
what they keep for themselves counts for nothing; memory is what the process has of its own (anonymous pages), sampled
every two milliseconds, since a peak may be short; beside each publication stands a plain write of as many bytes,
flushed to the same disk, since disks differ more than programs. Before each of the two as much was written and removed:
a virtual machine may wait several times longer for memory that was not just in use than for its disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from learner.artifacts.version_builder import VersionBuilder
from learner.training.server import Trainer
from protocol.core.identity import Keypair
from protocol.core.pipe import Arrays, Header

SMALL: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 14,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
"""48 million parameters."""
LARGE: dict[str, Any] = {
    "vocab_size": 32_768, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 19,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 96, "tie_word_embeddings": True,
}  # fmt: skip
"""1 GiB in bfloat16."""
TINY = {**SMALL, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
GIB = 1 << 30
ROUNDS = 3
MAPPED_FROM = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""glibc maps blocks of more than 32 MiB for themselves, smaller ones only at first, and what it keeps of those between
others differs by chance, by up to 1.6 bytes a parameter. A small model's blocks are mapped like a large one's here."""


def measured(what: str) -> dict[str, float]:
    """Run `what` ("memory" or "publication") in a process of its own and return its figures."""
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    argv = [sys.executable, "-m", "benchmarks.baselines.footprint", what]
    done = subprocess.run(argv, cwd=root, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory(place: Path) -> dict[str, float]:
    """Peak bytes a parameter, above what the libraries had, of each thing a trainer does on a few tokens."""
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
    return {"parameters": float(size), **peaks, "peak_bytes_per_parameter": max(peaks.values())}


def work(trainer: Trainer, model: Path, place: Path, name: str, vocab_size: int) -> dict[str, int]:
    """Do what a trainer does in a run; return the peak of each request."""
    peaks: dict[str, int] = {}

    def ask_watched(op: str, arrays: Arrays | None = None, **fields: Any) -> None:
        with _watched() as seen:
            ask(trainer, op, arrays, **fields)
        peaks[op] = max(peaks.get(op, 0), *seen)

    batch = few_tokens(vocab_size)
    ask_watched("load", directory=str(model), hyperparameters={"max_new_tokens": 8}, threads=1)
    for number in range(2):
        ask_watched("step", batch)
        ask_watched("step", batch)
        ask_watched("export", directory=str(place / f"{name} export {number}"))
        ask_watched("save", directory=str(place / f"{name} saved {number}"), wait=False)
    ask_watched("restore", directory=str(place / f"{name} saved 1"))
    ask_watched("step", batch)
    return peaks


def few_tokens(vocab_size: int) -> Arrays:
    """Two answers of four tokens: activations of next to nothing."""
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


def publication(place: Path) -> dict[str, float]:
    """Seconds to export and publish a model of 1 GiB, and to write as many bytes: medians."""
    trainer = Trainer()
    ask(trainer, "make_model", directory=str(place / "model"), config=LARGE)
    ask(trainer, "load", directory=str(place / "model"), hyperparameters={"max_new_tokens": 8}, threads=os.cpu_count())
    shutil.rmtree(place / "model")
    exports, publications, writes = [], [], []
    for number in range(ROUNDS):
        export = place / f"export {number}"
        seconds_to_write(place / "plain", GIB)
        reply, names = trainer.answer({"id": 0, "op": "export", "directory": str(export)}, {})
        exports.append(reply["seconds"])
        began = time.perf_counter()
        publish(export, names)
        publications.append(time.perf_counter() - began)
        size = sum(file.stat().st_size for file in export.iterdir())
        shutil.rmtree(export)
        seconds_to_write(place / "plain", GIB)
        writes.append(seconds_to_write(place / "plain", size))
    total = [a + b for a, b in zip(exports, publications, strict=True)]
    return {
        "gib": size / 2**30,
        "export_s": median(exports),
        "publish_s": median(publications),
        "write_s": median(writes),
        "of_write": median(took / wrote for took, wrote in zip(total, writes, strict=True)),
    }


def publish(directory: Path, names: Arrays) -> None:
    """Sign `directory`, of which the trainer told `names`, as the first version of a swarm."""
    from tests.support.trainer_fixture import NOW_MS, SWARM, version

    assert isinstance(SWARM.learner, Keypair)
    publisher = VersionBuilder(learner=SWARM.learner, authority=SWARM.authority, certificate=SWARM.certificate)
    publisher.publish(directory, version("1.0"), None, NOW_MS, names=names)


def seconds_to_write(path: Path, size: int) -> float:
    """How long a plain write takes, flushed to the disk. The file is removed."""
    block = os.urandom(1 << 24)
    began = time.perf_counter()
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])
        file.flush()
        os.fsync(file.fileno())
    took = time.perf_counter() - began
    path.unlink()
    return took


def ask(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    reply, _ = trainer.answer({"id": 0, "op": op, **fields}, arrays or {})
    assert reply["ok"], reply
    return reply


def main(words: list[str]) -> None:
    if words[0] == "memory-child":
        print(json.dumps(memory_child(Path(words[1]), int(words[2]))))
        return
    with tempfile.TemporaryDirectory(prefix="volery-footprint-") as place:
        print(json.dumps({"memory": memory, "publication": publication}[words[0]](Path(place))))


if __name__ == "__main__":
    main(sys.argv[1:])
