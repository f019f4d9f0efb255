"""Settings that are fixed for a run, and whether swarm.toml still has them.

The model, the tasks and their files are held by the checkpoint itself (its fingerprint, the curriculum's). What is here
would change a run without a word: problems would come in another order, so that some came again and others never; or
prompts would say something else, and completions that wait would end or count otherwise (`WAYS`).

Invariants:
- the ledger has them from the first start on, for as long as something rests on them: a checkpoint to go on from, or
  work that waits to be trained on;
- a start with others is refused, and nothing is changed; a fork is held to those of the run that it comes from, but
  for `WAYS`: it takes no work along, and may speak to its model otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.sqlite.database import LedgerError, is_blank
from node.config.swarm_config import ModelSection, SwarmConfig
from node.runtime.errors import UsageError, as_run_error
from node.tasks.ways.model_ways import read_template

SEED, TASKS, WAYS = "seed", "tasks", "ways"
"""Names of the settings in the ledger."""

WAYS_KEYS = ("chat_template_kwargs", "system_prompt", "stop", "stop_ids", "tool_format")
"""Keys of [model] that say how it is spoken to, beside `chat_template`, of which the content counts."""

PAIR = 2
"""Completions of a group that preferences are learnt from."""

INSTEAD = "Put it back, or begin another run in another [swarm] state."


def fixed_settings(config: SwarmConfig) -> dict[str, Any]:
    """Those of `config`, as the ledger keeps them."""
    return {SEED: config.learn.seed, TASKS: [one.title for one in config.task.tasks], WAYS: ways_of(config.model)}


def ways_of(model: ModelSection) -> dict[str, Any]:
    """How the model is spoken to: the keys that are set, with a digest in place of a template's file. Raises
    UsageError where that file cannot be read."""
    usual = ModelSection(directory=model.directory)
    found = {key: value for key in WAYS_KEYS if (value := getattr(model, key)) != getattr(usual, key)}
    if model.chat_template is not None:
        text = read_template(Path(model.chat_template))
        found["chat_template"] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return found


def require_fixed(config: SwarmConfig, ledger: Path, names: Collection[str] = (SEED, TASKS, WAYS)) -> None:
    """Refuse other settings of these `names` than those of the run in `ledger`, if anything rests on them. Raises
    UsageError, RunError."""
    if is_blank(ledger):
        return
    with as_run_error(LedgerError), read_ledger(ledger) as reader:  # a record of a lease may wait to be trained on
        rests = reader.training.checkpoints_made() or reader.work.counts()[0]
        recorded = reader.training.settings() if rests else {}
    if recorded:
        recorded = {WAYS: {}, **recorded}  # a volery that wrote none down had none of these keys
    if said := explain_change({name: value for name, value in recorded.items() if name in names}, config):
        raise UsageError(said)


def require_groups(config: SwarmConfig, ledger: Path) -> None:
    """Refuse to learn from pairs while larger groups wait in `ledger` to be trained on. Raises UsageError, RunError."""
    if is_blank(ledger) or not (config.trainer.pairs_by and config.swarm_rollouts):
        return
    with as_run_error(LedgerError), read_ledger(ledger) as reader:
        larger = sorted(reader.work.group_sizes() - {PAIR})
    if larger:
        raise UsageError(
            f"[trainer] {config.trainer.pairs_by} learns from pairs, and groups of {larger[-1]} wait in {ledger} to be "
            "trained on. Go on as before, or fork this run (--fork-from): a fork takes the weights along, and leaves "
            "what waits."
        )


def note_fixed(ledger: Ledger, config: SwarmConfig, base: int) -> None:
    """Write them down where a run begins at step `base`, or where nobody did before."""
    if base == 0 or not ledger.training.settings():
        ledger.training.begun_under(fixed_settings(config))


def explain_change(recorded: Mapping[str, Any], config: SwarmConfig) -> str:
    """What is not as recorded, with the key and what to do; "" if all is, or nothing is known."""
    now = fixed_settings(config)
    seed, tasks = (recorded.get(name, now[name]) for name in (SEED, TASKS))
    if seed != now[SEED]:
        return (
            f"[learn] seed = {now[SEED]} is not the {seed} that this run began with, and orders its problems: some "
            f"would come again, and others never. {INSTEAD}"
        )
    if tasks != now[TASKS]:
        return (
            f"[task] the tasks are called {', '.join(now[TASKS]) or 'nothing'}, and were called "
            f"{', '.join(tasks) or 'nothing'} when this run began: names order the problems of a file, and leases that "
            f"wait have them. {INSTEAD}"
        )
    ways = recorded.get(WAYS, now[WAYS])
    if changed := sorted(key for key in ways.keys() | now[WAYS].keys() if ways.get(key) != now[WAYS].get(key)):
        return (
            f"[model] {changed[0]} is not what it was when this run began: prompts would say something else, and "
            f"completions that wait would count otherwise. {INSTEAD} A fork (--fork-from) may have another."
        )
    return ""
