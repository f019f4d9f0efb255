"""Words of a command line that are text: names, reasons, ids.

What always holds: what is looked up, written down or sent is Unicode. A shell hands on any bytes, of which Python makes
code points that have no encoding; the name of a file may have them, a text may not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

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


def run_program(program: Any, *args: Any, **options: Any) -> None:
    """Run an async program to its end; it returns the exit code."""
    from functools import partial

    import trio

    from node.runtime.startup import look_seldom
    from swarm.transport.error_groups import first_cause

    look_seldom()
    try:
        with first_cause():
            code = trio.run(partial(program, *args, **options))
    except KeyboardInterrupt:  # before the program was ready to be told; typer would say nothing
        complain("\nStopped. What was acknowledged is on disk; to go on, start the same command again.")
        code = STOPPED_EXIT_CODE
    raise typer.Exit(code)
