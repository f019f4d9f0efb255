"""Decide whether more evidence of how this machine is reached is to be expected, or all peers have answered.

A pure core; times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.doctor.findings import NotKnown, PortMapping
from swarm.transport.reach_evidence import ReachEvidence

SIGHTS_S = 3.0
"""Seconds for contacted peers to report where they see us, and whether they dial back: two round trips."""


def is_settled(
    evidence: ReachEvidence,
    mapping: PortMapping | NotKnown | None,
    *,
    routers: Sequence[str],
    num_met: int,
    is_outside: bool,
    elapsed_s: float,
) -> bool:
    """Return whether there is nothing more to wait for.

    Args:
        mapping: the routers' answers so far to the request for a port; None if none was asked.
        num_met: peers that are connected.
        is_outside: whether the learner is in the internet; otherwise no peer dials back.
    """
    may_wait = elapsed_s < SIGHTS_S
    if may_wait and len({sight.peer for sight in evidence.sights}) < num_met:
        return False
    if not is_outside:
        return True
    if mapping is not None and not has_answered(mapping, routers):
        return False
    if not evidence.num_helpers or not evidence.addresses:
        return not may_wait
    return all(one.is_tried for one in evidence.addresses)


def has_answered(mapping: PortMapping | NotKnown, routers: Sequence[str]) -> bool:
    """Return whether the router for IPv4, if there is one, has opened a port or refused to."""
    if isinstance(mapping, NotKnown):
        return False
    if any(one.address.startswith("/ip4/") for one in mapping.mapped):
        return True
    wanted = {router for router in routers if ":" not in router}
    return any(router in wanted or not router or not wanted for router, _ in mapping.refusals)
