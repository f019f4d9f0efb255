"""From a spec, `NAME[:ARGUMENT][:key=value[,key=value]]`, to a task.

What always holds: built-in names cannot be taken over by an installed package; a package's code is loaded only when
its task is asked for, or all are listed; every mistake in a spec is a TaskError that lists what would have been
right."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from node.tasks.api.interface import Task, TaskArguments, TaskError, TaskKind
from node.tasks.api.options import parse_options, suggestion, usage
from node.tasks.kinds.code import CODE
from node.tasks.kinds.generated import ARITHMETIC, REVERSE, SORT
from node.tasks.kinds.guess_and_lookup import GUESS, LOOKUP
from node.tasks.kinds.jsonl import JSONL
from node.tasks.kinds.poker import POKER
from node.tasks.kinds.reasoning_gym import REASONING_GYM
from node.tasks.kinds.sokoban import SOKOBAN
from node.tasks.python_task import PYTHON

ENTRY_POINT_GROUP = "volery.tasks"

BUILT_IN = {
    kind.name: kind
    for kind in (REVERSE, SORT, ARITHMETIC, GUESS, LOOKUP, SOKOBAN, POKER, JSONL, CODE, REASONING_GYM, PYTHON)
}

_OPTIONS = re.compile(r"[A-Za-z_]\w*=[^:]*")
"""What the last part of a spec looks like when it is options; an argument such as C:\\x or module:Class does not."""


def open_task(spec: str, *, directory: Path | None = None, seed: int = 0) -> Task:
    """The task that `spec` names.

    Args:
        spec: see the module's paragraph.
        directory: what relative paths are relative to, the working directory by default.
        seed: orders the training problems; the held-out ones are the same for all seeds.

    Raises:
        TaskError: an unknown name or key, a bad value, a file that cannot be used, a package that cannot be loaded.
    """
    name, _, rest = spec.partition(":")
    kind = find_kind(name)
    argument, options = _split_rest(kind, rest)
    arguments = TaskArguments(
        argument=argument, options=parse_options(kind, options), directory=directory or Path(), seed=seed
    )
    try:
        return kind.build(arguments)
    except TaskError:
        raise
    except Exception as error:  # a package's own code
        raise TaskError(f"task {name!r} cannot be built: {type(error).__name__}: {error}") from error


def find_kind(name: str) -> TaskKind:
    """The kind of that name, built in or installed. Raises TaskError listing the names there are."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name in installed:
        return _load(installed[name])
    known = sorted({*BUILT_IN, *installed})
    raise TaskError(f"there is no task {name!r}{suggestion(name, known)}. Tasks here: {', '.join(known)}.")


def list_kinds() -> tuple[list[TaskKind], list[TaskError]]:
    """Every kind there is, by name, and what went wrong with those that could not be loaded."""
    kinds, errors = list(BUILT_IN.values()), []
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name in BUILT_IN:
            errors.append(TaskError(f"{_origin(entry)} offers a task {entry.name!r}, which is the name of a built-in"))
            continue
        try:
            kinds.append(_load(entry))
        except TaskError as error:
            errors.append(error)
    return sorted(kinds, key=lambda kind: kind.name), errors


def _load(entry: EntryPoint) -> TaskKind:
    try:
        kind = entry.load()
    except Exception as error:  # a package's own code, which may fail in its own way
        raise TaskError(
            f"task {entry.name!r} of {_origin(entry)} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(kind, TaskKind):
        raise TaskError(f"task {entry.name!r} of {_origin(entry)}: {entry.value} is no node.tasks.TaskKind")
    return kind


def _origin(entry: EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else f"entry point {entry.value}"


def _split_rest(kind: TaskKind, rest: str) -> tuple[str, str]:
    """(argument, options) of what follows the name."""
    if kind.argument is None:
        return "", rest
    argument, colon, last = rest.rpartition(":")
    if not (colon and argument and _OPTIONS.fullmatch(last)):
        argument, last = rest, ""
    if not argument:
        raise TaskError(f"task {kind.name!r} needs {kind.argument}: {usage(kind)}.")
    return argument, last


def list_tasks() -> str:
    """Every task with its form and options."""
    kinds, errors = list_kinds()
    lines = []
    for kind in kinds:
        lines.append(f"{usage(kind)}\n    {kind.summary}")
        lines += [f"    {option.key:12} {option.help} (default {option.default})" for option in kind.options]
    lines += [f"not usable: {error}" for error in errors]
    return "\n".join(lines)
