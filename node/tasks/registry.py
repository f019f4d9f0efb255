"""Turn a spec, `NAME[:ARGUMENT][:key=value[,key=value]]`, into a task.

Invariants:

- An installed package cannot take over the name of a built-in task.
- The code of a package is loaded only when its task is asked for, or when all tasks are listed.
- Every mistake in a spec is a TaskError that lists what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from node.tasks.adapters.gymnasium_text import GYMNASIUM
from node.tasks.adapters.openenv.task import OPENENV
from node.tasks.adapters.verifiers.task import VERIFIERS
from node.tasks.api.interface import Option, Task, TaskArguments, TaskError, TaskKind
from node.tasks.api.options import parse_options, suggestion, usage
from node.tasks.kinds.code import CODE
from node.tasks.kinds.generated import ARITHMETIC, PRODUCT, REVERSE, SORT
from node.tasks.kinds.guess_and_lookup import GUESS, LOOKUP
from node.tasks.kinds.jsonl import CSV, DATASET, JSONL, PARQUET
from node.tasks.kinds.poker import POKER
from node.tasks.kinds.reasoning_gym import REASONING_GYM
from node.tasks.kinds.sokoban import SOKOBAN
from node.tasks.kinds.with_tools import tools_kind
from node.tasks.python_task import PYTHON

Services = Mapping[str, Mapping[str, Any]]

ENTRY_POINT_GROUP = "volery.tasks"


def _open_within(spec: str, arguments: TaskArguments) -> Task:
    """Open the task inside another task's spec, with that task's directory and seed. Raises TaskError."""
    return open_task(spec, directory=arguments.directory, seed=arguments.seed, services=arguments.services)


BUILT_IN = {
    kind.name: kind
    for kind in (
        *(REVERSE, SORT, PRODUCT, ARITHMETIC, GUESS, LOOKUP, SOKOBAN, POKER, REASONING_GYM, PYTHON),
        *(JSONL, CSV, PARQUET, DATASET, CODE, GYMNASIUM, OPENENV, VERIFIERS, tools_kind(_open_within)),
    )
}

_OPTIONS = re.compile(r"[A-Za-z_]\w*=[^:]*")
"""Matches the last part of a spec if it holds options; an argument such as C:\\x or module:Class does not match."""


def open_task(spec: str, *, directory: Path | None = None, seed: int = 0, services: Services | None = None) -> Task:
    """Return the task that `spec` names.

    Args:
        spec: NAME[:ARGUMENT][:key=value[,key=value]].
        directory: where relative paths start; the working directory by default.
        seed: orders the training problems. The held-out ones are the same for all seeds.
        services: the sections of swarm.toml about reward services (`TaskArguments.services`).

    Raises:
        TaskError: an unknown name or key, a bad value, a file that cannot be used, a package that cannot be loaded.
    """
    return build_task(*read_spec(spec, directory=directory or Path(), seed=seed, services=services))


def read_spec(
    spec: str, *, directory: Path, seed: int, services: Services | None = None
) -> tuple[TaskKind, TaskArguments]:
    """Return the kind that `spec` names, and the arguments for its `build`. Raises TaskError like `open_task`."""
    name, _, rest = spec.partition(":")
    kind = find_kind(name)
    argument, options = _split_rest(kind, rest)
    values = parse_options(kind, options)
    return kind, TaskArguments(
        argument=argument, options=values, directory=directory, seed=seed, services=services or {}
    )


def build_task(kind: TaskKind, arguments: TaskArguments) -> Task:
    """Return the task that the kind builds. Any error of `build` becomes a TaskError."""
    try:
        return cast(Task, kind.build(arguments))  # its gate checks what it is
    except TaskError:
        raise
    except Exception as error:  # a package's own code
        raise TaskError(f"task {kind.name!r} cannot be built: {type(error).__name__}: {error}") from error


def find_kind(name: str) -> TaskKind:
    """Return the kind of that name, built in or installed. Raises TaskError, which lists the known names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name in installed:
        return _load(installed[name])
    known = sorted({*BUILT_IN, *installed})
    raise TaskError(f"there is no task {name!r}{suggestion(name, known)}. Tasks here: {', '.join(known)}.")


def list_kinds() -> tuple[list[TaskKind], list[TaskError]]:
    """Return every kind, sorted by name, and the errors of those that could not be loaded."""
    kinds, errors = list(BUILT_IN.values()), []
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name in BUILT_IN:
            errors.append(TaskError(f"{_origin(entry)} offers a task {entry.name!r}, which is a built-in task's name"))
            continue
        try:
            kinds.append(_load(entry))
        except TaskError as error:
            errors.append(error)
    return sorted(kinds, key=lambda kind: kind.name), errors


def _load(entry: EntryPoint) -> TaskKind:
    try:
        kind = entry.load()
    except Exception as error:  # a package's own code, which may raise anything
        raise TaskError(
            f"task {entry.name!r} of {_origin(entry)} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(kind, TaskKind):
        raise TaskError(f"task {entry.name!r} of {_origin(entry)}: {entry.value} is not a volery.TaskKind")
    return kind


def _origin(entry: EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else f"entry point {entry.value}"


def _split_rest(kind: TaskKind, rest: str) -> tuple[str, str]:
    """Split what follows the name into (argument, options)."""
    if kind.argument is None:
        return "", rest
    argument, colon, last = rest.rpartition(":")
    if not (colon and argument and _OPTIONS.fullmatch(last)):
        argument, last = rest, ""
    if not argument:
        raise TaskError(f"task {kind.name!r} needs {kind.argument}: {usage(kind)}.")
    return argument, last


def list_tasks() -> str:
    """Return the text that lists every task with its spec and options."""
    kinds, errors = list_kinds()
    lines = []
    for kind in kinds:
        lines.append(f"{usage(kind)}\n    {kind.summary}")
        lines += [f"    {option.key:13} {option.help}{_default(option)}" for option in kind.options]
    lines += [f"not usable: {error}" for error in errors]
    return "\n".join(lines)


def tasks_as_values() -> dict[str, list[Any]]:
    """Return the same as lists and dictionaries, for programs."""
    kinds, errors = list_kinds()
    rows = [
        {
            "name": kind.name,
            "usage": usage(kind),
            "summary": kind.summary,
            "options": [{"key": one.key, "help": one.help, "default": one.default} for one in kind.options],
        }
        for kind in kinds
    ]
    return {"tasks": rows, "not_usable": [str(error) for error in errors]}


def _default(option: Option) -> str:
    return "" if option.default == "" else f" (default {option.default})"
