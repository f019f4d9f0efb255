"""Hold the evidence of how a node can be reached, so that programs can explain the conclusion.

`Transport.reached` is the conclusion that a node reports to the learner; it follows from this evidence.

Invariants:

- A sight is the statement of one peer about one connection. It exists as long as that connection.
- An address counts as reached only if a dial-back arrived at it. That it was not reached is stated by the peers of
  `failed_by`.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.core.ids import PeerId


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The address at which the peer at the other end of a connection sees us; the peer itself is at `origin`.

    `local` is our own address of the connection. `from_listening`: we listen on that address, so others may try to
    connect where the peer sees us.
    """

    peer: PeerId
    origin: str
    address: str
    local: str
    from_listening: bool


@dataclass(frozen=True, kw_only=True)
class TriedAddress:
    """An address at which we may be reached, how we know it, and the results of dial-backs.

    `sources`: "announced", "interface", "mapped", "observed". `failed_by`: origins (`Transport.origins`) of the peers
    whose dials failed.
    """

    address: str
    sources: frozenset[str]
    is_reached: bool
    failed_by: frozenset[str]

    @property
    def is_tried(self) -> bool:
        """Whether a peer has dialled it."""
        return self.is_reached or bool(self.failed_by)


@dataclass(frozen=True, kw_only=True)
class ReachEvidence:
    """All evidence. `num_helpers`: connected peers that dial back on request."""

    sights: tuple[Sight, ...] = ()
    addresses: tuple[TriedAddress, ...] = ()
    num_helpers: int = 0
