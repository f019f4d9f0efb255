"""Begin a run with its own newest checkpoint (`--resume`), or with a checkpoint of another run (`--fork-from`).

A fork is a swarm of its own, with its own keys, id and ledger. Its first incarnation is the origin's, cut off at the
checkpoint, so that steps, schedule and names of versions continue from there.

Invariants:

- Nothing is made before all checks pass (the checkpoint, the tasks).
- A forked state directory appears complete or not at all.
- The run that a fork comes from is only read.
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
"""A file that every checkpoint has."""


def require_one(*, resume: bool, fork_from: str) -> None:
    """Raise UsageError if both options are given."""
    if resume and fork_from:
        raise UsageError("--resume continues this swarm, --fork-from begins another: choose one.")


def require_checkpoint(state: Path) -> None:
    """Raise UsageError if the state directory has no checkpoint, RunError if the ledger cannot be read."""
    if is_blank(state / LEDGER) or not _checkpoints(state):
        raise UsageError(
            f"--resume: {state} has no checkpoint to continue from. Check [swarm] state, or leave out --resume to "
            "begin a new run."
        )


def require_memory(state: Path) -> None:
    """Raise RunError if the ledger cannot be read, or is missing or empty although the learner has worked.

    A new run would use the names of versions that nodes have already, and nodes ignore versions that they know.
    """
    if not is_blank(state / LEDGER):
        _checkpoints(state)
    elif any((state / CHECKPOINTS).glob("*")):
        kept = rescued_files(state / LEDGER)
        copy = f"a copy ({kept[-1]} is the ledger as it was when it was removed)" if kept else "a copy"
        raise RunError(
            f"{state / LEDGER} is missing or empty, but {state / CHECKPOINTS} shows that this learner has worked."
            f" Restore the ledger from {copy}, or choose another [swarm] state to begin a new run."
        )


def require_ledger(state: Path, authority: Authority) -> None:
    """Raise RunError if no learner of this swarm could open the ledger and continue with it.

    The message is the learner's. It reads the whole ledger: a GB takes 5 s.
    """
    with as_run_error(LedgerError):
        require_sound(state / LEDGER, authority.swarm)
        require_leases(state / LEDGER, authority.swarm)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A checkpoint of another run: the run's state directory, its swarm's id, and the checkpoint's row."""

    state: Path
    swarm: bytes
    row: CheckpointRow


def find_origin(source: str, config: SwarmConfig, restore: Callable[[Mapping[str, Any]], None]) -> Origin:
    """Return the checkpoint that `source` (RUN or RUN@STEP) names, after checking that `config` can fork it.

    `restore` is called with the curriculum's state, and may raise. Raises UsageError or RunError. Nothing is made.
    """
    state = Path(config.swarm.state)
    if state.exists() and (not state.is_dir() or any(state.iterdir())):
        what = "not empty" if state.is_dir() else "a file"
        raise UsageError(
            f"--fork-from: {state} is {what}, and a fork is a new swarm. Choose another [swarm] state, or leave out "
            "--fork-from to continue the run that is there."
        )
    run, step = _parse(source)
    with naming(f"--fork-from {source}"):
        origin = find_place(Path(run)).state
    if is_blank(origin / LEDGER):
        raise UsageError(
            f"--fork-from {source}: {origin} holds no learner's run. Name the run's swarm.toml or its state directory."
        )
    with as_run_error(LedgerError), read_ledger(origin / LEDGER) as ledger:
        swarm, rows = ledger.training.swarm(), ledger.training.checkpoints()
    row = _choose(source, rows, step)
    if row.step >= config.learn.steps:
        raise UsageError(
            f"--fork-from {source}: the fork begins with step {row.step}, so [learn] steps = {config.learn.steps} "
            f"leaves nothing to train. Raise steps above {row.step}, or name an earlier checkpoint."
        )
    with naming(f"--fork-from {source}"):
        require_fixed(config, origin / LEDGER, (SEED,))
        restore(row.state)
        require_fixed(config, origin / LEDGER, (TASKS,))
    return Origin(state=origin, swarm=swarm, row=row)


def fork(source: str, config: SwarmConfig, restore: Callable[[Mapping[str, Any]], None], now_ms: int) -> int:
    """Make the state directory of `config` with the checkpoint that `source` names, and return its step.

    The arguments are those of `find_origin`. If it raises, nothing was made.
    """
    state = Path(config.swarm.state)
    origin = find_origin(source, config, restore)
    try:
        with as_run_error(LedgerError):
            _build(state, config, origin, now_ms)
    except OSError as error:
        raise RunError(
            f"--fork-from {source}: {error.filename or state}: {error.strerror}. Free the disk, or try again if the "
            "run has replaced its checkpoint meanwhile."
        ) from error
    return origin.row.step


def unfork(state: Path) -> None:
    """Remove a fork that the trainer refused, if no run has begun with it."""
    with read_ledger(state / LEDGER) as ledger:
        begun = len(ledger.training.begun()) > 1
    if not begun:
        shutil.rmtree(state, ignore_errors=True)


def checkpoints_in(state: Path) -> list[CheckpointRow]:
    """Return the durable checkpoints in `state`, newest first; empty for a new state. Raises RunError."""
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
    raise UsageError(f"--fork-from {source}: that run has no such checkpoint. It has checkpoints of steps: {steps}.")


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
    """Copy a checkpoint. It never changes, so hard links are enough on one disk. Raises OSError."""
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
