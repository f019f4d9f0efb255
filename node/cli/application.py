"""Make the commands of the catalogue a program that typer parses.

The module of a command is imported when the command is used, since each brings libraries that take time to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version as distribution_version
from typing import Annotated, Any

import typer

from node.cli.help.catalogue import COMMANDS, Command, command_named
from node.cli.help.parser import App, HelpedGroup
from node.cli.help.root import root_help
from node.installation.extras import require_extra
from node.runtime.stdout import complain, say

OF_THE_LEARNER = frozenset(
    {
        "chat", "demo", "drill", "export", "learn", "new", "plan", "samples", "serve", "simulate", "tasks", "verifier",
        "warmup",
    }
)  # fmt: skip
"""Commands that need the extra `learner`. They say so before they begin, or a run would end when it plots."""

RENAMED = {"show": "samples"}
"""Commands by their old names, which work with a note until the next release."""


class _Root(HelpedGroup):
    """All commands; each is loaded when it is named."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = RENAMED.get(cmd_name, cmd_name)
        if name != cmd_name:
            complain(
                f"volery: note: `volery {cmd_name}` is called `volery {name}` now. The next release only knows the new "
                "name."
            )
        found = command_named(name)
        return None if found is None else _loaded(found)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in RENAMED and command_named(name) is None:
            near = get_close_matches(name, self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(root_help())


def load(arguments: Sequence[str]) -> None:
    """Import what the command that was typed needs, while a signal still ends the program without a word.

    Raises UsageError if the command needs an extra that is not installed, and not only its help is wanted.
    """
    if arguments and (command := command_named(arguments[0])) is not None:
        if command.name in OF_THE_LEARNER and not {"-h", "--help"} & set(arguments):
            require_extra("learner", f"`volery {command.name}`")
        _module_of(command)


def _module_of(command: Command) -> Any:
    return import_module(f"node.cli.{command.module}")


def _loaded(command: Command) -> Any:
    """Import what a command needs, and return it for the parser."""
    found = getattr(_module_of(command), command.function)
    if not command.is_group:
        alone = App(add_completion=False)
        alone.command(command.name)(found)
        found = alone
    parsed = typer.main.get_command(found)
    parsed.name = command.name
    return parsed


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"volery {distribution_version('volery')}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


app = App(name="volery", cls=_Root, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
app.callback()(_root)
