"""From what a run begins: its own last checkpoint, if there must be one, or a checkpoint of another run.

What always holds: nothing is made before everything that can be looked at fits (the checkpoint, the tasks); a forked
state directory appears whole or not at all, and the run that it comes from is only read. A fork is a swarm of its own,
with its own keys, id and ledger: its first incarnation is the one of before, cut off at the checkpoint, so that steps,
schedule and the names of versions go on counting from there.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.artifacts.atomic_directory import sync_directory
from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.rows import CheckpointRow
from learner.ledger.sqlite.database import LedgerError, is_blank, require_sound
from learner.ledger.sqlite.files import rescued_files
from node.config.swarm_config import SwarmConfig
from node.learner_role.scheduling.recovery import require_leases
from node.learner_role.training.fixed_settings import SEED, TASKS, require_fixed
from node.runtime.errors import RunError, UsageError, as_run_error, naming
from node.state.learner_state import open_learner_home
from node.state.locate import find_place
from protocol.core.genesis import Authority

CHECKPOINTS = "checkpoints"
LEDGER = "ledger.sqlite"
HEAD = "trainer.json"
"""What every checkpoint has."""


def require_one(*, resume: bool, fork_from: str) -> None:
    """Refuse two beginnings at once. Raises UsageError."""
    if resume and fork_from:
        raise UsageError("--resume goes on with this swarm, --fork-from begins another: choose one.")


def require_checkpoint(state: Path) -> None:
    """Refuse a state directory from which a start would begin anew. Raises UsageError, RunError."""
    if is_blank(state / LEDGER) or not _checkpoints(state):
        raise UsageError(
            f"--resume: {state} has no checkpoint to go on from. Check [swarm] state, or leave --resume away to begin "
            "anew."
        )


def require_memory(state: Path) -> None:
    """Refuse a state whose ledger cannot be read, or is gone, or empty, though its learner has worked: it would begin
    anew under the names of versions that others have, who take none that they know. Raises RunError."""
    if not is_blank(state / LEDGER):
        _checkpoints(state)
    elif any((state / CHECKPOINTS).glob("*")):
        kept = rescued_files(state / LEDGER)
        copy = f"a copy ({kept[-1]} holds what was there when it was taken away)" if kept else "a copy"
        raise RunError(
            f"{state / LEDGER} is missing or empty, and {state / CHECKPOINTS} tells that this learner has worked."
            f" Restore it from {copy}, or choose another [swarm] state to begin anew."
        )


def require_ledger(state: Path, authority: Authority) -> None:
    """Refuse a ledger that no learner of this swarm could open and go on with, in its words. Reads all of it: a GB
    takes 5 s. Raises RunError."""
    with as_run_error(LedgerError):
        require_sound(state / LEDGER, authority.swarm)
        require_leases(state / LEDGER, authority.swarm)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A checkpoint of another run: the run's state directory and its swarm's id, and the checkpoint's row there."""

    state: Path
    swarm: bytes
    row: CheckpointRow


def find_origin(source: str, config: SwarmConfig, restore: Callable[[Mapping[str, Any]], None]) -> Origin:
    """What `source`, RUN or RUN@STEP, names, if a fork of it can be made in the state directory of `config`.

    `restore` is given the curriculum's state, and may raise. Raises UsageError or RunError. Nothing is made.
    """
    state = Path(config.swarm.state)
    if state.exists() and (not state.is_dir() or any(state.iterdir())):
        what = "not empty" if state.is_dir() else "a file"
        raise UsageError(
            f"--fork-from: {state} is {what}, and a fork is a new swarm. Choose another [swarm] state, or leave "
            "--fork-from away to go on with what is there."
        )
    run, step = _parse(source)
    with naming(f"--fork-from {source}"):
        origin = find_place(Path(run)).state
    if is_blank(origin / LEDGER):
        raise UsageError(f"--fork-from {source}: {origin} holds no learner's run. Name its swarm.toml or its state.")
    with as_run_error(LedgerError), read_ledger(origin / LEDGER) as ledger:
        swarm, rows = ledger.training.swarm(), ledger.training.checkpoints()
    row = _choose(source, rows, step)
    if row.step >= config.learn.steps:
        raise UsageError(
            f"--fork-from {source}: it begins with step {row.step}, and [learn] steps = {config.learn.steps} leaves "
            f"nothing to train. Raise steps above {row.step}, or name an earlier checkpoint."
        )
    with naming(f"--fork-from {source}"):
        require_fixed(config, origin / LEDGER, (SEED,))
        restore(row.state)
        require_fixed(config, origin / LEDGER, (TASKS,))
    return Origin(state=origin, swarm=swarm, row=row)


def fork(source: str, config: SwarmConfig, restore: Callable[[Mapping[str, Any]], None], now_ms: int) -> int:
    """Make the state directory of `config` begin with the checkpoint that `source` names; return its step.

    As `find_origin`; what raises has made nothing.
    """
    state = Path(config.swarm.state)
    origin = find_origin(source, config, restore)
    try:
        with as_run_error(LedgerError):
            _build(state, config, origin, now_ms)
    except OSError as error:
        raise RunError(
            f"--fork-from {source}: {error.filename or state}: {error.strerror}. Free the disk, or begin again if that "
            "run has replaced its checkpoint meanwhile."
        ) from error
    return origin.row.step


def unfork(state: Path) -> None:
    """Take back a fork that could not be begun with, since the trainer has refused it: nothing has come of it yet."""
    with read_ledger(state / LEDGER) as ledger:
        begun = len(ledger.training.begun()) > 1
    if not begun:
        shutil.rmtree(state, ignore_errors=True)


def checkpoints_in(state: Path) -> list[CheckpointRow]:
    """The durable states in `state`, newest first; none where nothing is there yet. Raises RunError."""
    return [] if is_blank(state / LEDGER) else _checkpoints(state)


def _checkpoints(state: Path) -> list[CheckpointRow]:
    with as_run_error(LedgerError), read_ledger(state / LEDGER) as ledger:
        return ledger.training.checkpoints()


def _parse(source: str) -> tuple[str, int | None]:
    run, at, step = source.rpartition("@")
    return (run, int(step)) if at and step.isascii() and step.isdigit() else (source, None)


def _choose(source: str, rows: list[CheckpointRow], step: int | None) -> CheckpointRow:
    there = [row for row in rows if step in (None, row.step)]
    if there:
        return there[0]
    steps = ", ".join(str(row.step) for row in rows) or "none yet"
    raise UsageError(f"--fork-from {source}: that run has no such checkpoint. Steps that it keeps: {steps}.")


def _build(state: Path, config: SwarmConfig, origin: Origin, now_ms: int) -> None:
    row = origin.row
    draft = state.with_name(f".{state.name}.fork")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        name = f"1.{row.step}"
        _copy(origin.state / CHECKPOINTS / row.directory, draft / CHECKPOINTS / name)
        home = open_learner_home(
            draft, name=config.swarm.name, certificate_days=config.swarm.certificate_days, now_ms=now_ms
        )
        home.close()
        copied = CheckpointRow(step=row.step, incarnation=1, directory=name, state=row.state)
        with Ledger(home.ledger, swarm=home.authority.swarm) as ledger:
            ledger.training.forked(copied, origin.swarm, now_ms)
        state.parent.mkdir(parents=True, exist_ok=True)
        draft.rename(state)
        sync_directory(state.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _copy(source: Path, target: Path) -> None:
    """Checkpoints never change, so on one disk links are enough. Raises OSError."""
    target.mkdir(parents=True)
    for path in sorted(source.rglob("*")):
        there = target / path.relative_to(source)
        if path.is_dir():
            there.mkdir()
            continue
        try:
            os.link(path, there)
        except OSError:
            shutil.copyfile(path, there)
            with there.open("rb") as file:
                os.fsync(file.fileno())
    if not (target / HEAD).is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source / HEAD))
    sync_directory(target)
