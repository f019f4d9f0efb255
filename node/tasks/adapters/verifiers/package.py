"""Import the package `verifiers`, and load environments with it.

The package is imported when such a task is opened; it depends on some fifty others. Versions 0.1.14 to 0.3 have
`load_environment`, and an `Environment` that plays one rollout with a client that it is given. Version 0.4 has neither:
there an environment is a program that speaks to a server.

Invariants:

- Every failure is a TaskError that says what to do next.
- Loading an environment leaves the process unchanged. The package installs signal handlers, which belong to the owner
  of the process.
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from node.tasks.api.interface import TaskError

INSTALL = "pip install 'verifiers>=0.1.14,<0.4'"

OURS = (signal.SIGINT, signal.SIGTERM)
"""Signals whose handlers an environment of the package replaces when it is made."""


@dataclass(frozen=True, kw_only=True)
class VerifiersPackage:
    """The parts of the package that are used here."""

    version: str
    load_environment: Any
    client: Any
    types: Any
    errors: Any


def import_package() -> VerifiersPackage:
    """Import the package. Raises TaskError if it is missing or of an unsupported version."""
    try:
        found = version("verifiers")
        package = importlib.import_module("verifiers")
        load = getattr(package, "load_environment", None)
        clients = importlib.import_module("verifiers.clients") if load is not None else None
        types = importlib.import_module("verifiers.types") if load is not None else None
        errors = importlib.import_module("verifiers.errors") if load is not None else None
    except PackageNotFoundError:
        raise TaskError(
            f"task 'verifiers' needs the package verifiers, which is not installed. Run: {INSTALL}"
        ) from None
    except ImportError as error:
        raise TaskError(f"task 'verifiers': verifiers {found} cannot be imported ({error}). Run: {INSTALL}") from error
    if clients is None or not hasattr(clients, "Client"):
        raise TaskError(
            f"task 'verifiers': the environments of verifiers {found} cannot be played here. Versions 0.1.14 to 0.3 "
            f"can, because they have `load_environment`. Run: {INSTALL}"
        )
    # Its progress bars would be lines in the learner's log.
    importlib.import_module("datasets").disable_progress_bars()
    return VerifiersPackage(version=found, load_environment=load, client=clients.Client, types=types, errors=errors)


def load_environment(package: VerifiersPackage, name: str, given: Mapping[str, Any], directory: Path) -> Any:
    """Return the environment of that name: a package, or a module in `directory`. Raises TaskError."""
    if (beside := str(directory.resolve())) not in sys.path:
        sys.path.append(beside)
    try:
        with leaving_signals():
            environment = package.load_environment(name, **given)
    except TaskError:
        raise
    except Exception as error:  # from the environment's own code, which may raise anything
        reason = error.__cause__ or error
        raise TaskError(
            f"task 'verifiers': environment {name!r} cannot be loaded: {type(reason).__name__}: {reason}. It is looked "
            f"for among the installed packages, and in {beside}."
        ) from error
    if lacking := [part for part in ("rollout", "get_dataset", "rubric") if not hasattr(environment, part)]:
        raise TaskError(
            f"task 'verifiers': {name!r} gave something of type {type(environment).__name__}, which has no "
            f"{', no '.join(lacking)}. `load_environment` must return a verifiers.Environment."
        )
    return environment


@contextmanager
def leaving_signals() -> Iterator[None]:
    """Restore the signal handlers that the code inside replaces. Python allows this only on the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise TaskError(
            "task 'verifiers' was opened outside the main thread, where the package verifiers cannot load an "
            "environment, because it installs signal handlers. Open the task on the main thread."
        )
    before = {number: signal.getsignal(number) for number in OURS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not installed from Python
                signal.signal(number, handler)
