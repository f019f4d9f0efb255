"""From a spec, `NAME[:ARGUMENT][:key=value[,key=value]]`, to a task.

What always holds: built-in names cannot be taken over by an installed package; a package's code is loaded only when
its task is asked for, or all are listed; every mistake in a spec is a TaskError that lists what would have been
right."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from node.tasks.builtin import ARITHMETIC, REVERSE, SORT
from node.tasks.jsonl import JSONL
from node.tasks.port import Option, OptionValue, Task, TaskArguments, TaskError, TaskKind
from node.tasks.turns import GUESS, LOOKUP

ENTRY_POINT_GROUP = "volery.tasks"

BUILT_IN = {kind.name: kind for kind in (REVERSE, SORT, ARITHMETIC, GUESS, LOOKUP, JSONL)}

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
    return kind.build(
        TaskArguments(
            argument=argument, options=_parse_options(kind, options), directory=directory or Path(), seed=seed
        )
    )


def find_kind(name: str) -> TaskKind:
    """The kind of that name, built in or installed. Raises TaskError listing the names there are."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    installed = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
    if name in installed:
        return _load(installed[name])
    known = sorted({*BUILT_IN, *installed})
    raise TaskError(f"there is no task {name!r}{_suggestion(name, known)}. Tasks here: {', '.join(known)}.")


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


def usage(kind: TaskKind) -> str:
    """The form of a kind's spec with its defaults, for example "jsonl:PATH[:match=exact,chat=auto,held_out=0.1]"."""
    argument = f":{kind.argument}" if kind.argument else ""
    options = ",".join(f"{option.key}={'...' if option.default == '' else option.default}" for option in kind.options)
    return f"{kind.name}{argument}" + (f"[:{options}]" if options else "")


def _load(entry: EntryPoint) -> TaskKind:
    try:
        kind = entry.load()
    except (ImportError, AttributeError) as error:
        raise TaskError(f"task {entry.name!r} of {_origin(entry)} cannot be loaded: {error}") from error
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


def _parse_options(kind: TaskKind, text: str) -> dict[str, OptionValue]:
    by_key = {option.key: option for option in kind.options}
    values: dict[str, OptionValue] = {option.key: option.default for option in kind.options}
    given: set[str] = set()
    for part in text.split(",") if text else []:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise TaskError(f"task {kind.name!r}: {part!r} is not key=value. Use: {usage(kind)}.")
        if key not in by_key:
            known = ", ".join(by_key) or "none"
            raise TaskError(f"task {kind.name!r} has no key {key!r}{_suggestion(key, by_key)}. Keys: {known}.")
        if key in given:
            raise TaskError(f"task {kind.name!r}: key {key!r} is given twice. Leave one out.")
        given.add(key)
        values[key] = _parse_value(kind, by_key[key], value)
    return values


def _parse_value(kind: TaskKind, option: Option, text: str) -> OptionValue:
    where = f"task {kind.name!r}: {option.key}={text}"
    if isinstance(option.default, str):
        if option.choices and text not in option.choices:
            raise TaskError(f"{where}: must be one of {', '.join(option.choices)}.")
        return text
    convert = type(option.default)
    try:
        value = convert(text)
    except ValueError as error:
        wanted = "a whole number" if convert is int else "a number"
        raise TaskError(f"{where}: must be {wanted} ({option.help}).") from error
    # Written so that NaN fails.
    if not option.minimum <= value <= option.maximum:
        raise TaskError(f"{where}: must lie in {option.minimum:g} to {option.maximum:g} ({option.help}).")
    return value


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
