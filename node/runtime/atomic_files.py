"""Files and directories that somebody named for a result: written whole or not at all, and never over another's.

What always holds: afterwards the path is the new file, or what it was before, and nothing is left beside it. Only a
file is ever replaced: no directory and no device, whoever asks. Where a name has no ending that says what it is, only
what the same command wrote before is replaced (`require_own`): a key or a ledger is never lost to a slip.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from learner.artifacts.atomic_directory import replace_file
from node.runtime.errors import RunError, UsageError

PICTURE = ".png"
PAGE = ".html"


def require_place(path: Path, option: str, *, ending: str = "", makes_directory: bool = False) -> None:
    """Find out, before any work is done for it, that `path`, named after `option`, could be written.

    With `makes_directory` its directory need not be there yet. Raises UsageError where its name has another `ending`,
    RunError where it cannot be written.
    """
    if ending and path.suffix.lower() != ending:
        raise UsageError(f"{option} {path}: what is written there ends in {ending}. Name such a file.")
    with writing(path, option):
        directory = _replaced(path).parent
        while makes_directory and not directory.exists():
            directory = directory.parent
        if not directory.is_dir():
            raise _error(errno.ENOTDIR if directory.exists() else errno.ENOENT)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise _error(errno.EACCES)


def require_own(path: Path, option: str, what: str, is_own: Callable[[Path], bool]) -> None:
    """Find out beforehand that nothing is lost when `path`, named after `option`, is replaced: it is new, or `is_own`.

    `what` says what anything else is, as "no recording"; an empty file is that, too, since it may be a lock.
    Raises UsageError; RunError where `is_own` raises OSError.
    """
    with writing(path, option):
        if not path.is_file() or is_own(path):
            return
    raise UsageError(f"{option} {path}: what is there is {what}, and was not touched. Name another file, or remove it.")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, and put that in its place. Raises OSError."""
    target = _replaced(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    partial.touch(exist_ok=False)  # nobody's link lies there
    try:
        write(partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, option: str, *, named: str = "file", within: bool = False) -> Iterator[None]:
    """Raise RunError for an OSError inside: `path`, named after `option`, cannot be written.

    `named` says what `option` takes, a file or a directory; `within`: what cannot be written is a file in `path`, and
    is named where the error says which.
    """
    try:
        yield
    except OSError as error:
        shown = (within and error.filename) or path
        raise RunError(f"{shown} cannot be written: {error.strerror}. Name another {named} after {option}.") from None


def _replaced(path: Path) -> Path:
    """The file that `path` leads to. Raises OSError where that is something else."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise _error(errno.EISDIR)
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "It is a device, not a file")
    return target


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def write_durably(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all, and on disk when this returns. Raises RunError naming it."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror}. Free the disk or choose another directory."
        ) from None


def prepare(out: Path, what: str) -> None:
    """Make `out` an empty directory of a `what`'s. Raises UsageError when something else is there, and RunError."""
    marker = out / f".volery-{what}"
    with writing(out, "--out", named="directory"):
        if out.exists() and not marker.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} exists and was not made by a {what}; it was not touched. Name another directory after --out."
            )
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        marker.touch()
