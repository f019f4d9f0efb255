"""The commands that run: `learn` and `join`, each a role with its log, its view and its exit code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from learner.ledger.rows import CheckpointRow
from node.config.loader import read_node_config, read_swarm_config, replaced, require_hours
from node.config.preflight import require_addresses, require_clock, require_model
from node.config.swarm_config import NodeConfig, PriceSection, SwarmConfig
from node.learner_role.app import LearnerOutcome, run_learner
from node.learner_role.metrics.open_sinks import require_sinks
from node.learner_role.scheduling.run_state import LearnerRun
from node.learner_role.training.base_model import base_note
from node.learner_role.training.fixed_settings import SEED, TASKS, require_fixed, require_groups
from node.learner_role.training.footprint import require_targets
from node.learner_role.training.resume import (
    CHECKPOINTS,
    LEDGER,
    Origin,
    checkpoints_in,
    find_origin,
    fork,
    require_checkpoint,
    require_ledger,
    require_memory,
    require_one,
    unfork,
)
from node.learner_role.training.trainer_process import TRAINER
from node.network.invites import open_invite
from node.reports.model.report import Role
from node.reports.text import formatting as words
from node.rollout_role.app import RolloutOutcome, run_rollout
from node.rollout_role.dry_run import show_join
from node.rollout_role.worker import RolloutCounts, RolloutRole
from node.runtime.errors import NodeError, about_keys_of
from node.runtime.events import Clock, EventLog
from node.runtime.loop_watch import spare_collections
from node.runtime.shutdown import Stopped
from node.runtime.stdout import say
from node.state.learner_state import require_home, require_state
from node.state.owner_orders import owner_signals
from node.state.rollout_state import VolunteerHome
from node.tasks.task_suite import Schooling, open_schooling
from node.ui.live_view import ViewState
from node.ui.terminal import open_terminal, run_shown
from node.ui.view_updates import follow
from node.verifiers.dispatch import require_here

EVENTS_FILE = "events.jsonl"

NOBODY_JOINS = "There is no invite: [network] listen = [] lets nobody join, and all of each batch comes from logs."


async def learn(
    path: Path,
    *,
    plain: bool,
    resume: bool = False,
    fork_from: str = "",
    trainer: Sequence[str] = TRAINER,
    trial: bool = True,
) -> int:
    """`volery learn`; `trainer` is the command of the trainer's process, which without `trial` need not compute.

    With `resume` it refuses to begin anew; `fork_from` names the run, RUN or RUN@STEP, that it begins with.
    """
    start = look_at(path, resume=resume, fork_from=fork_from)
    config, schooling, state_directory = start.config, start.schooling, Path(start.config.swarm.state)
    if fork_from:
        fork(fork_from, config, schooling.restore, Clock.now_ms())
    events = EventLog(state_directory / EVENTS_FILE)
    learn = config.learn
    state = ViewState(
        role=Role.LEARNER,
        title=config.swarm.name,
        batch=config.swarm_rollouts,
        steps=learn.steps,
        staleness=learn.staleness,
    )
    follow(state, events)
    with open_terminal(state, plain=plain) as terminal:
        running: LearnerRun | None = None

        def ready(invite: str, run: LearnerRun) -> None:
            nonlocal running
            running = run
            terminal.say(
                f"Invite for volunteers (run it there):\n\n  volery join {invite}\n" if invite else NOBODY_JOINS
            )

        async def leave() -> None:
            if running is not None:
                await running.leave()

        spare_collections()
        outcome: LearnerOutcome | None = None
        try:
            with about_keys_of(path), suppress(Stopped):
                outcome = await run_shown(
                    terminal,
                    lambda: run_learner(config, schooling, events, ready, trainer=trainer, trial=trial),
                    leave=leave,
                )
        except NodeError:
            if fork_from and (running is None or not running.opened.is_set()):
                unfork(state_directory)
            raise
        finally:
            events.close()
    told = f"Since this start: {state.sum}. Who did what: volery report {shlex.quote(str(path))}"
    if outcome is None:
        after = f"Stopped after step {state.step} of {state.steps}. " if state.step else ""
        again = _go_on(f"volery learn {shlex.quote(str(path))}")
        return terminal.say_stopped("" if running is None else f"{after}{told}", again)
    terminal.say(f"Finished after {words.counted(outcome.steps, 'step')}. {told}")
    return 0


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a start begins with, once everything was looked at that can be without making anything.

    `rows`, newest first, are the durable states that it may go on from; they lie in `checkpoints`. `origin` is the
    checkpoint that a fork begins with. `note` tells what of the model is not as it was; "" if all is.
    """

    path: Path
    config: SwarmConfig
    schooling: Schooling
    rows: Sequence[CheckpointRow]
    checkpoints: Path
    origin: Origin | None
    note: str


def look_at(path: Path, *, resume: bool = False, fork_from: str = "") -> Start:
    """Look at all that `volery learn` with these options would begin with; `--dry-run` does the same, so both refuse
    in the same words. Makes nothing. Raises UsageError, TaskError and RunError.
    """
    config = read_swarm_config(path)
    require_clock(Clock.now_ms())
    schooling = checked(config, path)
    state = Path(config.swarm.state)
    authority = require_home(state, now_ms=Clock.now_ms())
    require_one(resume=resume, fork_from=fork_from)
    if resume:
        require_checkpoint(state)
    if authority is not None:
        require_ledger(state, authority)
    origin = None
    if fork_from:
        origin = find_origin(fork_from, config, schooling.restore)
    with about_keys_of(path):
        rows = [origin.row] if origin else _gone_on_from(config, schooling, state)
        note = base_note(config, state / LEDGER)
    return Start(
        path=path,
        config=config,
        schooling=schooling,
        rows=rows,
        checkpoints=(origin.state if origin else state) / CHECKPOINTS,
        origin=origin,
        note=note,
    )


def _gone_on_from(config: SwarmConfig, schooling: Schooling, state: Path) -> list[CheckpointRow]:
    """The run's own durable states, which must be of these tasks and settings."""
    require_fixed(config, state / LEDGER, (SEED,))
    require_groups(config, state / LEDGER)
    rows = checkpoints_in(state)
    if rows:
        before = schooling.state()
        schooling.restore(rows[0].state)  # refuses other tasks
        schooling.restore(before)  # where a start that finds no checkpoint readable begins
    require_fixed(config, state / LEDGER, (TASKS,))
    return rows


def checked(config: SwarmConfig, path: Path) -> Schooling:
    """The tasks of `config`, which `path` holds, once all that can be looked at was. Raises UsageError, TaskError and
    RunError, naming the file and the key.
    """
    with about_keys_of(path):
        require_model(Path(config.model.directory))
        require_targets(Path(config.model.directory), config.trainer)
        require_addresses(config.network.listen, config.network.announce)
        require_sinks(config.metrics)
        require_state(Path(config.swarm.state))
        require_memory(Path(config.swarm.state))
        schooling = open_schooling(config, path.resolve().parent)
        require_here(schooling, config.verifiers)
        return schooling


async def join(
    invite: str,
    *,
    config: Path | None,
    state: Path | None,
    name: str,
    price: float | None,
    wait_s: float,
    upload_mbit: float | None = None,
    download_mbit: float | None = None,
    quota_gb: float | None = None,
    hours: str | None = None,
    no_listen: bool,
    plain: bool,
    dry_run: bool = False,
) -> int:
    """`volery join`; with `dry_run` only what that would mean is printed."""
    require_clock(Clock.now_ms())
    word = open_invite(invite, now_ms=Clock.now_ms())
    settings = adjusted(
        read_node_config(config),
        name=name,
        price=price,
        upload_mbit=upload_mbit,
        download_mbit=download_mbit,
        quota_gb=quota_gb,
        hours=hours,
        no_listen=no_listen,
    )
    with nullcontext() if config is None else about_keys_of(config):
        require_addresses(settings.network.listen, settings.network.announce)
    if dry_run:
        say(await show_join(word, settings, state=state, wait_s=wait_s))
        return 0
    events = EventLog()
    view = ViewState(role=Role.ROLLOUT, title=word.name)
    follow(view, events)
    with owner_signals() as signals, open_terminal(view, plain=plain) as terminal:
        node: RolloutRole | None = None
        root = Path()

        def ready(home: VolunteerHome, role: RolloutRole) -> None:
            nonlocal node, root
            node, root = role, home.root
            terminal.say(f"Joined {word.name or 'the swarm'}. State: {home.root}")

        async def leave() -> None:
            if node is not None:
                await node.leave()

        spare_collections()
        outcome: RolloutOutcome | None = None
        try:
            with suppress(Stopped):
                outcome = await run_shown(
                    terminal,
                    lambda: run_rollout(
                        word, settings, events, state=state, wait_s=wait_s, on_ready=ready, signals=signals
                    ),
                    leave=leave,
                )
        finally:
            events.close()
    if outcome is None:
        return terminal.say_stopped("" if node is None else _work_of(node.counts, root), _go_on("the same command"))
    terminal.say(f"{outcome.reason} {_work_of(outcome.counts, outcome.state)}")
    return 0


def adjusted(
    config: NodeConfig,
    *,
    name: str,
    price: float | None,
    upload_mbit: float | None,
    download_mbit: float | None,
    quota_gb: float | None,
    hours: str | None,
    no_listen: bool,
) -> NodeConfig:
    """The configuration with what the command line says on top. Raises UsageError naming the option."""
    changes: dict[str, Any] = {}
    if name:
        changes["name"] = name
    if price is not None:
        changes["price"] = PriceSection(per_hour=price, currency=config.price.currency)
    if quota_gb is not None:
        changes["store"] = replaced(config.store, quota_gb=quota_gb)
    if hours is not None:
        changes["engine"] = replaced(config.engine, hours=hours)
        require_hours(changes["engine"], "--hours")
    caps = {"upload_mbit": upload_mbit, "download_mbit": download_mbit}
    network = replaced(config.network, **{key: mbit for key, mbit in caps.items() if mbit is not None})
    changes["network"] = msgspec.structs.replace(network, listen=[], announce=[]) if no_listen else network
    return msgspec.structs.replace(config, **changes)


def _work_of(counts: RolloutCounts, state: Path) -> str:
    """What a node did since it started, and where more is told."""
    return (
        f"This node: {words.counted(counts.admitted, 'rollout')} admitted, {words.count(counts.refused)} refused. "
        f"Its report: volery report {shlex.quote(str(state))}"
    )


def _go_on(again: str) -> str:
    return f"Stopped. What was acknowledged is on disk; to go on, start {again} again."
