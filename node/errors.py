"""What ends the program with a paragraph instead of a traceback.

Each message names the file or field concerned and the next thing to do. Exit codes: 2 for usage (arguments,
configuration, an invite), 1 for trouble at run time (disk, network, a child that keeps failing).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NodeError(Exception):
    """Base. `exit_code` is what the program ends with."""

    exit_code = 1


class UsageError(NodeError):
    """The user asked for something that cannot be: a wrong argument, configuration, invite, model or task."""

    exit_code = 2


class RunError(NodeError):
    """Something failed while running. What was durable stays so; starting again resumes."""


@contextmanager
def naming(where: str) -> Iterator[None]:
    """What ends the program inside says where: a key, an option or a file comes before it."""
    try:
        yield
    except NodeError as error:
        raise type(error)(f"{where}: {error}") from error


@contextmanager
def about_keys_of(file: Path) -> Iterator[None]:
    """What ends the program inside and begins with a key, as "[section] key", says which file has it."""
    try:
        yield
    except NodeError as error:
        if not str(error).startswith("["):
            raise
        raise type(error)(f"{file}: {error}") from error
