"""Define the options and arguments that several commands share, and run the commands that are async programs.

A shell hands on any bytes, and Python turns bytes that are no UTF-8 into code points without an encoding. The name of a
file may hold these.

Invariants:

- Names, reasons and ids that are looked up, stored or sent are valid Unicode.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from node.commands.plan.pool_keys import Key
from node.runtime.errors import UsageError
from node.runtime.startup import STOPPED_EXIT_CODE
from node.runtime.stdout import complain


def whole_text(param: typer.CallbackParam, value: str) -> str:
    """Return the text as it was typed; a callback of an option or an argument. Raises UsageError if it is not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{_named(param)} is not UTF-8: {value!r}. Type it again, or copy it from a report.") from None
    return value


def _named(param: typer.CallbackParam) -> str:
    """Return the name that the help shows: --reason, PEER."""
    return param.opts[0] if param.param_type_name == "option" else param.metavar or (param.name or "").upper()


def config_file(value: Path | None) -> Path | None:
    """Return the swarm.toml in a directory that was named, or the file; a callback of an option or an argument."""
    if value is not None and value.is_dir() and (value / CONFIG).is_file():
        return value / CONFIG
    return value


def as_json_text(value: object) -> str:
    """Return what `--json` prints for `value`: numbers, texts, and lists and dictionaries of these."""
    return json.dumps(value, indent=2, default=str)


CONFIG = "swarm.toml"

SWARM = "a swarm's directory, its swarm.toml, or a state directory"
"""What the placeholder SWARM stands for."""

Swarm = Annotated[
    Path | None,
    typer.Argument(
        metavar="SWARM",
        help=f"{SWARM[:1].upper()}{SWARM[1:]}, or a node's name. Default: ./swarm.toml, or the only node here or that "
        "runs.",
    ),
]
"""Where to read: a learner's ledger or a node's receipts."""

OfLearner = Annotated[
    Path | None,
    typer.Argument(metavar="SWARM", help=f"Of a learner: {SWARM}. Default: ./swarm.toml."),
]
"""The same, where a node's receipts do not do."""

ConfigFile = Annotated[
    Path, typer.Argument(metavar="SWARM", callback=config_file, help="A swarm.toml, or the directory that holds it.")
]

State = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="State directory of the node. Default: the usual place for its swarm."),
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")]


LogForm = Annotated[
    Literal["text", "json"],
    typer.Option("--log-format", help="Form of the log. json: one JSON object a line, on stdout or in --log-file."),
]

LogPath = Annotated[
    Path | None,
    typer.Option(
        "--log-file",
        metavar="FILE",
        help="Also write a log to FILE; it is rotated at 16 MiB, and 4 older ones are kept.",
    ),
]


Given = Mapping[str, Any]
"""The values of generated options, by key; None for an option that was not typed."""


def with_options(keys: Sequence[Key]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of `keys`, which are all numbers.

    The options stand where the command has its argument `given`, which receives their values.
    """

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        def extended(**arguments: Any) -> None:
            given = {key.name: arguments.pop(key.name) for key in keys}
            command(**arguments, given=given)

        parameters: list[inspect.Parameter] = []
        for one in inspect.signature(command, eval_str=True).parameters.values():
            parameters += map(_parameter, keys) if one.name == "given" else [one]
        keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
        extended.__name__, extended.__doc__, extended.__annotations__ = command.__name__, command.__doc__, {}
        extended.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        return extended

    return extend


def _parameter(key: Key) -> inspect.Parameter:
    names = [name for name in (f"--{key.name.replace('_', '-')}", key.short) if name]
    option = typer.Option(*names, metavar="N" if key.whole else "X", help=key.meaning)
    annotation: Any = Annotated[int | None, option] if key.whole else Annotated[float | None, option]
    return inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def run_program(program: Any, *args: Any, **options: Any) -> None:
    """Run an async program to its end, and exit with the code that it returns."""
    from functools import partial

    import trio

    from node.runtime.startup import prepare_process
    from swarm.transport.error_groups import first_cause

    prepare_process()
    try:
        with first_cause():
            code = trio.run(partial(program, *args, **options))
    except KeyboardInterrupt:  # before the program listened for signals; typer would print nothing
        complain("\nStopped. To go on, start the same command again.")
        code = STOPPED_EXIT_CODE
    raise typer.Exit(code)
