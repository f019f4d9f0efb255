"""What a budget of memory counts, as tests ask it."""

from __future__ import annotations

from swarm.libp2p.memory_budget import Budget


def held_by_all(budget: Budget, *, members: bool) -> int:
    """Bytes held by all strangers, or by all members."""
    return budget._held[members]


def held_by(budget: Budget, number: int) -> int:
    """Bytes held by one account."""
    account = budget._accounts.get(number)
    return 0 if account is None else account.held
