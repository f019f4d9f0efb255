"""Find the peer, lease or record that a name means.

    12D3KooW...NXTN4h    a peer, by its id or the end of the id
    fc6f3622             a lease or a record, by the beginning of its id
    fc6f3622/0           a record, by its lease and its place in it, as in reports
    atlas                a peer, by its display name

Invariants:

- The program never guesses: an ambiguous name is refused.
- Ids take precedence over names, which peers choose themselves.
- A name is compared with names as reports show them, so two peers that look alike have the same name, which is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from learner.ledger.queries.reader import LedgerReader
from node.runtime import formatting as words
from node.runtime.errors import UsageError
from protocol.core.ids import LeaseId, PeerId, RecordId

LEAST_CHARS = 4
"""Fewest characters of an id, or of its beginning or end: fewer match too much."""

NAMES = 128
"""Largest number of characters of a peer's own text about itself."""

MATCHES_SHOWN = 8

PLACE = re.compile(r"([0-9a-fA-F]+)/([0-9]{1,9})")


@dataclass(frozen=True, kw_only=True)
class MeantLease:
    """A lease: all of it, the one record in it, or the decisions on the place `index`."""

    lease: LeaseId
    record: RecordId | None = None
    index: int | None = None


def meant_in(ledger: LedgerReader, name: str, path: Path) -> PeerId | MeantLease:
    """Return the one thing in the ledger at `path` that is called `name`. Raises UsageError."""
    prefix, index = split(name)
    peers, limit = peers_by_id(ledger, name), MATCHES_SHOWN + 1
    leases = ledger.work.leases_like(prefix, limit) if len(prefix) >= LEAST_CHARS else []
    records = ledger.work.records_like(name, limit) if len(name) >= LEAST_CHARS else []
    if not (peers or leases or records):
        if (peer := peer_by_name(ledger, name)) is not None:
            return peer
        require_long(prefix)
    found = [*peers, *(f"lease {one.hex()}" for one in leases), *(f"record {one.hex()}" for one in records)]
    require_one(name, found, path, IN_A_LEDGER)
    if peers:
        return peers[0]
    if leases:
        return MeantLease(lease=leases[0], index=index)
    return MeantLease(lease=ledger.work.lease_of(records[0]), record=records[0])


def peers_by_id(ledger: LedgerReader, text: str, role: str | None = None) -> list[PeerId]:
    """Return the peers whose ids are, or end in, `text`; only those of `role` if it is given."""
    return [one.peer for one in ledger.peers.all(role, ending=text)] if len(text) >= LEAST_CHARS else []


def peer_by_name(ledger: LedgerReader, text: str, role: str | None = None) -> PeerId | None:
    """Return the peer whose display name is `text`, None if there is none. Raises UsageError if there are several."""
    if not (wanted := words.plain_name(text, NAMES)):
        return None
    shown = [
        (one.peer, {words.plain_name(one.name), words.plain_name(one.name, NAMES)}) for one in ledger.peers.all(role)
    ]
    found = [peer for peer, names in shown if wanted in names]
    if len(found) > 1:
        raise UsageError(f"Several peers have the name {wanted!r}; name one by its id:\n{_listed(found)}")
    return found[0] if found else None


def split(name: str) -> tuple[str, int | None]:
    """Return a lease's prefix and a place in it; any other name unchanged, with None."""
    found = PLACE.fullmatch(name)
    return (name, None) if found is None else (found[1], int(found[2]))


def is_hex(text: str) -> bool:
    """Return whether it may be the beginning of a lease's or a record's id."""
    return all(character in "0123456789abcdef" for character in text.lower())


def require_long(name: str) -> None:
    """Raise UsageError for a name that is too short for an id and is not a peer's name."""
    if len(name) < LEAST_CHARS:
        raise UsageError(f"{name!r} is too short: name at least {LEAST_CHARS} characters of an id.")


IN_A_LEDGER = (
    "Name the beginning of a lease's or a record's id (hex, as in reports and events), or a peer by its id, the end of "
    "its id, or its name."
)

IN_RECEIPTS = (
    "Name the beginning of a lease's or a record's id (hex, as in reports and events), or this node by its id, the "
    "end of its id, or its name. A lease that was not delivered has no receipt, and a node has no receipts of other "
    "nodes: ask the operator."
)


def require_one(name: str, found: Sequence[str], path: Path, names: str) -> None:
    """Raise UsageError unless exactly one thing was found in `path`. `names`: what can be named."""
    if not found:
        raise UsageError(f"Nothing in {path} is called {name!r}. {names}")
    if len(found) > 1:
        raise UsageError(f"{name!r} matches several; name more of it:\n{_listed(found)}")


def _listed(found: Sequence[str]) -> str:
    shown = "\n".join(f"  {one}" for one in found[:MATCHES_SHOWN])
    return shown + ("\n  ..." if len(found) > MATCHES_SHOWN else "")
