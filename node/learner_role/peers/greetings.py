"""What every greeting is judged by, and what is written of whoever is welcome, whichever work it comes for."""

from __future__ import annotations

from learner.ledger.peers import PeerLedger
from learner.ledger.rows import PeerRow
from node.learner_role.peers.join_terms import WRONG_TOKEN, is_token
from protocol.core.ids import PeerId
from protocol.core.limits import MAX_NAME_CHARS, PROTOCOL_VERSION
from protocol.work import Hello


def objection_to(hello: Hello, token: str) -> str | None:
    """Why a node is refused that greets so, where `token` is the join token; None if nothing here speaks against it."""
    if hello.protocol != PROTOCOL_VERSION:
        return f"You speak protocol {hello.protocol}, this swarm {PROTOCOL_VERSION}: use a matching volery."
    return None if is_token(hello.token, token) else WRONG_TOKEN


def write_joined(ledger: PeerLedger, peer: PeerId, hello: Hello, now_ms: int, *, engine: str = "") -> tuple[bool, int]:
    """On a thread: return whether the peer was here before, and the id of its new stay. `engine`: what it has, if that
    is not what it says."""
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
