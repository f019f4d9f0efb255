"""What a node knows of how it is reached, piece by piece: for whoever wants to say why, and not only what.

`Transport.reached` is the verdict that a node tells the learner; this is what it is made of.

Invariants:
- A sight is one peer's word, of one connection. It is there while that connection lasts.
- An address was reached only if a dial back arrived at it. That it was not reached is the word of `failed_by` peers.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.core.ids import PeerId


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The peer at the other end of a connection, which sits at `origin`, sees us at `address`.

    `local` is the address that the connection left from; `from_listening`: that is where we listen, so others may knock
    where the peer sees us.
    """

    peer: PeerId
    origin: str
    address: str
    local: str
    from_listening: bool


@dataclass(frozen=True, kw_only=True)
class TriedAddress:
    """An address at which we may be reached, how it is known, and what came of having it dialled.

    `sources`: "announced", "interface", "mapped", "observed". `failed_by`: origins that dialled in vain.
    """

    address: str
    sources: frozenset[str]
    is_reached: bool
    failed_by: frozenset[str]

    @property
    def is_tried(self) -> bool:
        """Whether somebody has dialled it."""
        return self.is_reached or bool(self.failed_by)


@dataclass(frozen=True, kw_only=True)
class ReachEvidence:
    """All of it. `num_helpers`: connected peers that dial back when asked."""

    sights: tuple[Sight, ...] = ()
    addresses: tuple[TriedAddress, ...] = ()
    num_helpers: int = 0
