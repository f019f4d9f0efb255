"""A long run's leftovers in its state directory do not grow with its steps, versions and leases.

The trainer is a fake one, whose versions differ from each other as real ones do: completely, a little, hardly at all.
The ledger alone grows, by rows: it holds the accounts, which are kept for good (`learner.ledger.sqlite.schema`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from node.learner_role.metrics.sample_store import FILE as SAMPLES
from node.learner_role.metrics.sample_store import SampleSink
from node.learner_role.metrics.sqlite import FILE as METRICS
from node.learner_role.metrics.sqlite import SqliteSink
from node.learner_role.scheduling import run_recording as recorder_module
from node.learner_role.trust.version_retention import MAX_OUTDATED
from node.runtime import events as events_module
from node.runtime.events import EventLog
from protocol.core.digest import digest_of
from tests.support.learner_fixture import FakePeer, FakeTrainer, Learner, Settings, fast_directory, open_learner

FEW, MANY = 40, 300
"""Training steps after which the files are counted, and counted again: by then the windows of store and audits are
full."""

SWAYS = 5 * (MAX_OUTDATED + 4)
"""Files by which two counts may differ: so many versions are kept while something waits to be audited, and those of the
window, of five files each."""

LOG_BYTES = 20_000
"""Bytes of a log here before it is set aside: a run of hours becomes one of seconds."""

ROWS = 3_000
"""Rows that the tables beside the ledger may have: a tenth of what MANY steps would bring."""


@dataclass(kw_only=True)
class VariedTrainer(FakeTrainer):
    """A trainer whose versions have 64 KiB. In turn a version replaces all, a part, or next to nothing: so a patch is
    not worth it, is worth it, or is not even tried.
    """

    def tensors(self, weights: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        blocks = 64
        changed = (blocks, blocks // 8, 1)[self._steps % 3]
        data = b"".join(
            digest_of(weights + bytes([block])) * 32 if block < changed else bytes(1024) for block in range(blocks)
        )
        if changed == blocks:  # no two pieces are alike, so it cannot be compressed
            data = b"".join(digest_of(weights + piece.to_bytes(4, "big")) for piece in range(2048))
        return {"embed": ("F32", (len(data) // 4,), data), "layer": ("F32", (8,), weights)}


def left_in(root: Path) -> Counter[str]:
    """Count files and directories below `root`, by the directory that they lie in, or their own name at its top."""
    found: Counter[str] = Counter()
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        found["/".join(parts[:2]) if parts[0] == "store" else parts[0]] += 1
    return found


async def train(root: Path, steps: int) -> None:
    """Train until that step, with everything that a learner writes beside its ledger."""
    log = EventLog(root / "events.jsonl")
    async with open_learner(root, Settings(steps=steps, audits=True, staleness=2), trainer=VariedTrainer()) as learner:
        learner.watch.events.listen(partial(_copy, log))
        learner.watch.samples = 1
        sinks = [SqliteSink(path=root / METRICS, most=ROWS)]
        async with learner.watch.feed(sinks, SampleSink(path=root / SAMPLES, most=LOG_BYTES)):
            await _train_audited(learner)
    log.close()


def _copy(log: EventLog, event: str, fields: dict[str, object]) -> None:
    log.emit(event, **fields)  # type: ignore[arg-type]


async def _train_audited(learner: Learner) -> None:
    await learner.train(FakePeer())


async def test_what_a_run_leaves_in_its_directory_does_not_grow_with_its_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_module, "MAX_LOG_BYTES", LOG_BYTES)
    monkeypatch.setattr(recorder_module, "MAX_RECORDING_BYTES", LOG_BYTES)
    with fast_directory() as root:
        await train(root, FEW)
        few = left_in(root)
        await train(root, MANY)
        many = left_in(root)
        assert list((root / "exports").iterdir()) == [], "an export was not moved into the store"
        assert len(list((root / "checkpoints").iterdir())) == 2
        assert set(many) - set(few) <= {"events.jsonl.1", "recording.jsonl.1"}
        assert many.total() - few.total() <= SWAYS, f"{few} -> {many}"
        for name in ("events.jsonl", "recording.jsonl"):
            sizes = [path.stat().st_size for path in (root / name, root / f"{name}.1")]
            assert max(sizes) < 1.1 * LOG_BYTES, "a log is larger than its limit"
