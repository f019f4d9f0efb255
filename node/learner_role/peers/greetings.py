"""Check a node's greeting, and record its presence, for rollout nodes and teacher nodes alike."""

from __future__ import annotations

from learner.ledger.peers import PeerLedger
from learner.ledger.rows import PeerRow
from node.learner_role.peers.join_terms import WRONG_TOKEN, is_token
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_NAME_CHARS, PROTOCOL_VERSION
from protocol.work import Hello


def objection_to(hello: Hello, token: str) -> str | None:
    """Return why a node with this greeting is refused; None if it is not. `token`: the join token."""
    if hello.protocol != PROTOCOL_VERSION:
        return f"You use protocol {hello.protocol}, this swarm {PROTOCOL_VERSION}: install a matching volery."
    return None if is_token(hello.token, token) else WRONG_TOKEN


def write_joined(ledger: PeerLedger, peer: PeerId, hello: Hello, now_ms: int, *, engine: str = "") -> tuple[bool, int]:
    """On a thread: record a new presence. Return whether the peer was here before, and the id of the presence.

    `engine`: the name of its engine for the ledger, if not the one in its greeting.
    """
    row = PeerRow(
        peer=peer,
        name=hello.name,
        role="rollout",
        engine=(engine or hello.engine)[:MAX_NAME_CHARS],
        machine=hello.machine,
        micros_per_hour=hello.price.micros_per_hour,
        currency=hello.price.currency,
    )
    return ledger.knows(peer), ledger.peer_joined(row, now_ms)
