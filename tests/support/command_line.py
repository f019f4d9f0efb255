"""List the commands of the program, as its parser has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from node.cli.application import app

_root: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = {name: _root.get_command(None, name) for name in _root.list_commands(None)}
"""Every command and group by name."""


def single_commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command that is no group, with the words that call it."""
    for name, command in COMMANDS.items():
        below = getattr(command, "commands", None)
        if below is None:
            yield (name,), command
        else:
            yield from (((name, action), one) for action, one in below.items())
