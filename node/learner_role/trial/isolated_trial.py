"""Make a trial without a run: start the children as a learner does, in a temporary directory, and remove everything.

`volery learn --dry-run` uses it.

Invariants:

- The trainer is brought to the state that a start would continue from, by the same functions
  (`node.learner_role.training.restore`).
- Checkpoints are only read. All files are written to a temporary directory, which is always removed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from learner.ledger.rows import CheckpointRow
from node.config.swarm_config import SwarmConfig
from node.engine.factory import learners_engine, open_verifying_engine
from node.engine.interface import EngineError
from node.learner_role.training.restore import load_policy, restore_newest
from node.learner_role.training.trainer_process import load_request
from node.learner_role.trial.trial_run import trial_terms, try_out
from node.processes.child import open_child
from node.processes.outcomes import ChildCrashed, ChildGaveUp, ChildRefused
from node.processes.spec import ChildSpec
from node.runtime.errors import RunError
from node.runtime.events import EventLog
from node.tasks.task_suite import TaskSuite
from protocol.core.pipe import Arrays, Header

NO_ENGINE = "No trial: this run trains only on logs and evaluates nothing, so it needs no engine."


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The format in which the trainer's layers compute, its device, and the result of the trial as a sentence."""

    compute_dtype: str
    device: str
    sentence: str


async def try_aside(
    config: SwarmConfig,
    suite: TaskSuite,
    rows: Sequence[CheckpointRow],
    checkpoints: Path,
    trainer: ChildSpec,
) -> Tried:
    """Load and export the policy as a start does, and make the trial with it.

    `rows`: the checkpoints that a start may continue from. They lie in `checkpoints`. Raises UsageError and RunError.
    """
    events, passed_over = EventLog(), []
    with tempfile.TemporaryDirectory(prefix="volery-") as folder:
        export = Path(folder) / "export"
        try:
            async with open_child(trainer) as child:

                async def call(op: str, header: Mapping[str, object], arrays: Arrays | None) -> tuple[Header, Arrays]:
                    """Call the trainer as a start does. Raises ChildRefused, and RunError if the process ends."""
                    try:
                        return await child.call(op, header, arrays)
                    except (ChildCrashed, ChildGaveUp) as end:
                        raise RunError(f"The trainer cannot continue: {end}") from end

                async def ask(op: str, header: Mapping[str, object]) -> Header:
                    return (await call(op, header, None))[0]

                loaded = await load_policy(ask, load_request(config))
                await restore_newest(
                    ask, rows, checkpoints, lambda directory, reason: passed_over.append(str(directory))
                )
                try:
                    await ask("export", {"directory": str(export), "dtype": config.model.weights_dtype})
                except ChildRefused as refused:
                    place = f" Check the disk of {folder}, or set TMPDIR." if refused.kind == "disk" else ""
                    raise RunError(f"The first version cannot be published: {refused.error}.{place}") from None
                sentence = NO_ENGINE
                if (terms := trial_terms(config, suite)) is not None:
                    async with open_verifying_engine(
                        learners_engine(config), events, name="evaluation", state=Path(folder)
                    ) as engine:
                        sentence = (await try_out(engine, call, export, loaded, terms)).sentence
        except ChildCrashed as crash:
            raise RunError(f"The trainer could not run: {crash}") from crash
        except EngineError as error:
            raise RunError(str(error)) from error
    skipped = f" Skipped, since they cannot be used: {', '.join(passed_over)}." if passed_over else ""
    return Tried(compute_dtype=str(loaded["compute_dtype"]), device=str(loaded["device"]), sentence=sentence + skipped)
