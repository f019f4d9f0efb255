"""`volery export`: write one policy version as a model directory that transformers loads.

A version that the store holds is copied, file by file. One that it has evicted is made again of the learner's
checkpoint of its training step, if that is kept: a trainer's process of its own loads the model, restores the
checkpoint, and exports its weights, as the learner did when it published the version.

Invariants:
- the directory appears whole or not at all;
- nothing of the swarm is written, and a learner at work is not disturbed: the process computes on the processor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from learner.artifacts.regular_file import open_file
from learner.ledger.queries.reader import read_ledger
from learner.ledger.rows import CheckpointRow
from learner.ledger.sqlite.database import LedgerError, is_blank
from node.config.loader import read_swarm_config
from node.config.swarm_config import SwarmConfig
from node.learner_role.training.resume import CHECKPOINTS, LEDGER
from node.learner_role.training.trainer_process import TRAINER, load_request
from node.processes.child import open_child
from node.processes.outcomes import ChildError
from node.processes.spec import ChildSpec
from node.runtime.errors import RunError, UsageError, as_run_error
from node.state.locate import StateLocation, find_place
from node.state.stored_versions import complete_versions
from protocol.versions.manifest import SignedManifest


def export_version(source: Path, directory: Path, wanted: str, *, trainer: Sequence[str] = TRAINER) -> str:
    """Write the version `wanted` (the newest where that is "") of the swarm or node at `source`; return a sentence.

    `trainer` is the command of the trainer's process. Raises UsageError, RunError.
    """
    if directory.exists():
        raise UsageError(f"{directory} exists already; it was not touched. Name a directory that does not.")
    place = find_place(source)
    held = list(complete_versions(place.state / "store"))
    chosen = next((v for v in reversed(held) if not wanted or wanted in (str(v.version), str(v.version.version))), None)
    if chosen is not None:
        return _copied(place, chosen, directory)
    rows = _checkpoints(place)
    row = next((row for row in rows if wanted in (row.directory, str(row.step))), None)
    if row is not None:
        return _restored(place, row, _config_at(source, row), directory, trainer)
    if not held and not wanted:
        raise RunError(f"{place.state / 'store'} holds no complete version yet.")
    names = ", ".join(str(v.version) for v in held) or "none"
    kept = f"; checkpoints: {', '.join(row.directory for row in reversed(rows))}" if rows else ""
    raise UsageError(f"--version {wanted}: not held here (any more). Held: {names}{kept}.")


def _copied(place: StateLocation, chosen: SignedManifest, directory: Path) -> str:
    with _appearing(directory) as draft:
        draft.mkdir(parents=True)
        for entry in chosen.manifest.files:
            _copy(place.state / "store" / "versions" / chosen.hash.hex() / entry.name, entry.size, draft / entry.name)
    size, count = chosen.manifest.total_bytes, len(chosen.manifest.files)
    return f"Wrote version {chosen.version} ({size} bytes, {count} files) to {directory}"


def _copy(source: Path, size: int, target: Path) -> None:
    """Raises RunError where `source` is not what was published, OSError where `target` cannot be written."""
    why = ""
    try:
        with open_file(source) as held:
            if (found := os.fstat(held.fileno()).st_size) == size:
                with target.open("wb") as file:
                    shutil.copyfileobj(held, file)
                return
            why = f"has {found} bytes instead of {size}"
    except OSError as error:
        if error.filename != str(source):
            raise
        why = f"cannot be read: {error.strerror}"
    raise RunError(f"{source} {why}. Start its node or learner once, which mends the store, or name another version.")


def _restored(
    place: StateLocation, row: CheckpointRow, config: SwarmConfig, directory: Path, trainer: Sequence[str]
) -> str:
    checkpoint = place.state / CHECKPOINTS / row.directory
    with _appearing(directory) as draft:
        draft.parent.mkdir(parents=True, exist_ok=True)
        try:
            trio.run(_export, trainer, config, checkpoint, draft)
        except ChildError as error:
            raise RunError(
                f"Version {row.directory} is not in the store any more, and cannot be made of its checkpoint: "
                f"{str(error).rstrip('.')}."
            ) from None
    files = [path.stat().st_size for path in directory.iterdir()]
    return (
        f"Wrote version {row.directory} ({sum(files)} bytes, {len(files)} files) to {directory}, made of its "
        "checkpoint: the store does not hold it any more"
    )


async def _export(trainer: Sequence[str], config: SwarmConfig, checkpoint: Path, draft: Path) -> None:
    load: dict[str, Any] = {**load_request(config), "device": "cpu", "compile": False}
    async with open_child(ChildSpec(name="trainer", argv=tuple(trainer))) as child:
        await child.call("load", load)
        await child.call("restore", {"directory": str(checkpoint), "keep_hyperparameters": True})
        await child.call("export", {"directory": str(draft), "dtype": config.model.weights_dtype})


def _checkpoints(place: StateLocation) -> list[CheckpointRow]:
    """The learner's, newest first; none of a node, or of a learner that has not begun."""
    if not place.is_learner or is_blank(place.state / LEDGER):
        return []
    with as_run_error(LedgerError), read_ledger(place.state / LEDGER) as ledger:
        return ledger.training.checkpoints()


def _config_at(source: Path, row: CheckpointRow) -> SwarmConfig:
    """The swarm.toml that `source` names. Raises UsageError where it names a state directory."""
    path = source / "swarm.toml" if source.is_dir() else source
    if not path.is_file():
        raise UsageError(
            f"--version {row.step}: the store does not hold it any more. Its checkpoint does, and with the model that "
            f"a swarm.toml names the version can be made again: name the swarm.toml instead of {source}."
        )
    return read_swarm_config(path)


@contextmanager
def _appearing(directory: Path) -> Iterator[Path]:
    """A directory beside `directory`, which takes its place at the end, or is gone. Raises RunError."""
    draft = directory.with_name(f".{directory.name}.draft")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        yield draft
        draft.replace(directory)
    except OSError as error:
        raise RunError(f"{directory} could not be written: {error.strerror}. Nothing was left there.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
