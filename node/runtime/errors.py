"""Define the errors that end the program with a paragraph instead of a traceback.

Each message names the file or field, and the next thing to do. Exit codes: 2 for usage (arguments, configuration, an
invite), 1 for trouble at run time (disk, network, a child that keeps failing).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHOWN_CHARS = 160
"""Most characters of a typed text that a message repeats: two lines of a terminal hold nearly every path whole."""

WRONG_NAMES = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENXIO)
"""Errors of the system that mean that a name was wrong. Others mean that the disk or a right is."""


HERE_IS_GONE = "The directory that this was started in no longer exists. Go to another one (cd), and do the same again."


class NodeError(Exception):
    """Base of these errors. `exit_code`: what the program ends with. `label`: how the message begins."""

    exit_code = 1
    label = "error"


class UsageError(NodeError):
    """The user asked for something impossible: a wrong argument, configuration, invite, model or task."""

    exit_code = 2
    label = "usage"


class NotAllowed(UsageError):
    """The learner refuses this node, for example because it is banned. Only the operator can change that, so starting
    again is as useless as after a wrong argument."""

    label = "refused"


class RunError(NodeError):
    """Something failed during the run. Durable state is safe, and starting again resumes."""


def shortened(text: str) -> str:
    """Return as much of a typed text as a message has room for."""
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def unwritable_output(error: OSError) -> RunError:
    """Return what to report if standard output cannot be written."""
    return RunError(f"standard output cannot be written: {error.strerror}. Free disk space, or redirect it.")


def of_file(error: OSError) -> NodeError | None:
    """Return the error that says that a path of the user's cannot be used; None if `error` names no file."""
    from protocol.core.invite import holds_invite

    if not isinstance(error.filename, str | bytes):
        return UsageError(HERE_IS_GONE) if error.errno == errno.ENOENT and _here_is_gone() else None
    name, why = shortened(os.fsdecode(error.filename)), error.strerror
    if holds_invite(name):
        return UsageError(f"{name} is an invite, which `volery join` takes. Name a file or a directory here.")
    if error.errno in (errno.EACCES, errno.EPERM):
        return RunError(f"{name} cannot be used: {why}. Do this as the user who owns it.")
    if error.errno in WRONG_NAMES:
        return UsageError(f"{name} cannot be used: {why}. Name another file or directory.")
    return RunError(f"{name} cannot be used: {why}. Correct that, and do the same again.")


def _here_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Begin the message of a NodeError that is raised inside with `where`: a key, an option or a file."""
    try:
        yield
    except NodeError as error:
        raise type(error)(f"{where}: {error}") from error


@contextmanager
def as_run_error(*kinds: type[Exception]) -> Iterator[None]:
    """Raise RunError for errors of these kinds inside, with their own text, which says what to do."""
    try:
        yield
    except kinds as error:
        raise RunError(str(error)) from error


@contextmanager
def about_keys_of(file: Path) -> Iterator[None]:
    """Name the file in the message of a NodeError inside that begins with a key, such as "[section] key"."""
    try:
        yield
    except NodeError as error:
        if not str(error).startswith("["):
            raise
        raise type(error)(f"{file}: {error}") from error
