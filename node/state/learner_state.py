"""Open a learner's state directory: its keys, its swarm, its certificate and its lock.

    <state>/operator.key  learner.key  lease.secret     0600, created once
            genesis                                     what founded the swarm, signed by the operator
            certificate                                 the operator's certificate for the learner's key
            ledger.sqlite  store/  checkpoints/  exports/  events.jsonl  recording.jsonl  invite  lock

Invariants:

- A directory is used by one process at a time.
- The swarm id follows from `genesis` and never changes.
- The operator's key is only needed to certify, so it may be kept elsewhere in the meantime.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from learner.artifacts.regular_file import open_file, open_lock, read_file
from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError, UsageError
from node.state.identities import require_learner
from node.state.keys import load_key, load_or_create_key, load_or_create_secret
from protocol.core.dates import DAY_MS, moment
from protocol.core.errors import PeerError
from protocol.core.genesis import (
    Authority,
    LearnerCertificate,
    certify_learner,
    found_swarm,
    open_certificate,
    read_genesis,
)
from protocol.core.identity import Keypair
from protocol.core.ids import PublicKey

OPERATOR_KEY, LEARNER_KEY, SECRET = KEYS = ("operator.key", "learner.key", "lease.secret")

RENEW_BEFORE_MS = 7 * DAY_MS
"""A certificate that ends within this time is renewed at the start, if the operator's key is here."""

BACKDATED_MS = DAY_MS
"""A new certificate is valid from this long ago, for nodes whose clocks are behind."""


@dataclass(frozen=True, kw_only=True)
class LearnerStateDir:
    """An opened state directory, which is ours until the program ends or `close`."""

    root: Path
    lock: BinaryIO
    genesis: bytes
    authority: Authority
    learner: Keypair
    certificate: bytes
    secret: bytes

    def close(self) -> None:
        """Let another process open the directory."""
        self.lock.close()

    @property
    def ledger(self) -> Path:
        return self.root / "ledger.sqlite"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def exports(self) -> Path:
        return self.root / "exports"


def open_learner_home(root: Path, *, name: str, certificate_days: float, now_ms: int) -> LearnerStateDir:
    """Open the swarm whose state is in `root`, or found one. Raises UsageError or RunError naming the file."""
    lock = _take(root)
    try:
        genesis = _genesis(root, name, now_ms)
        authority = read_genesis(genesis)[1]
        there = root / LEARNER_KEY
        _require_keys(root, authority, load_key(there) if there.exists() else None)
        learner = load_or_create_key(there)
        certificate = _certificate(root, authority, learner, certificate_days, now_ms)
        secret = load_or_create_secret(root / SECRET)
    except BaseException:
        lock.close()
        raise
    return LearnerStateDir(
        root=root,
        lock=lock,
        genesis=genesis,
        authority=authority,
        learner=learner,
        certificate=certificate,
        secret=secret,
    )


@contextmanager
def held_state(root: Path) -> Iterator[Authority]:
    """Lock every learner out of a founded state directory, and yield its swarm. Raises UsageError, RunError."""
    lock = _take(root)
    try:
        yield genesis_at(root / "genesis")[1]
    finally:
        lock.close()


def require_home(root: Path, *, now_ms: int) -> Authority | None:
    """Check that `open_learner_home` could open a state directory, and create nothing. Return its swarm, None before it
    was founded. Raises the same UsageError or RunError."""
    require_state(root)
    lock = root / "lock"
    if lock.is_file():
        with open_file(lock) as held:
            _hold(root, held)
    keys = {name: load_key(root / name) for name in KEYS if (root / name).exists()}
    if not _is_founded(root):
        return None
    authority = genesis_at(root / "genesis")[1]
    _require_keys(root, authority, keys.get(LEARNER_KEY))
    if _valid_certificate(root, authority, keys.get(LEARNER_KEY), now_ms) is None:
        _operator(root, authority)
    return authority


def require_state(root: Path) -> None:
    """Raise UsageError or RunError for a path that cannot be a learner's state directory, without creating it."""
    if (root / "node.key").exists():
        raise UsageError(f"[swarm] state: {root} is a rollout node's state. Choose another [swarm] state.")
    place = next(parent for parent in (root, *root.parents) if parent.exists())
    if not place.is_dir():
        raise _unusable(root, f"{place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise _unusable(root, f"{place} may not be written to")


def _unusable(path: Path, why: str | None) -> RunError:
    return RunError(f"[swarm] state: {path} cannot be used: {why}. Choose another [swarm] state.")


def _take(root: Path) -> BinaryIO:
    """Lock `root`: two learners with one key and one ledger would sign two versions under one name."""
    require_state(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = open_lock(root / "lock")
    except OSError as error:
        raise _unusable(error.filename or root, error.strerror) from None
    try:
        _hold(root, lock)
    except BaseException:
        lock.close()
        raise
    return lock


def _hold(root: Path, lock: BinaryIO) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not isinstance(error, BlockingIOError):
            raise _unusable(root, f"it cannot be locked: {error.strerror}") from None
        raise RunError(
            f"{root} is used by a learner that is running. Stop that one first, or choose another [swarm] state."
        ) from None


def _is_founded(root: Path) -> bool:
    """Return whether the swarm exists already. Raises UsageError if only parts of it do."""
    path = root / "genesis"
    if path.exists():
        return True
    later = (LEARNER_KEY, "certificate", SECRET, "ledger.sqlite")
    if any((root / name).exists() for name in later):  # a new genesis would make another swarm with the old keys
        raise UsageError(f"{path} is missing: it says which swarm this is. Restore it from a copy.")
    return False


def _require_keys(root: Path, authority: Authority, learner: Keypair | None) -> None:
    """Raise UsageError or RunError if the keys are not those of before."""
    if (root / OPERATOR_KEY).exists():
        _operator(root, authority)
    if (root / "certificate").exists():
        require_learner(root / LEARNER_KEY, learner, PublicKey(_certificate_at(root, authority).learner))


def _certificate_at(root: Path, authority: Authority) -> LearnerCertificate:
    path = root / "certificate"
    try:
        return open_certificate(_read(path), authority)
    except PeerError as error:
        raise UsageError(f"{path} is not a certificate of this swarm ({error}). Restore it from a copy.") from None


def _genesis(root: Path, name: str, now_ms: int) -> bytes:
    path = root / "genesis"
    if _is_founded(root):
        return genesis_at(path)[0]
    operator = load_or_create_key(root / OPERATOR_KEY)
    raw, _ = found_swarm(operator, name=name, created_ms=now_ms, nonce=secrets.token_bytes(16))
    write_durably(path, raw)
    return raw


def genesis_at(path: Path) -> tuple[bytes, Authority]:
    """Return the genesis in a file, and its swarm. Raises UsageError, RunError."""
    raw = _read(path)
    try:
        return raw, read_genesis(raw)[1]
    except PeerError as error:
        raise UsageError(f"{path} is not a swarm's genesis ({error}). Restore it from a copy.") from None


def _certificate(root: Path, authority: Authority, learner: Keypair, days: float, now_ms: int) -> bytes:
    if (valid := _valid_certificate(root, authority, learner, now_ms)) is not None:
        return valid
    raw = certify(root, authority, learner, days, now_ms)
    write_durably(root / "certificate", raw)
    return raw


def certify(root: Path, authority: Authority, learner: Keypair, days: float, now_ms: int) -> bytes:
    """Return a certificate for the learner's key, valid from now on, by the key in `root`. Raises UsageError or
    RunError."""
    return certify_learner(
        _operator(root, authority),
        authority,
        learner=PublicKey(learner.public),
        not_before_ms=max(0, now_ms - BACKDATED_MS),
        not_after_ms=now_ms + round(days * DAY_MS),
    )


def _valid_certificate(root: Path, authority: Authority, learner: Keypair | None, now_ms: int) -> bytes | None:
    """Return the present certificate if it suffices; None if the operator's key should make another."""
    path = root / "certificate"
    ends_ms = 0
    if path.exists():
        raw, word = _read(path), _certificate_at(root, authority)
        if word.not_before_ms > now_ms:
            raise RunError(
                f"This machine's clock is probably wrong: it shows {moment(now_ms)}, and {path} is valid from "
                f"{moment(word.not_before_ms)} on. Set the clock. If it is right, move that file away for a new one."
            )
        ends_ms = word.not_after_ms if learner is not None and word.learner == learner.public else 0
        if ends_ms > now_ms + RENEW_BEFORE_MS:
            return raw
    operator_key = root / OPERATOR_KEY
    if operator_key.exists():
        return None
    if ends_ms > now_ms:
        return _read(path)
    raise UsageError(
        f"{path} is missing, expired or for another key, and {operator_key} is not here to renew it. Put it back."
    )


def _operator(root: Path, authority: Authority) -> Keypair:
    """Return the key that founded the swarm. Raises UsageError, RunError."""
    operator_key = root / OPERATOR_KEY
    operator = load_key(operator_key)
    if operator.public != authority.operator:
        raise UsageError(f"{operator_key} is not the key that founded this swarm. Put the right one back.")
    return operator


def _read(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}. Check who owns it.") from None
