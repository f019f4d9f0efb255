"""`volery receipts` and `volery prove`: what was counted, as a file that anybody can check, and what it trained; and
`volery reputation`: how peers stand, as a file that other operators can check and count anew.

What always holds: books are only read, and a node or a learner may be at work meanwhile; a file that does not hold ends
with exit code 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import Json, whole_text
from node.runtime.stdout import say

receipts = typer.Typer(
    name="receipts",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="List, export and check receipts: the learner's signed word on what it counted.",
)
reputation = typer.Typer(
    name="reputation",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Export and check reputations: the learner's signed word on how peers stand, with its observations.",
)

Target = Annotated[
    Path | None, typer.Argument(metavar="[TARGET]", help="A swarm.toml, or a node's or learner's state directory.")
]
Peer = Annotated[
    str, typer.Option(callback=whole_text, help="Of a learner's ledger only this peer: its id, or the end of it.")
]


@receipts.command("list")
def list_(
    target: Target = None,
    last: Annotated[int, typer.Option(min=1, max=100_000, help="So many, the newest first.")] = 20,
    peer: Peer = "",
    records: Annotated[bool, typer.Option("--records", help="A line for each record in them, with its id.")] = False,
    as_json: Json = False,
) -> None:
    """Show the latest receipts, and which versions their records trained."""
    from node.commands.statements.command import list_receipts

    say(list_receipts(target, last=last, peer=peer, records=records, as_json=as_json), nl=False)


@receipts.command()
def export(
    out: Annotated[Path, typer.Option(help="The file to write.")],
    target: Target = None,
    peer: Peer = "",
    proofs: Annotated[bool, typer.Option("--proofs", help="Also the proofs of what the records trained.")] = False,
) -> None:
    """Write all receipts, relay receipts and credit notes to one file that anybody can check."""
    from node.commands.statements.command import export_receipts

    say(export_receipts(target, out, peer=peer, proofs=proofs))


@receipts.command()
def verify(
    file: Annotated[Path, typer.Argument(help="A file of an `export`, or of `volery prove`.")],
    operator: Annotated[
        str, typer.Option(help="Whose word it must be: the operator's peer id, or 64 hex digits.")
    ] = "",
    invite: Annotated[str, typer.Option(help="Or the invite to the swarm, or a file that holds it.")] = "",
    as_json: Json = False,
) -> None:
    """Check every signature, certificate and sum in a file, without any network; exit code 1 where one is wrong."""
    from node.commands.statements.command import verify_file

    answer = verify_file(file, operator=operator, invite=invite, as_json=as_json)
    say(answer.text, nl=False)
    raise typer.Exit(answer.code)


def prove(
    record: Annotated[str, typer.Argument(help="The id of a record, or its beginning.")],
    target: Target = None,
    out: Annotated[Path | None, typer.Option(help="Write the proof to this file.")] = None,
) -> None:
    """Show that a record trained a version, by the learner's signature; `--out` writes it for others to check."""
    from node.commands.statements.command import prove_record

    say(prove_record(target, record, out), nl=False)


@reputation.command("export")
def export_reputation(
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
