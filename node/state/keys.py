"""Keep keys on disk: created once, with mode 0600, never overwritten.

Invariants:

- A key file is either absent or whole and on disk: it is written beside its place and linked into it.
- A file that others may read is refused, because anybody who copied the key could act as the peer.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from learner.artifacts.atomic_directory import sync_directory
from learner.artifacts.regular_file import read_file
from node.runtime.errors import RunError, UsageError
from protocol.core.identity import Keypair

KEY_BYTES = 32

MOST_BYTES = 4096
"""Most bytes of a file that holds a key: 64 digits, and blanks around them."""


def load_or_create_key(path: Path) -> Keypair:
    """Return the key in `path`, after creating it if there is none. Raises UsageError or RunError naming the file."""
    return Keypair(load_or_create_secret(path))


def load_or_create_secret(path: Path) -> bytes:
    """Return the 32 secret bytes in `path` (hex, one line), after creating them if there is no such file."""
    try:
        if not path.exists():
            _create(path)
        return _load(path)
    except PermissionError as error:
        raise RunError(f"{path} cannot be used: {error.strerror}. Check who owns it and its directory.") from None
    except OSError as error:
        raise RunError(
            f"{path} cannot be used: {error.strerror}. Correct that, or choose another state directory."
        ) from None


def load_key(path: Path) -> Keypair:
    """Return the key in `path`, which must exist. Raises UsageError or RunError naming the file."""
    if not path.exists():
        raise UsageError(f"{path}: no such key.")
    return Keypair(load_or_create_secret(path))


def _load(path: Path) -> bytes:
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UsageError(f"{path} can be read by others. Make it private first: chmod 600 {path}.")
    try:
        raw = bytes.fromhex(read_file(path, MOST_BYTES).decode("ascii").strip())
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise UsageError(
            f"{path} is not a key: expected 64 hex digits. Restore it from a copy, or move it away to get a new one."
        )
    return raw


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # fails if another process created it meanwhile: then that is the key
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(path.parent)
