"""Open a rollout node's state directory: one for each swarm and node on this machine.

    <state>/node.key  invite  store/  receipts.sqlite  events.jsonl  lock

Invariants:

- A directory is used by one process at a time.
- If no directory is named, the first free one of `node-1`, `node-2`, ... below the user's data directory is used. So
  several nodes of one swarm on one machine do not disturb each other, and find their own directories again.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from learner.artifacts.regular_file import open_lock
from node.config.invite_text import INVITE_FILE
from node.runtime.atomic_files import write_private
from node.runtime.errors import RunError, UsageError
from protocol.core.ids import SwarmId
from protocol.core.invite import Invite, write_invite

MAX_NODES = 64
"""Most nodes of one swarm on one machine, if directories are chosen for them."""


@dataclass(frozen=True, kw_only=True)
class RolloutStateDir:
    """A state directory that is ours until the program ends."""

    root: Path
    lock: BinaryIO
    others: tuple[str, ...] = ()
    """Directories of the nodes of this swarm that run beside it, as far as the choice of ours showed them."""

    @property
    def key(self) -> Path:
        return self.root / "node.key"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def receipts(self) -> Path:
        return self.root / "receipts.sqlite"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"


def open_volunteer_home(state: Path | None, swarm: SwarmId) -> RolloutStateDir:
    """Lock `state`, or the first free directory for `swarm`. Raises RunError naming the directory."""
    if state is not None:
        home = _take(state)
        if home is None:
            raise RunError(f"{state} is used by another volery node. Choose another directory with --state.")
        return home
    base = swarm_directory(swarm)
    others: list[str] = []
    for number in range(1, MAX_NODES + 1):
        if (home := _take(base / f"node-{number}")) is not None:
            return replace(home, others=tuple(others))
        others.append(f"node-{number}")
    raise RunError(f"{base}: all {MAX_NODES} directories are in use. Name another with --state.")


def keep_invite(root: Path, invite: Invite) -> None:
    """Write the invite into a node's state directory, for its owner alone: it holds the join token.

    `volery service install` starts a node with it that has joined. Raises RunError.
    """
    path = root / INVITE_FILE
    try:
        write_private(path, f"{write_invite(invite)}\n".encode())
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}. Check who owns it, and the disk.") from None


def data_directory() -> Path:
    """Return where nodes keep their state by default: $VOLERY_HOME, or volery below the user's data directory.

    Raises UsageError if there is neither.
    """
    if home := os.environ.get("VOLERY_HOME"):
        return Path(home)
    try:
        return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "volery"
    except RuntimeError:  # in a container, with a user that the system does not know
        raise UsageError(
            "This user has no home directory to keep a node's state in. Set VOLERY_HOME to a directory that it may use."
        ) from None


def swarm_directory(swarm: SwarmId) -> Path:
    """Return where the nodes of one swarm keep their state by default."""
    return data_directory() / swarm.hex()[:16]


def _take(root: Path) -> RolloutStateDir | None:
    if (root / "learner.key").exists():
        raise UsageError(f"{root} is a learner's state. Name another directory with --state.")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = open_lock(root / "lock")
    except OSError as error:
        path = error.filename or root
        raise RunError(f"{path} cannot be used: {error.strerror}. Name a writable directory with --state.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        lock.close()
        raise RunError(f"{root} cannot be locked: {error.strerror}. Name another directory with --state.") from None
    return RolloutStateDir(root=root, lock=lock)
