"""`volery reputation`: how peers stand, as a file that other operators can check and count anew.

What always holds: the ledger is only read, and a learner may be at work meanwhile; a file that does not hold ends with
exit code 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import whole_text
from node.cli.receipt_commands import verify
from node.runtime.stdout import say

reputation = typer.Typer(
    name="reputation",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Export and check reputations: the learner's signed word on how peers stand, with its observations.",
)


@reputation.command()
def export(
    out: Annotated[Path, typer.Option(help="The file to write.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="[TARGET]", help="A swarm.toml, or a learner's state directory.")
    ] = None,
    peer: Annotated[str, typer.Option(callback=whole_text, help="Only this peer: its id, or the end of it.")] = "",
) -> None:
    """Sign how each peer stands, with what was observed day by day, and write it to one file."""
    from node.commands.statements.command import export_reputations

    say(export_reputations(target, out, peer=peer))


reputation.command(
    "verify",
    help="Check signatures, and that every score follows from its observations, without any network; exit code 1 if "
    "not.",
)(verify)
