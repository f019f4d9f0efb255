"""Measure the cost of publishing a model of 1 GiB: processor seconds, and seconds compared with a plain write.

    python -m benchmarks.publishing.gibibyte PLACE ROUNDS        one JSON object on stdout

Invariants:

- The trainer's export, the version builder and the store are those that a learner runs, in one process that does
  nothing else meanwhile.
- Each version comes from the one before by a training step, and has patches from that one and from the first, as a
  learner's versions have.
- Each publication is compared with a plain write of as many bytes, flushed to the same disk. Before each of the two, as
  much is written and removed: a virtual machine may wait several times longer for memory that was not just in use than
  for its disk.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.baselines.footprint import ask, few_tokens
from benchmarks.network.founding import found, now_ms, publisher_of
from learner.artifacts.version_builder import Base, patches_of
from learner.training.server import Trainer
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.versions.manifest import SignedManifest
from swarm.store.chunk_store import ChunkStore

GIB = 1 << 30

LARGE: dict[str, Any] = {
    "vocab_size": 32_768, "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 19,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 96, "tie_word_embeddings": True,
}  # fmt: skip
"""1 GiB in bfloat16."""

RATE = 1e-6
"""Learning rate of a training step: that of reinforcement learning, at which patches are small."""

PLAIN = "plain"
"""A file that is written and removed."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One publication: wall-clock and processor seconds, and the bytes of its files and of its patches."""

    wall_s: float
    cpu_s: float
    size_bytes: int
    patch_bytes: list[int]


class Publisher:
    """A trainer with a model of 1 GiB, and a learner's store."""

    def __init__(self, place: Path) -> None:
        self._place, self._number = place, 0
        self._builder = publisher_of("learner")
        self._store = ChunkStore.open(place / "store", found()[1])
        self._published: list[SignedManifest] = []
        self._trainer = Trainer()
        model = place / "model"
        ask(self._trainer, "make_model", directory=str(model), config=LARGE)
        hyperparameters: dict[str, Any] = {"max_new_tokens": 8, "learning_rate": RATE}
        load = {"directory": str(model), "hyperparameters": hyperparameters, "threads": os.cpu_count()}
        ask(self._trainer, "load", **load)
        shutil.rmtree(model)

    def step(self) -> None:
        """Take one small training step."""
        ask(self._trainer, "step", few_tokens(int(LARGE["vocab_size"])))

    def publish(self, *, patches: bool) -> Cost:
        """Publish a version, from the snapshot to the point before its announcement; return the cost."""
        self._number += 1
        export = self._place / f"export {self._number}"
        bases = self._bases() if patches else []
        previous = self._published[-1].hash if self._published else None
        began, cpu_began = time.perf_counter(), time.process_time()
        reply, names = self._trainer.answer({"id": 0, "op": "export", "directory": str(export)}, {})
        assert reply["ok"], reply
        version = PolicyVersion(1, self._number)
        made = self._builder.publish(export, version, previous, now_ms(), bases, names)
        self._store.adopt(made.signed, export, made.patches)
        cost = Cost(
            wall_s=time.perf_counter() - began,
            cpu_s=time.process_time() - cpu_began,
            size_bytes=made.signed.manifest.total_bytes,
            patch_bytes=[path.stat().st_size for path in made.patches],
        )
        for directory in (export, patches_of(export)):
            shutil.rmtree(directory, ignore_errors=True)
        self._published.append(made.signed)
        self._store.evict(self._kept())
        return cost

    def _kept(self) -> set[ManifestHash]:
        return {self._published[0].hash, self._published[-1].hash}

    def _bases(self) -> list[Base]:
        """Return the version before, and the first, which is the anchor."""
        found = {signed.hash: signed for signed in (self._published[-1], self._published[0])}
        return [Base(manifest=signed, directory=self._store.directory(name)) for name, signed in found.items()]


def measure(place: Path, rounds: int) -> dict[str, Any]:
    """Return medians over this many publications with patches, and as many without."""
    publisher = Publisher(place)
    for _ in range(2):  # the anchor, and a version before the first that counts
        publisher.publish(patches=False)
        publisher.step()
    costs: dict[bool, list[Cost]] = {True: [], False: []}
    ratios: dict[bool, list[float]] = {True: [], False: []}
    writes = []
    for _ in range(rounds):
        for patches in (True, False):
            seconds_to_write(place / PLAIN, GIB)
            cost = publisher.publish(patches=patches)
            seconds_to_write(place / PLAIN, GIB)
            writes.append(seconds_to_write(place / PLAIN, cost.size_bytes))
            costs[patches].append(cost)
            ratios[patches].append(cost.wall_s / writes[-1])
            publisher.step()
    patched, bare = costs[True], costs[False]
    return {
        "gib": patched[0].size_bytes / GIB,
        "patch_bytes": [median(sizes) for sizes in zip(*(cost.patch_bytes for cost in patched), strict=True)],
        "publish_s": median(cost.wall_s for cost in patched),
        "publish_cpu_s_per_gib": median(cost.cpu_s * GIB / cost.size_bytes for cost in patched),
        "publish_of_write": median(ratios[True]),
        "without_patches_s": median(cost.wall_s for cost in bare),
        "without_patches_cpu_s_per_gib": median(cost.cpu_s * GIB / cost.size_bytes for cost in bare),
        "without_patches_of_write": median(ratios[False]),
        "write_s": median(writes),
    }


def seconds_to_write(path: Path, size: int) -> float:
    """Return the seconds of a plain write, flushed to the disk. The file is removed."""
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


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
