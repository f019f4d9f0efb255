"""A peer that is unlike the swarm is checked: soon where it pays, and seldom where nothing is wrong."""

from __future__ import annotations

import random

import pytest

from learner.trust.outliers import PEERS_REMEMBERED, Unusual


def group(dice: random.Random, share: float, tokens: float = 100.0) -> tuple[list[float], list[int]]:
    """Four completions of a prompt of its own difficulty, about `share` of them right."""
    hard = min(1.0, max(0.0, dice.gauss(share, 0.2)))
    lengths = [round(tokens * dice.lognormvariate(0, 0.3)) for _ in range(4)]
    return [float(dice.random() < hard) for _ in lengths], lengths


def seen(unusual: Unusual, peer: str, rewards: list[float], tokens: list[int]) -> str | None:
    unusual.delivered(peer, "words", rewards, tokens)
    return unusual.describe(peer)


def swarm_of(dice: random.Random, unusual: Unusual, groups: int, share: float = 0.5, learning: float = 0.0) -> int:
    """So many groups of twenty honest peers; return how often one was told to be unusual."""
    told = 0
    for number in range(groups):
        rewards, tokens = group(dice, share + learning * number / groups)
        told += seen(unusual, f"peer {number % 20}", rewards, tokens) is not None
    return told


@pytest.mark.parametrize("learning", [-0.4, 0.0, 0.4], ids=["collapsing", "standing still", "learning"])
def test_the_honest_are_not_unusual_whether_the_policy_learns_or_not(learning: float) -> None:
    assert swarm_of(random.Random(1), Unusual(), 20_000, learning=learning) == 0


def test_a_peer_that_is_always_behind_by_a_little_is_not_unusual() -> None:
    dice, unusual = random.Random(2), Unusual()
    swarm_of(dice, unusual, 500)
    for _ in range(1000):
        swarm_of(dice, unusual, 5)
        assert seen(unusual, "slow", *group(dice, 0.48)) is None


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
        assert seen(unusual, "sleeper", *group(dice, 0.5)) is None
    until = 0
    told = None
    while told is None:
        swarm_of(dice, unusual, 5)
        told, until = seen(unusual, "sleeper", *group(dice, share, tokens)), until + 1
    assert until <= 32
    assert told.startswith(word)
    assert "standard errors" in told


def test_who_has_more_of_an_easy_task_than_others_is_not_unusual() -> None:
    """A slow peer is given short prompts, which may all be of one task."""
    dice, unusual = random.Random(4), Unusual()
    for number in range(4000):
        task, share, tokens = ("easy", 0.9, 20.0) if number % 4 == 0 or number % 20 == 7 else ("hard", 0.2, 200.0)
        peer = f"peer {number % 20}"
        unusual.delivered(peer, task, *group(dice, share, tokens))
        assert unusual.describe(peer) is None


def test_a_task_that_always_pays_the_same_makes_nobody_unusual() -> None:
    unusual = Unusual()
    for number in range(500):
        assert seen(unusual, str(number % 7), [1.0] * 4, [3] * 4) is None
        assert seen(unusual, "silent", [], []) is None


def test_memory_is_bounded() -> None:
    unusual = Unusual()
    for number in range(PEERS_REMEMBERED + 10):
        seen(unusual, str(number), [1.0], [3])
    assert len(unusual._peers) == PEERS_REMEMBERED
    assert "0" not in unusual._peers


def drift(dice: random.Random, lag: int, noise: float = 0.0) -> float:
    """How far a group's log probabilities are from the policy's, by its lag and by its engine's arithmetic."""
    return noise + 0.03 * lag * dice.lognormvariate(0, 0.4)


def trained(dice: random.Random, unusual: Unusual, groups: int) -> int:
    """So many groups of twenty honest peers: five of them compute in bfloat16, and each has a lag that it mostly has;
    return how often one was told to be unusual."""
    told = 0
    for number in range(groups):
        peer = number % 20
        lag = peer % 4 if dice.random() < 0.8 else dice.randrange(4)
        unusual.trained(f"peer {peer}", lag, drift(dice, lag, 0.008 if peer < 5 else 0.0))
        told += unusual.describe(f"peer {peer}") is not None
    return told


def test_the_honest_are_not_unusual_for_their_lag_or_their_arithmetic() -> None:
    assert trained(random.Random(4), Unusual(), 20_000) == 0


def test_one_in_bfloat16_among_those_in_float32_is_not_unusual() -> None:
    unusual = Unusual()
    for number in range(2000):
        unusual.trained(f"peer {number % 20}", 0, 0.015 if number % 20 == 0 else 1e-6)
        assert unusual.describe("peer 0") is None


@pytest.mark.parametrize(("lag", "claims"), [(0, 0.3), (1, 0.3), (3, 0.5), (1, 20.0)])
def test_who_claims_what_its_version_does_not_say_is_seen_soon(lag: int, claims: float) -> None:
    dice, unusual = random.Random(5), Unusual()
    trained(dice, unusual, 2000)
    until, told = 0, None
    while told is None:
        assert trained(dice, unusual, 5) == 0
        unusual.trained("liar", lag, claims)
        told, until = unusual.describe("liar"), until + 1
    assert until <= 20
    assert told.startswith("mismatch +")
    for _ in range(200):
        trained(dice, unusual, 5)
        unusual.trained("liar", lag, drift(dice, lag))
    assert unusual.describe("liar") is None, "that is over"


def test_absurd_claims_of_some_hide_nobody() -> None:
    dice, unusual = random.Random(6), Unusual()
    told = dict.fromkeys(("absurd", "liar"), 0)
    for _ in range(300):
        trained(dice, unusual, 20)
        unusual.trained("absurd", 1, 100.0)
        unusual.trained("liar", 1, 0.3)
        for peer in told:
            told[peer] += unusual.describe(peer) is not None
    assert min(told.values()) > 250
