"""The command line: parse, call, print.

Every command ends with exit code 0 (done), 1 (trouble at run time), 2 (usage) or 130 (stopped by Ctrl-C), and says
trouble in one paragraph that names what is concerned and the next step. Nothing here decides anything.
"""

from __future__ import annotations

from node.runtime.startup import STOPPED_EXIT_CODE, loaded, remember

remember()

# ruff: noqa: E402  (what follows takes its time)
from collections.abc import Callable
from functools import wraps
from importlib.metadata import version as distribution_version
from typing import Annotated, Any, NoReturn

import typer

from node.cli.demo_commands import demo, drill
from node.cli.inspect_commands import export, identity, invite, report, samples, status, why
from node.cli.operator_commands import ban, compact, pardon
from node.cli.owner_commands import drain, pause, resume
from node.cli.planning_commands import plan, simulate
from node.cli.receipt_commands import prove, receipts, reputation
from node.cli.run_commands import doctor, engines, init, join, learn, verifier
from node.cli.serving_commands import chat, serve
from node.cli.task_commands import new, tasks
from node.cli.warmup_command import warmup
from node.runtime.errors import NodeError, UsageError, of_file
from node.runtime.stdout import complain, keep_outlet, say, tame_tracebacks

loaded()

app = typer.Typer(
    name="volery",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help=(
        "Reinforcement learning of language models over a swarm of unequal machines.\n\n"
        "**To see it work:** `volery demo`.\n\n"
        "**To lend a machine:** `volery join INVITE`, with the invite an operator gave you.\n\n"
        "**To start a swarm:** `volery init my-swarm`, edit `my-swarm/swarm.toml`, then "
        "`volery learn my-swarm/swarm.toml`; it prints the invite to hand out.\n\n"
        "**To train on a task of your own:** `volery new task my-task`."
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"volery {distribution_version('volery')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


COMMANDS: tuple[Callable[..., None], ...] = (
    *(
        init,
        warmup,
        learn,
        join,
        doctor,
        pause,
        resume,
        drain,
        ban,
        pardon,
        compact,
        prove,
        engines,
        invite,
        identity,
        status,
        report,
        why,
    ),
    *(samples, export, serve, chat, verifier, plan, simulate, demo, drill),
)
"""In the order in which the help lists them."""

for _command in COMMANDS:
    app.command()(_command)
app.command("explain", help="The same as `why`.")(why)


@app.command("show", hidden=True)
@wraps(samples)
def _show(**options: Any) -> None:
    complain("volery: note: `volery show` is called `volery samples` now. The next release only knows the new name.")
    samples(**options)


app.add_typer(tasks)
app.add_typer(new)
app.add_typer(receipts)
app.add_typer(reputation)


def main() -> None:
    """Entry point of the console script."""
    keep_outlet()
    tame_tracebacks()
    try:
        app(standalone_mode=True, prog_name="volery")
    except KeyboardInterrupt:  # before typer listens, or when it listens no more
        raise SystemExit(STOPPED_EXIT_CODE) from None
    except NodeError as error:
        _fail(error)
    except OSError as error:
        # What a user named, or what was only to be looked at: a state directory, a ledger, a key.
        if (said := of_file(error)) is None:
            raise
        _fail(said)


def _fail(error: NodeError) -> NoReturn:
    complain(f"volery: {'usage' if isinstance(error, UsageError) else 'error'}: {error}")
    raise SystemExit(error.exit_code) from None
