"""`volery ban` and `volery pardon`: what an operator decides of a peer, by files in the learner's state.

What always holds: which peer is meant is never guessed: it is one that the ledger knows, named by its id or the end of
it, or a whole peer id; the learner does what was decided within a second, or when it starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from node.peer_orders import PeerOrders

Peer = Annotated[str, typer.Argument(help="A peer id, or its end as reports have it.")]
Target = Annotated[Path | None, typer.Argument(help="A swarm.toml, or a learner's state directory.")]
PEER_ID_CHARS = 52


def ban(
    peer: Peer,
    target: Target = None,
    reason: Annotated[str, typer.Option(help="What the peer is told.")] = "the operator decided so",
) -> None:
    """Have a peer leave for good: its work is not trained on, and its key may not come back."""
    from node.peer_orders import Ban

    found, orders = _meant(peer, target)
    orders.give(Ban(peer=found, reason=reason))
    typer.echo(f"Banned: {found}. The learner does it within a second, or when it starts. Back: volery pardon {found}")


def pardon(peer: Peer, target: Target = None) -> None:
    """Take a ban back: the peer may join again, as a newcomer whose first groups are all audited."""
    from node.peer_orders import Pardon

    found, orders = _meant(peer, target)
    orders.give(Pardon(peer=found))
    typer.echo(f"Pardoned: {found}. It may join again once the learner has heard of it, which takes a second.")


def _meant(name: str, target: Path | None) -> tuple[str, PeerOrders]:
    """The peer, and where to leave what was decided. Raises UsageError, RunError."""
    from learner.ledger_file import LedgerError, snapshot
    from node.errors import RunError, UsageError
    from node.lookups import find_place
    from node.peer_orders import PeerOrders

    place = find_place(target)
    if not place.is_learner:
        raise UsageError(f"{place.state} is a volunteer's node. Name the learner's swarm.toml or state directory.")
    try:
        with snapshot(place.state / "ledger.sqlite") as db:
            peers = [peer for (peer,) in db.execute("SELECT peer FROM peers WHERE role = 'rollout'")]
    except LedgerError as error:
        raise RunError(str(error)) from error
    found = [peer for peer in peers if len(name) >= 4 and peer.endswith(name)]
    if not found and len(name) == PEER_ID_CHARS:
        found = [name]  # one that has not come yet
    if len(found) != 1:
        several = "fits several peers; name more of it"
        what = several if found else "is no peer of this swarm; `volery report` lists them"
        raise UsageError(f"{name!r} {what}.")
    return found[0], PeerOrders(place.state)
