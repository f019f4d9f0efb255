"""Check whether `[model] directory` still holds the model that a run began with.

Weights are compared by samples (`learner.artifacts.file_digests`), other files as a whole. A fork records its own
model.

Invariants:

- The ledger has a digest of each of the model's files from the first start on, as long as there is a checkpoint to
  continue from.
- If the objective or an adapter depends on that model, a start with other weights is refused.
- Any other change of the files is reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from learner.artifacts.file_digests import add_samples
from learner.artifacts.model_directory import COMPANIONS, CONFIG
from learner.artifacts.regular_file import read_file
from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.sqlite.database import LedgerError, is_blank
from node.config.preflight import shards_of
from node.config.swarm_config import SwarmConfig, TrainerSection
from node.runtime.errors import RunError, UsageError, as_run_error

WEIGHTS = ".safetensors"

MAX_NAMED = 3
"""Most files that a message names, since all shards of a large model may differ."""


def digests_of(directory: Path) -> dict[str, str]:
    """Return the digest of each file of the model in `directory`, by name. Raises UsageError and RunError."""
    found = {}
    try:
        for name in [*shards_of(directory), CONFIG, *COMPANIONS]:
            file, digest = directory / name, hashlib.sha256()
            if name.endswith(WEIGHTS):
                add_samples(digest, file)
            elif file.is_file():
                digest.update(read_file(file))
            else:
                continue
            found[name] = digest.hexdigest()
    except OSError as error:
        raise RunError(f"[model] directory: {error.filename}: {error.strerror}. Check its disk and owner.") from error
    return found


def base_note(config: SwarmConfig, ledger: Path) -> str:
    """Return a note if the model differs from the one that the run in `ledger` began with; "" if not, or if unknown.

    Raises UsageError if the run cannot continue with another model, RunError if the ledger or the model cannot be read.
    """
    if is_blank(ledger):
        return ""
    with as_run_error(LedgerError), read_ledger(ledger) as reader:  # without a checkpoint, the model does not matter
        recorded = reader.training.base_model() if reader.training.checkpoints_made() else {}
    return compare_base(recorded, digests_of(Path(config.model.directory)), config)


def hold_to_base(ledger: Ledger, config: SwarmConfig, base: int) -> str:
    """Do the same as `base_note` for an opened ledger whose run continues from step `base`.

    If the run begins, or its model is not recorded, the digests of now are recorded.
    """
    found, recorded = digests_of(Path(config.model.directory)), ledger.training.base_model()
    if base == 0 or not recorded:
        ledger.training.begun_with(found)
        return ""
    return compare_base(recorded, found, config)


def compare_base(recorded: Mapping[str, str], found: Mapping[str, str], config: SwarmConfig) -> str:
    """Do the same as `base_note` for digests. If `recorded` is empty, nothing is known."""
    names = recorded.keys() | found.keys() if recorded else set()
    other = sorted(name for name in names if recorded.get(name) != found.get(name))
    if not other:
        return ""
    directory = config.model.directory
    weights = [name for name in other if name.endswith(WEIGHTS)]
    if weights and (rests := _rests_on_it(config.trainer)):
        raise UsageError(
            f"[model] directory: {directory} does not hold the model that this run began with ({_name(weights)}), but "
            f"[trainer] {rests}. Put that model back, or begin another run with this one in another [swarm] state."
        )
    said = ["the run continues with its own weights"] if weights else []
    said += ["tokenizer and settings are used as they are now"] if len(other) > len(weights) else []
    return (
        f"[model] directory: {directory} has changed since this run began ({_name(other)}): {'; '.join(said)}. "
        "Put the files back if this was not intended."
    )


def _rests_on_it(trainer: TrainerSection) -> str:
    """Return which part of the configuration needs the weights that the run began with; "" if none does."""
    if trainer.kl_coefficient > 0:
        return f"kl_coefficient = {trainer.kl_coefficient} compares the policy with it"
    if trainer.pairs_by:
        return f"{trainer.pairs_by} compares the policy with it"
    return f"lora_rank = {trainer.lora_rank} trains an adapter on it" if trainer.lora_rank else ""


def _name(files: list[str]) -> str:
    more = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
    return ", ".join(files[:MAX_NAMED]) + more
