"""Check that swarm.toml still has the settings that are fixed for a run.

The checkpoint itself identifies the model, the tasks and their files (its fingerprint, the curriculum's). A change of
the settings here would change a run without notice. Problems would come in another order, so that some would come again
and others never. Or prompts would be different, and waiting completions would end or count differently (`WAYS`).

Invariants:

- The ledger has these settings from the first start on, as long as something depends on them: a checkpoint to continue
  from, or rollouts that wait to be trained on.
- A start with other settings is refused, and nothing is changed.
- A fork must have the settings of the run that it comes from, except `WAYS`: it has no waiting rollouts, and may use
  its model differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.queries.training import TASK_NAMES
from learner.ledger.sqlite.database import LedgerError, is_blank
from node.config.swarm_config import ModelSection, SwarmConfig
from node.runtime.errors import UsageError, as_run_error
from node.tasks.ways.model_ways import read_template

SEED, TASKS, WAYS = "seed", "tasks", "ways"
"""Names of the settings in the ledger."""

WAYS_KEYS = ("chat_template_kwargs", "system_prompt", "stop", "stop_ids", "tool_format")
"""Keys of [model] that decide how the model is used, beside `chat_template`, whose content counts."""

PAIR = 2
"""Completions of a group for an objective that learns from preferences."""

INSTEAD = "Put it back, or begin another run in another [swarm] state."


def fixed_settings(config: SwarmConfig) -> dict[str, Any]:
    """Return the fixed settings of `config`, as the ledger keeps them."""
    return {SEED: config.learn.seed, TASKS: [one.title for one in config.task.tasks], WAYS: ways_of(config.model)}


def ways_of(model: ModelSection) -> dict[str, Any]:
    """Return how the model is used: the keys that are set, with a digest in place of a template's file.

    Raises UsageError if that file cannot be read.
    """
    usual = ModelSection(directory=model.directory)
    found = {key: value for key in WAYS_KEYS if (value := getattr(model, key)) != getattr(usual, key)}
    if model.chat_template is not None:
        text = read_template(Path(model.chat_template))
        found["chat_template"] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return found


def require_fixed(config: SwarmConfig, ledger: Path, names: Collection[str] = (SEED, TASKS, WAYS)) -> None:
    """Raise UsageError if the settings of these `names` differ from those of the run in `ledger`.

    Settings on which nothing depends may differ. Raises RunError if the ledger cannot be read.
    """
    if is_blank(ledger):
        return
    with as_run_error(LedgerError), read_ledger(ledger) as reader:  # a record of a lease may wait to be trained on
        rests = reader.training.checkpoints_made() or reader.work.counts()[0]
        recorded = reader.training.settings() if rests else {}
    if recorded:
        recorded = {WAYS: {}, **recorded}  # an older volery that recorded none had none of these keys
    if said := explain_change({name: value for name, value in recorded.items() if name in names}, config):
        raise UsageError(said)


def require_groups(config: SwarmConfig, ledger: Path) -> None:
    """Raise UsageError if the objective learns from pairs while larger groups in `ledger` wait to be trained on.

    Raises RunError if the ledger cannot be read.
    """
    if is_blank(ledger) or not (config.trainer.pairs_by and config.swarm_rollouts):
        return
    with as_run_error(LedgerError), read_ledger(ledger) as reader:
        larger = sorted(reader.work.group_sizes() - {PAIR})
    if larger:
        raise UsageError(
            f"[trainer] {config.trainer.pairs_by} learns from pairs, but groups of {larger[-1]} in {ledger} wait to be "
            "trained on. Continue with the old objective, or fork this run (--fork-from): a fork copies the weights, "
            "but not the waiting groups."
        )


def note_fixed(ledger: Ledger, config: SwarmConfig, base: int) -> None:
    """Record the fixed settings if the run begins (`base` 0), or if they were never recorded."""
    if base == 0 or not ledger.training.settings():
        ledger.training.begun_under(fixed_settings(config))


def note_names(ledger: Ledger, names: Mapping[str, str]) -> None:
    """Record what people call the tasks, by their names in leases. Every start does, since these names may change."""
    ledger.training.marked(TASK_NAMES, json.dumps(dict(names)).encode())


def explain_change(recorded: Mapping[str, Any], config: SwarmConfig) -> str:
    """Return which setting differs from `recorded`, with its key and what to do; "" if none does, or none is known."""
    now = fixed_settings(config)
    seed, tasks = (recorded.get(name, now[name]) for name in (SEED, TASKS))
    if seed != now[SEED]:
        return (
            f"[learn] seed = {now[SEED]} is not the {seed} that this run began with, and orders its problems: with "
            f"another seed, some would come again, and others never. {INSTEAD}"
        )
    if tasks != now[TASKS]:
        return (
            f"[task] the tasks are called {', '.join(now[TASKS]) or 'nothing'}, but were called "
            f"{', '.join(tasks) or 'nothing'} when this run began: names order the problems of a file, and waiting "
            f"leases contain them. {INSTEAD}"
        )
    ways = recorded.get(WAYS, now[WAYS])
    if changed := sorted(key for key in ways.keys() | now[WAYS].keys() if ways.get(key) != now[WAYS].get(key)):
        return (
            f"[model] {changed[0]} is not what it was when this run began: prompts would change, and waiting "
            f"completions would count differently. {INSTEAD} A fork (--fork-from) may have another value."
        )
    return ""
