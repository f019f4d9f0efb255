"""Load the operator's own task, `python:MODULE:NAME`: a class or function in a module beside swarm.toml.

Invariants:

- Code is imported only because the operator's own configuration names it, on the learner's side. Nothing that a peer
  sends can choose it.
- An installed module comes before a file of the same name beside swarm.toml, so such a file cannot replace a library.
- Every failure is a TaskError that says where it happened.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

from node.tasks.api.interface import Task, TaskArguments, TaskError, TaskKind
from node.tasks.api.options import parse_options
from node.tasks.gate import lacking_of


def kind_within(arguments: TaskArguments) -> tuple[TaskKind, TaskArguments] | None:
    """Return the TaskKind called MODULE:NAME, with the options that it declares; None if it is a class or function.

    Raises TaskError."""
    found = _find(arguments)
    if not isinstance(found, TaskKind):
        return None
    text = ",".join(f"{key}={value}" for key, value in arguments.options.items())
    return found, replace(arguments, options=parse_options(found, text))


def _build(arguments: TaskArguments) -> Task:
    found, (module_name, name) = _find(arguments), _named(arguments)
    if (within := kind_within(arguments)) is not None:
        kind, arguments = within
        found = kind.build
    try:
        task = found(arguments)
    except TaskError:
        raise
    except Exception as error:  # the operator's own code, which may raise anything
        raise TaskError(
            f"task 'python': {name} of {module_name} cannot be built: {type(error).__name__}: {error}. It is called "
            "with one TaskArguments, whose options are those of the spec, as text."
        ) from error
    if lacking := lacking_of(task):
        raise TaskError(
            f"task 'python': {name} of {module_name} lacks {', '.join(lacking)}; see docs/operate/write-a-task.md."
        )
    built: Task = task
    return built


def _named(arguments: TaskArguments) -> tuple[str, str]:
    """Return module and name. Raises TaskError."""
    module_name, _, name = arguments.argument.partition(":")
    if not (module_name and name):
        raise TaskError(f"task 'python': {arguments.argument!r} is not MODULE:NAME, as in python:my_task:Countdown.")
    return module_name, name


def _find(arguments: TaskArguments) -> Any:
    module_name, name = _named(arguments)
    if (beside := str(arguments.directory.resolve())) not in sys.path:
        sys.path.append(beside)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the operator's own code, which may raise anything
        raise TaskError(
            f"task 'python': module {module_name!r} cannot be imported: {type(error).__name__}: {error}. It is looked "
            f"for among the installed packages, and in {beside}."
        ) from error
    if not callable(found := getattr(module, name, None)) and not isinstance(found, TaskKind):
        raise TaskError(f"task 'python': {module.__file__} has no class, function or TaskKind called {name!r}.")
    return found


PYTHON = TaskKind(
    name="python",
    summary="your own class, function or TaskKind, in a module beside swarm.toml or installed; it gets the options",
    build=_build,
    argument="MODULE:NAME",
    free_options=True,
)
