"""What an operator does to a learner's state: `volery ban`, `volery pardon` and `volery compact`.

What always holds: which peer is banned or pardoned is never guessed: it is one that the ledger knows, by its id, the
end of it or its name, or a whole peer id, and then it is said that nobody of that id has come; a learner that runs does
what was decided within a second, any other when it starts, and which of the two is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import whole_text
from node.runtime.stdout import say

if TYPE_CHECKING:
    from learner.ledger.queries.reader import LedgerReader
    from node.state.operator_orders import Ban, Pardon

Peer = Annotated[str, typer.Argument(callback=whole_text, help="A peer's id, the end of it, or its name.")]
Target = Annotated[Path | None, typer.Argument(help="A swarm.toml, or a learner's state directory.")]
ROLE = "rollout"


@dataclass(frozen=True, kw_only=True)
class Meant:
    """A peer of the swarm whose learner has the directory `state`; `name` is what it calls itself, if it has joined."""

    peer: str
    state: Path
    name: str = ""
    has_joined: bool = True

    @property
    def told(self) -> str:
        return f"{self.name}, {self.peer}" if self.name else self.peer


def compact(
    target: Target = None,
    keep_days: Annotated[
        float | None,
        typer.Option(min=0, max=36_500, help="Leave receipts of so many days whole. Default: [swarm] keep_days."),
    ] = None,
) -> None:
    """Make a learner's ledger smaller while it does not run; nothing is lost."""
    from node.commands.compact.command import compact as made_small

    say(made_small(target, keep_days))


def ban(
    peer: Peer,
    target: Target = None,
    reason: Annotated[
        str, typer.Option(callback=whole_text, help="What the peer is told; 512 characters at most.")
    ] = "the operator decided so",
) -> None:
    """Have a peer leave for good: its work is not trained on, and its key may not come back."""
    from node.runtime.errors import UsageError
    from node.state.operator_orders import Ban
    from protocol.core.limits import MAX_REASON_CHARS

    if len(reason) > MAX_REASON_CHARS:
        raise UsageError(f"--reason has {len(reason)} characters, and {MAX_REASON_CHARS} are kept: shorten it.")
    meant = _meant(peer, target)
    back = f"Back: volery pardon {meant.peer}"
    if _give(meant, Ban(peer=meant.peer, reason=reason)):
        say(f"Banned: {meant.told}. The learner does it within a second. {back}")
    else:
        say(f"The order to ban {meant.told} waits: {_nobody(meant)} {back}")
    if not meant.has_joined:
        say("No peer of that id has joined this swarm: it will be turned away if it comes.")


def pardon(peer: Peer, target: Target = None) -> None:
    """Take a ban back: the peer may join again, as a newcomer whose first groups are all audited."""
    from node.state.operator_orders import Pardon

    meant = _meant(peer, target)
    if _give(meant, Pardon(peer=meant.peer)):
        say(f"Pardoned: {meant.told}. It may join again once the learner has heard of it, which takes a second.")
    else:
        say(f"The order to pardon {meant.told} waits: {_nobody(meant)}")
    if not meant.has_joined:
        say("No peer of that id has joined this swarm: there is nothing of its to forgive but an earlier ban.")


def _nobody(meant: Meant) -> str:
    return f"no learner is running on {meant.state}. It takes effect when one does."


def _give(meant: Meant, order: Ban | Pardon) -> bool:
    """Leave the order; whether there is a learner that obeys at once. Raises RunError."""
    from node.state.operator_orders import OperatorDecisions
    from node.state.status_file import standing_of

    runs = standing_of(meant.state) is not None
    OperatorDecisions(meant.state).give(order)
    return runs


def _meant(name: str, target: Path | None) -> Meant:
    """The peer that is to be told of. Raises UsageError, RunError."""
    from learner.ledger.queries.reader import read_ledger
    from learner.ledger.sqlite.database import LedgerError
    from node.runtime.errors import UsageError, as_run_error
    from node.state.locate import find_place

    place = find_place(target)
    if not place.is_learner:
        raise UsageError(f"{place.state} is a volunteer's node. Name the learner's swarm.toml or state directory.")
    with as_run_error(LedgerError), read_ledger(place.state / "ledger.sqlite") as ledger:
        return _meant_in(ledger, name, place.state)


def _meant_in(ledger: LedgerReader, name: str, state: Path) -> Meant:
    from node.reports.explain.name_lookup import peer_by_name, peers_by_id
    from node.runtime.errors import UsageError
    from node.runtime.formatting import plain_name

    found = peers_by_id(ledger, name, ROLE)
    if len(found) > 1:
        raise UsageError(f"{name!r} fits several peers; name more of it.")
    if not found and peers_by_id(ledger, name, "learner"):
        raise UsageError(f"{name!r} is this swarm's learner itself: name a peer that works for it.")
    if not found and not _is_peer_id(name):
        named = peer_by_name(ledger, name, ROLE)
        if named is None:
            raise UsageError(f"{name!r} is no peer of this swarm; `volery report` lists them.")
        found = [named]
    if not found:
        return Meant(peer=name, state=state, has_joined=False)
    known = ledger.peers.named(found[0])
    return Meant(peer=found[0], state=state, name=plain_name(known.name if known else ""))


def _is_peer_id(text: str) -> bool:
    from protocol.core.errors import PeerError
    from protocol.core.identity import public_key_of

    try:
        public_key_of(text)
    except PeerError:
        return False
    return True
