"""Find the peer that an order of the operator means.

Invariant: an order never guesses. The ledger knows a peer by that id, end of an id, or name; or the whole peer id was
written, and whoever gives the order is told that no such peer has joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from learner.ledger.queries.reader import LedgerReader, read_ledger
from learner.ledger.sqlite.database import LedgerError
from node.reports.explain.name_lookup import peer_by_name, peers_by_id
from node.runtime.errors import UsageError, as_run_error
from node.runtime.formatting import plain_name
from protocol.core.errors import PeerError
from protocol.core.identity import public_key_of

ROLE = "rollout"

REFUSED_LATER = "No peer with that id has joined this swarm. It will be refused if it comes."
LIFTED = "No peer with that id has joined this swarm. The order lifts an earlier ban of the id, if there is one."
"""What whoever gives the order is told if no such peer has joined: of a ban, and of a pardon."""


@dataclass(frozen=True, kw_only=True)
class Meant:
    """A peer of the swarm whose learner has the directory `state`; `name` is its display name, if it has joined."""

    peer: str
    state: Path
    name: str = ""
    has_joined: bool = True

    @property
    def description(self) -> str:
        return f"{self.name}, {self.peer}" if self.name else self.peer


def meant_peer(name: str, state: Path) -> Meant:
    """Return the peer that `name` means in the ledger of the learner at `state`. Raises UsageError, RunError."""
    with as_run_error(LedgerError), read_ledger(state / "ledger.sqlite") as ledger:
        return _meant_in(ledger, name, state)


def _meant_in(ledger: LedgerReader, name: str, state: Path) -> Meant:
    found = peers_by_id(ledger, name, ROLE)
    if len(found) > 1:
        raise UsageError(f"{name!r} fits several peers. Type more of the id.")
    if not found and peers_by_id(ledger, name, "learner"):
        raise UsageError(f"{name!r} is the learner of this swarm. Name a rollout node.")
    if not found and not _is_peer_id(name):
        named = peer_by_name(ledger, name, ROLE)
        if named is None:
            raise UsageError(f"{name!r} is not a peer of this swarm. `volery report` lists its peers.")
        found = [named]
    if not found:
        return Meant(peer=name, state=state, has_joined=False)
    known = ledger.peers.named(found[0])
    return Meant(peer=found[0], state=state, name=plain_name(known.name if known else ""))


def _is_peer_id(text: str) -> bool:
    try:
        public_key_of(text)
    except PeerError:
        return False
    return True
