"""Write files and directories that the user named for a result: whole or not at all, and never over another's.

Invariants:

- Afterwards the path is the new file, or what it was before, and nothing is left beside it.
- Only a file is ever replaced, never a directory or a device.
- Of several new files all are written or none (`write_new`).
- If the ending of a name does not tell what it is, only what the same command wrote before is replaced (`require_own`).
  A key or a ledger is never lost to a slip.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from learner.artifacts.atomic_directory import replace_file
from node.runtime.errors import RunError, UsageError

PICTURE = ".png"
PAGE = ".html"


def require_place(path: Path, option: str, *, ending: str = "", makes_directory: bool = False) -> None:
    """Check, before any work is done for it, that `path`, the value of `option`, could be written.

    With `makes_directory` its directory need not exist yet. Raises UsageError if its name has another `ending`,
    RunError if it cannot be written.
    """
    if ending and path.suffix.lower() != ending:
        raise UsageError(f"{option} {path}: the file must end in {ending}. Name such a file.")
    with writing(path, option):
        directory = _replaced(path).parent
        while makes_directory and not directory.exists():
            directory = directory.parent
        if not directory.is_dir():
            raise _error(errno.ENOTDIR if directory.exists() else errno.ENOENT)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise _error(errno.EACCES)


def require_own(path: Path, option: str, what: str, is_own: Callable[[Path], bool]) -> None:
    """Check beforehand that nothing is lost when `path`, the value of `option`, is replaced: it is new, or `is_own`.

    `what` says what any other file is, such as "no recording". That includes an empty file, which may be a lock. Raises
    UsageError; RunError if `is_own` raises OSError.
    """
    with writing(path, option):
        if not path.is_file() or is_own(path):
            return
    raise UsageError(f"{option} {path}: this file is {what}, and was not touched. Name another file, or remove it.")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, and put it in the place of `path`. Raises OSError."""
    target = _replaced(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    partial.touch(exist_ok=False)  # so no link of anybody lies there
    try:
        write(partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, option: str, *, named: str = "file", within: bool = False) -> Iterator[None]:
    """Raise RunError for an OSError inside: `path`, the value of `option`, cannot be written.

    `named`: what `option` takes, a file or a directory. `within`: the error is about a file in `path`, and the message
    names that file if the error does.
    """
    try:
        yield
    except OSError as error:
        shown = (within and error.filename) or path
        raise RunError(f"{shown} cannot be written: {error.strerror}. Name another {named} after {option}.") from None


def _replaced(path: Path) -> Path:
    """Return the file that `path` leads to. Raises OSError if that is something else."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise _error(errno.EISDIR)
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "It is a device, not a file")
    return target


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def write_durably(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all; it is on disk on return. Raises RunError naming it."""
    try:
        replace_file(path, data)
    except OSError as error:
        raise RunError(
            f"{path} cannot be written: {error.strerror}. Free disk space or choose another directory."
        ) from None


def write_private(path: Path, data: bytes) -> None:
    """Write `path` whole or not at all, for its owner alone to read. Raises OSError."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)  # whoever may read an old one could read this one
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    draft.replace(path)


def require_absent(paths: Iterable[Path], advice: str) -> None:
    """Raise UsageError, which ends with `advice`, if one of the files exists."""
    if there := next((path for path in paths if path.exists() or path.is_symlink()), None):
        raise UsageError(f"{there} already exists, and nothing was written. {advice}")


def write_new(texts: Mapping[Path, str], advice: str) -> None:
    """Write all of the files or none. Raises UsageError if one exists, RunError if one cannot be written."""
    require_absent(texts, advice)
    for directory in dict.fromkeys(path.parent for path in texts):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{directory} cannot be made: {error.strerror}. {advice}") from None
    written: list[Path] = []
    try:
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for made in written:
            with suppress(OSError):
                made.unlink()
        require_absent([path], advice)  # somebody else wrote it just now
        raise RunError(f"{path} cannot be written: {error.strerror}. {advice}") from None


def prepare(out: Path, what: str) -> None:
    """Make `out` an empty directory for a `what`. Raises UsageError if something else is there, and RunError."""
    marker = out / f".volery-{what}"
    with writing(out, "--out", named="directory"):
        if out.exists() and not marker.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} exists and was not made by a {what}; it was not touched. Name another directory after --out."
            )
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        marker.touch()
