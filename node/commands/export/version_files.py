"""Write the files of one version into a directory: from the store, or made again from the learner's checkpoint.

For a checkpoint, a separate trainer process loads the model, restores the checkpoint, and exports its weights, as the
learner did when it published the version. It computes on the CPU, so a running learner is not disturbed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from learner.artifacts.regular_file import open_file
from learner.ledger.rows import CheckpointRow
from node.commands.export.adapters import WEIGHTS
from node.commands.export.version_choice import Chosen
from node.config.loader import read_swarm_config
from node.config.swarm_config import SwarmConfig
from node.learner_role.training.resume import CHECKPOINTS
from node.learner_role.training.trainer_process import load_request
from node.processes.child import open_child
from node.processes.outcomes import ChildError
from node.processes.spec import ChildSpec
from node.runtime.errors import RunError, UsageError
from node.state.locate import StateLocation
from protocol.versions.manifest import SignedManifest


def write_version(
    place: StateLocation, chosen: Chosen, source: Path, draft: Path, trainer: Sequence[str], *, light: bool = False
) -> None:
    """Make `draft` a directory with the files of the `chosen` version.

    Args:
        source: path that the operator named.
        trainer: command of the trainer's process.
        light: whether the model's own weights may be left out if the version has an adapter.

    Raises UsageError, RunError, and OSError if `draft` cannot be written.
    """
    if chosen.held is not None:
        _copy_all(place, chosen.held, draft, light=light)
        return
    assert chosen.row is not None
    config = place.config or _config_at(source, chosen.row)
    draft.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = place.state / CHECKPOINTS / chosen.row.directory
    try:
        trio.run(_export, trainer, config, checkpoint, draft)
    except ChildError as error:
        raise RunError(
            f"Version {chosen.row.directory} is no longer in the store, and could not be made from its checkpoint: "
            f"{str(error).rstrip('.')}."
        ) from None


def _copy_all(place: StateLocation, held: SignedManifest, draft: Path, *, light: bool) -> None:
    draft.mkdir(parents=True)
    light &= any(entry.name == WEIGHTS for entry in held.manifest.files)
    for entry in held.manifest.files:
        if light and entry.name.endswith(".safetensors") and entry.name != WEIGHTS:
            continue
        _copy(place.state / "store" / "versions" / held.hash.hex() / entry.name, entry.size, draft / entry.name)


def _copy(source: Path, size: int, target: Path) -> None:
    """Copy a file. Raises RunError if `source` is not as published, OSError if `target` cannot be written."""
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
    raise RunError(f"{source} {why}. Start its node or learner once to repair the store, or name another version.")


async def _export(trainer: Sequence[str], config: SwarmConfig, checkpoint: Path, draft: Path) -> None:
    load: dict[str, Any] = {**load_request(config), "device": "cpu", "compile": False}
    async with open_child(ChildSpec(name="trainer", argv=tuple(trainer))) as child:
        await child.call("load", load)
        await child.call("restore", {"directory": str(checkpoint), "keep_hyperparameters": True})
        await child.call("export", {"directory": str(draft), "dtype": config.model.weights_dtype})


def _config_at(source: Path, row: CheckpointRow) -> SwarmConfig:
    """Return the configuration that `source` names. Raises UsageError if `source` is a state directory."""
    path = source / "swarm.toml" if source.is_dir() else source
    if not path.is_file():
        raise UsageError(
            f"--version {row.step}: only a checkpoint holds it, no longer the store. Making it again needs the model "
            f"that a swarm.toml names: name the swarm.toml instead of {source}."
        )
    return read_swarm_config(path)
