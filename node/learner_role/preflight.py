"""Check configuration, model, tasks and state directory for `volery learn` and its dry run, before anything is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from learner.ledger.rows import CheckpointRow
from node.config.loader import read_swarm_config
from node.config.preflight import require_addresses, require_clock, require_model
from node.config.swarm_config import SwarmConfig
from node.learner_role.distillation.teacher_model import require_teacher
from node.learner_role.metrics.open_sinks import require_sinks
from node.learner_role.replayed_routing import replayed_routing
from node.learner_role.training.base_model import base_note
from node.learner_role.training.fixed_settings import SEED, TASKS, WAYS, require_fixed, require_groups
from node.learner_role.training.footprint import require_targets
from node.learner_role.training.resume import (
    CHECKPOINTS,
    LEDGER,
    Origin,
    checkpoints_in,
    find_origin,
    require_checkpoint,
    require_ledger,
    require_memory,
    require_one,
)
from node.notices.destination import destination_of
from node.runtime.errors import about_keys_of
from node.runtime.events import Clock
from node.state.learner_state import require_home, require_state
from node.tasks.task_suite import TaskSuite, open_task_suite
from node.verifiers.dispatch import require_here
from node.web.address import read_listen


def check_config(config: SwarmConfig, path: Path) -> TaskSuite:
    """Check everything that can be checked of `config`, read from `path`, and return its tasks.

    Raises UsageError, TaskError and RunError, which name the file and the key.
    """
    with about_keys_of(path):
        require_model(Path(config.model.directory))
        require_targets(Path(config.model.directory), config.trainer)
        replayed_routing(config)
        require_addresses(config.network.listen, config.network.announce)
        require_sinks(config.metrics)
        destination_of(config.notify)
        read_listen(config.web.listen)
        require_state(Path(config.swarm.state))
        require_memory(Path(config.swarm.state))
        suite = open_task_suite(config, path.resolve().parent)
        require_here(suite, config.verifiers, config.curriculum.decided_by)
        require_teacher(config, suite)
        return suite


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a start begins with, after all checks that make nothing.

    Args:
        rows: the durable checkpoints that it may continue from, newest first. They lie in `checkpoints`.
        origin: the checkpoint that a fork begins with.
        note: how the model differs from the one that the run began with; "" if it does not.
    """

    path: Path
    config: SwarmConfig
    suite: TaskSuite
    rows: Sequence[CheckpointRow]
    checkpoints: Path
    origin: Origin | None
    note: str


def look_at(path: Path, *, resume: bool = False, fork_from: str = "") -> Start:
    """Check everything that `volery learn` with these options would begin with, and make nothing.

    `--dry-run` calls this as well, so both give the same messages. Raises UsageError, TaskError and RunError.
    """
    config = read_swarm_config(path)
    require_clock(Clock.now_ms())
    suite = check_config(config, path)
    state = Path(config.swarm.state)
    authority = require_home(state, now_ms=Clock.now_ms())
    require_one(resume=resume, fork_from=fork_from)
    if resume:
        require_checkpoint(state)
    if authority is not None:
        require_ledger(state, authority)
    origin = None
    if fork_from:
        origin = find_origin(fork_from, config, suite.restore)
    with about_keys_of(path):
        rows = [origin.row] if origin else rows_to_resume(config, suite, state)
        note = base_note(config, state / LEDGER)
    return Start(
        path=path,
        config=config,
        suite=suite,
        rows=rows,
        checkpoints=(origin.state if origin else state) / CHECKPOINTS,
        origin=origin,
        note=note,
    )


def rows_to_resume(config: SwarmConfig, suite: TaskSuite, state: Path) -> list[CheckpointRow]:
    """Return the run's own durable checkpoints. Raises UsageError if they are of other tasks or settings."""
    require_fixed(config, state / LEDGER, (SEED, WAYS))
    require_groups(config, state / LEDGER)
    rows = checkpoints_in(state)
    if rows:
        before = suite.state()
        suite.restore(rows[0].state)  # raises for other tasks
        suite.restore(before)  # a start that can read no checkpoint begins with this state
    require_fixed(config, state / LEDGER, (TASKS,))
    return rows
