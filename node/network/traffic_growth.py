"""Decide when a node's traffic has grown enough to be told again."""

from __future__ import annotations

from swarm.transport.interface import Traffic

TOLD_GROWTH = 0.05
"""Growth, as a fraction, after which the traffic is told again. A busy node moves bytes in every second: a line in the
log for each would be a large part of the log."""


def has_grown(told: Traffic, moved: Traffic) -> bool:
    """Return whether the traffic has grown enough since it was `told`."""
    before = told.sent + told.received
    return moved.sent + moved.received - before > TOLD_GROWTH * before
