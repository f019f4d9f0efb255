"""The model that a run began with, and whether `[model] directory` still holds it.

What always holds: the ledger has a digest of each of its files from the first start on, for as long as there is a
checkpoint to go on from; where the objective, or an adapter, rests on that model, a start on other weights is refused;
any other change of its files is told. A fork begins with its own.

Weights are looked at in samples (`learner.artifacts.file_digests`), the other files as a whole.
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
"""Files that a message names; of a large model all shards differ."""


def digests_of(directory: Path) -> dict[str, str]:
    """A digest by the name of each file of the model in `directory`. Raises UsageError, RunError."""
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
    """What to tell of the model that the run in `ledger` began with; "" where it is the same, or nothing is known.

    Raises UsageError where this run cannot go on with another, RunError when the ledger or the model cannot be read.
    """
    if is_blank(ledger):
        return ""
    with as_run_error(LedgerError), read_ledger(ledger) as reader:  # what no checkpoint rests on yet does not matter
        recorded = reader.training.base_model() if reader.training.checkpoints_made() else {}
    return compare_base(recorded, digests_of(Path(config.model.directory)), config)


def hold_to_base(ledger: Ledger, config: SwarmConfig, base: int) -> str:
    """As `base_note`, of an opened ledger whose run goes on from step `base`; where it begins, or nobody wrote down
    with what, what is there now is written down.
    """
    found, recorded = digests_of(Path(config.model.directory)), ledger.training.base_model()
    if base == 0 or not recorded:
        ledger.training.begun_with(found)
        return ""
    return compare_base(recorded, found, config)


def compare_base(recorded: Mapping[str, str], found: Mapping[str, str], config: SwarmConfig) -> str:
    """As `base_note`, of digests; nothing is known where `recorded` is empty."""
    names = recorded.keys() | found.keys() if recorded else set()
    other = sorted(name for name in names if recorded.get(name) != found.get(name))
    if not other:
        return ""
    directory = config.model.directory
    weights = [name for name in other if name.endswith(WEIGHTS)]
    if weights and (rests := _rests_on_it(config.trainer)):
        raise UsageError(
            f"[model] directory: {directory} does not hold the model that this run began with ({_name(weights)}), and "
            f"[trainer] {rests}. Put that model back, or begin another run with this one in another [swarm] state."
        )
    said = ["the run goes on with its own weights"] if weights else []
    said += ["tokenizer and settings are used as they are now"] if len(other) > len(weights) else []
    return (
        f"[model] directory: {directory} is not as it was when this run began ({_name(other)}): {'; '.join(said)}. "
        "Put it back if that was not meant."
    )


def _rests_on_it(trainer: TrainerSection) -> str:
    """What of the configuration needs the weights that the run began with."""
    if trainer.kl_coefficient > 0:
        return f"kl_coefficient = {trainer.kl_coefficient} holds the policy against it"
    if trainer.pairs_by:
        return f"{trainer.pairs_by} holds the policy against it"
    return f"lora_rank = {trainer.lora_rank} trains an adapter on it" if trainer.lora_rank else ""


def _name(files: list[str]) -> str:
    more = f" and {len(files) - MAX_NAMED} more" if len(files) > MAX_NAMED else ""
    return ", ".join(files[:MAX_NAMED]) + more
