"""List, export and check signed statements: receipts, proofs and reputations.

Invariants:

- Ledgers and receipts are only read, so a node or a learner may run meanwhile.
- A file in which anything is wrong ends the command with exit code 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from node.cli.help.parser import group
from node.cli.options import Json, OfLearner, Swarm, as_json_text, whole_text
from node.runtime.stdout import say, say_folded

receipts = group("receipts", about="List, export and check receipts: the learner's signed answers to deliveries.")
reputation = group("reputation", about="Export and check reputations of peers, which the learner signs.")

Out = Annotated[Path, typer.Option(metavar="FILE", help="File to write.")]
Peer = Annotated[
    str, typer.Option(metavar="PEER", callback=whole_text, help="Only this peer: its id, or the end of its id.")
]


Operator = Annotated[
    str, typer.Option(metavar="KEY", help="The operator who must have signed: its peer id, or 64 hex digits.")
]
Invite = Annotated[
    str, typer.Option(metavar="INVITE", help="Or the invite to the swarm, or a file that holds the invite.")
]


@receipts.command("list")
def list_(
    target: Swarm = None,
    last: Annotated[int, typer.Option(min=1, max=100_000, help="Number of receipts, the newest first.")] = 20,
    peer: Peer = "",
    records: Annotated[bool, typer.Option("--records", help="Show a line for each record, with its id.")] = False,
    as_json: Json = False,
) -> None:
    """Show the latest receipts, and which versions their records trained."""
    from node.commands.statements.command import list_receipts

    say(list_receipts(target, last=last, peer=peer, records=records, as_json=as_json), nl=False)


@receipts.command()
def export(
    out: Out,
    target: Swarm = None,
    peer: Peer = "",
    proofs: Annotated[
        bool, typer.Option("--proofs", help="Also write the proofs of what the records trained.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write all receipts, relay receipts and credit notes to one file that anybody can check."""
    from node.commands.statements.command import export_receipts

    done = export_receipts(target, out, peer=peer, proofs=proofs)
    say_folded(as_json_text({"file": out, "done": done}) if as_json else done, as_json=as_json)


@receipts.command()
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that export or `volery prove` wrote.")],
    operator: Operator = "",
    invite: Invite = "",
    as_json: Json = False,
) -> None:
    """Check every signature, certificate and sum in a file, without a network."""
    _verify(file, operator, invite, as_json=as_json)


def _verify(file: Path, operator: str, invite: str, *, as_json: bool) -> NoReturn:
    from node.commands.statements.command import verify_file

    answer = verify_file(file, operator=operator, invite=invite, as_json=as_json)
    say_folded(answer.text, as_json=as_json, nl=False)
    raise typer.Exit(answer.code)


def prove(
    record: Annotated[str, typer.Argument(metavar="RECORD", help="The id of a record, or the beginning of the id.")],
    target: Swarm = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the proof to this file.")] = None,
    as_json: Json = False,
) -> None:
    """Show which version a record trained, with the learner's signed proof; write the proof for others to check."""
    from node.commands.statements.command import prove_record

    say_folded(prove_record(target, record, out, as_json=as_json), as_json=as_json, nl=False)


@reputation.command("export")
def export_reputation(
    out: Out,
    target: OfLearner = None,
    peer: Peer = "",
    as_json: Json = False,
) -> None:
    """Sign the reputation of each peer with the observations of each day, and write it to one file."""
    from node.commands.statements.command import export_reputations

    done = export_reputations(target, out, peer=peer)
    say(as_json_text({"file": out, "done": done}) if as_json else done)


@reputation.command("verify")
def verify_reputation(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `volery reputation export` wrote.")],
    operator: Operator = "",
    invite: Invite = "",
    as_json: Json = False,
) -> None:
    """Check signatures, and that every score follows from its observations, without a network."""
    _verify(file, operator, invite, as_json=as_json)
