"""Who is unlike the swarm is looked at: soon where it pays, and seldom where nothing is wrong."""

from __future__ import annotations

import random

import pytest

from learner.verification.unusual import PEERS_REMEMBERED, Unusual


def group(dice: random.Random, share: float, tokens: float = 100.0) -> tuple[list[float], list[int]]:
    """Four completions of a prompt of its own difficulty, about `share` of them right."""
    hard = min(1.0, max(0.0, dice.gauss(share, 0.2)))
    lengths = [round(tokens * dice.lognormvariate(0, 0.3)) for _ in range(4)]
    return [float(dice.random() < hard) for _ in lengths], lengths


def swarm_of(dice: random.Random, unusual: Unusual, groups: int, share: float = 0.5, learning: float = 0.0) -> int:
    """So many groups of twenty honest peers; return how often one was told to be unusual."""
    told = 0
    for number in range(groups):
        rewards, tokens = group(dice, share + learning * number / groups)
        told += unusual.seen(f"peer {number % 20}", rewards, tokens) is not None
    return told


@pytest.mark.parametrize("learning", [-0.4, 0.0, 0.4], ids=["collapsing", "standing still", "learning"])
def test_the_honest_are_not_unusual_whether_the_policy_learns_or_not(learning: float) -> None:
    assert swarm_of(random.Random(1), Unusual(), 20_000, learning=learning) == 0


def test_a_peer_that_is_always_behind_by_a_little_is_not_unusual() -> None:
    dice, unusual = random.Random(2), Unusual()
    swarm_of(dice, unusual, 500)
    for _ in range(1000):
        swarm_of(dice, unusual, 5)
        assert unusual.seen("slow", *group(dice, 0.48)) is None


@pytest.mark.parametrize("honest", [0, 200])
@pytest.mark.parametrize(
    ("share", "tokens", "word"), [(0.95, 100.0, "reward +"), (0.1, 100.0, "reward -"), (0.5, 40.0, "length -")]
)
def test_who_is_paid_more_or_less_or_writes_otherwise_is_seen_soon(
    share: float, tokens: float, word: str, honest: int
) -> None:
    dice, unusual = random.Random(3), Unusual()
    swarm_of(dice, unusual, 500)
    for _ in range(honest):
        assert unusual.seen("sleeper", *group(dice, 0.5)) is None
    until = 0
    told = None
    while told is None:
        swarm_of(dice, unusual, 5)
        told, until = unusual.seen("sleeper", *group(dice, share, tokens)), until + 1
    assert until <= 32
    assert told.startswith(word)
    assert "standard errors" in told


def test_a_task_that_always_pays_the_same_makes_nobody_unusual() -> None:
    unusual = Unusual()
    for number in range(500):
        assert unusual.seen(str(number % 7), [1.0] * 4, [3] * 4) is None
        assert unusual.seen("silent", [], []) is None


def test_memory_is_bounded() -> None:
    unusual = Unusual()
    for number in range(PEERS_REMEMBERED + 10):
        unusual.seen(str(number), [1.0], [3])
    assert len(unusual._peers) == PEERS_REMEMBERED
    assert "0" not in unusual._peers
