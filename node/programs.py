"""The commands that run: `learn` and `join`, each a role with its log, its view and its exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from node.app_learner import run_learner
from node.app_rollout import run_rollout
from node.base_model import base_note
from node.config import NodeConfig, PriceSection, SwarmConfig
from node.config_file import read_node_config, read_swarm_config, replaced, require_hours
from node.console import Terminal, open_terminal, run_shown
from node.door import open_invite, require_addresses, require_model
from node.errors import NodeError, about_keys_of
from node.events import Clock, EventLog
from node.footprint import require_targets
from node.home import require_state
from node.join_dry_run import show_join
from node.learner_run import LearnerRun
from node.metrics.opening import require_sinks
from node.orders import owner_signals
from node.reports.facts import Role
from node.reports.words import counted
from node.resuming import LEDGER, fork, require_checkpoint, require_memory, require_one, unfork
from node.rollout_role import RolloutRole
from node.schooling import Schooling, open_schooling
from node.stopping import STOPPED_EXIT_CODE, Stopped
from node.trainer_process import TRAINER
from node.verifiers import require_here
from node.view import ViewState
from node.view_events import follow
from node.volunteer import VolunteerHome

EVENTS_FILE = "events.jsonl"


async def learn(
    path: Path, *, plain: bool, resume: bool = False, fork_from: str = "", trainer: Sequence[str] = TRAINER
) -> int:
    """`volery learn`; `trainer` is the command of the trainer's process.

    With `resume` it refuses to begin anew; `fork_from` names the run, RUN or RUN@STEP, that it begins with.
    """
    config = read_swarm_config(path)
    schooling = checked(config, path)
    state_directory = Path(config.swarm.state)
    require_one(resume=resume, fork_from=fork_from)
    if resume:
        require_checkpoint(state_directory)
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
            terminal.say(f"Invite for volunteers (run it there):\n\n  volery join {invite}\n")

        async def leave() -> None:
            if running is not None:
                await running.leave()

        try:
            with about_keys_of(path):
                outcome = await run_shown(
                    terminal, lambda: run_learner(config, schooling, events, ready, trainer=trainer), leave=leave
                )
        except Stopped:
            return _stopped(terminal, f"volery learn {path}")
        except NodeError:
            if fork_from and (running is None or not running.opened.is_set()):
                unfork(state_directory)
            raise
        finally:
            events.close()
    terminal.say(f"Finished after {counted(outcome.steps, 'step')}. Who did what: volery report {path}")
    return 0


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
        base_note(config, Path(config.swarm.state) / LEDGER)
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
    require_addresses(settings.network.listen, settings.network.announce)
    if dry_run:
        print(await show_join(word, settings, state=state, wait_s=wait_s))
        return 0
    events = EventLog()
    view = ViewState(role=Role.ROLLOUT, title=word.name)
    follow(view, events)
    with owner_signals() as signals, open_terminal(view, plain=plain) as terminal:
        node: RolloutRole | None = None

        def ready(home: VolunteerHome, role: RolloutRole) -> None:
            nonlocal node
            node = role
            terminal.say(f"Joined {word.name or 'the swarm'}. State: {home.root}")

        async def leave() -> None:
            if node is not None:
                await node.leave()

        try:
            outcome = await run_shown(
                terminal,
                lambda: run_rollout(
                    word, settings, events, state=state, wait_s=wait_s, on_ready=ready, signals=signals
                ),
                leave=leave,
            )
        except Stopped:
            return _stopped(terminal, "the same command")
        finally:
            events.close()
    terminal.say(
        f"{outcome.reason} This node: {counted(outcome.admitted, 'rollout')} admitted, {outcome.refused:,} refused. "
        f"Its report: volery report {outcome.state}"
    )
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


def _stopped(terminal: Terminal, again: str) -> int:
    terminal.refresh()  # what happened before comes before
    terminal.say(f"Stopped. What was acknowledged is on disk; to go on, start {again} again.")
    return STOPPED_EXIT_CODE
