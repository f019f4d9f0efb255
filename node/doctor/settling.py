"""Whether more is to be expected of how this machine is reached, or everybody has said what they know.

A pure core; times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.doctor.findings import NotKnown, PortMapping
from swarm.transport.reach_evidence import ReachEvidence

SIGHTS_S = 3.0
"""For peers that were met to say where they see us, and whether they dial back: two round trips."""


def is_settled(
    evidence: ReachEvidence,
    mapping: PortMapping | NotKnown | None,
    *,
    routers: Sequence[str],
    num_met: int,
    is_outside: bool,
    elapsed_s: float,
) -> bool:
    """Whether nothing more is to be waited for.

    Args:
        mapping: what came so far of asking the routers for a port; None where none was asked.
        num_met: peers that are connected.
        is_outside: the learner is in the internet; else nobody dials back.
    """
    is_patient = elapsed_s < SIGHTS_S
    if is_patient and len({sight.peer for sight in evidence.sights}) < num_met:
        return False
    if not is_outside:
        return True
    if mapping is not None and not has_answered(mapping, routers):
        return False
    if not evidence.num_helpers or not evidence.addresses:
        return not is_patient
    return all(one.is_tried for one in evidence.addresses)


def has_answered(mapping: PortMapping | NotKnown, routers: Sequence[str]) -> bool:
    """Whether the router of IPv4, if there is one, has given a port, or will not."""
    if isinstance(mapping, NotKnown):
        return False
    if any(one.address.startswith("/ip4/") for one in mapping.mapped):
        return True
    wanted = {router for router in routers if ":" not in router}
    return any(router in wanted or not router or not wanted for router, _ in mapping.refusals)
