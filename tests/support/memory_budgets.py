"""Read what a budget of memory counts."""

from __future__ import annotations

from swarm.libp2p.memory_budget import Budget


def held_by_all(budget: Budget, *, members: bool) -> int:
    """Return the bytes held by all strangers, or by all members."""
    return budget._held[members]


def held_by(budget: Budget, number: int) -> int:
    """Return the bytes held by one account."""
    account = budget._accounts.get(number)
    return 0 if account is None else account.held
