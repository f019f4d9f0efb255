"""Options that several commands have, those that are generated from a table of keys, and words that are text: names,
reasons, ids.

What always holds: what is looked up, written down or sent is Unicode. A shell hands on any bytes, of which Python makes
code points that have no encoding; the name of a file may have them, a text may not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from node.commands.plan.pool_keys import Key
from node.runtime.errors import UsageError
from node.runtime.startup import STOPPED_EXIT_CODE
from node.runtime.stdout import complain


def whole_text(param: typer.CallbackParam, value: str) -> str:
    """The text as it was given, as a callback of an option or an argument. Raises UsageError where it is not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{_named(param)} is not UTF-8: {value!r}. Type it again, or copy it from a report.") from None
    return value


def _named(param: typer.CallbackParam) -> str:
    """As the command line has it: --reason, PEER."""
    return param.opts[0] if param.param_type_name == "option" else (param.name or "").upper()


State = Annotated[Path | None, typer.Option("--state", help="Directory with the node's or learner's state.")]


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


Given = Mapping[str, Any]
"""What was typed of options that were generated, by their keys; None of those that were not."""


def with_options(keys: Sequence[Key]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of `keys`, all of them numbers, at the place of its argument `given`, through
    which what was typed reaches it."""

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
    option = typer.Option(*names, help=key.meaning)
    annotation: Any = Annotated[int | None, option] if key.whole else Annotated[float | None, option]
    return inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def run_program(program: Any, *args: Any, **options: Any) -> None:
    """Run an async program to its end; it returns the exit code."""
    from functools import partial

    import trio

    from node.runtime.startup import look_seldom, open_many_files, share_arenas
    from swarm.transport.error_groups import first_cause

    look_seldom()
    open_many_files()
    share_arenas()
    try:
        with first_cause():
            code = trio.run(partial(program, *args, **options))
    except KeyboardInterrupt:  # before the program was ready to be told; typer would say nothing
        complain("\nStopped. What was acknowledged is on disk; to go on, start the same command again.")
        code = STOPPED_EXIT_CODE
    raise typer.Exit(code)
