"""Repeat the paper's own ablation (ECHO-2, Table 2), by its own rule: without peer-to-peer, and without prices.

Invariants:

- All of it is `learner.provisioning.model.echo2`, with a learner of four A100 and a pool of equal cards whose prices
  and rates differ as offers do.
- A swarm without peer-to-peer has as many machines or one more, as in Table 2, whichever is cheaper.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from learner.provisioning.model.echo2 import mu_target, wait_s
from learner.provisioning.model.windows import Timings

TRAIN_S, BROADCAST_S, KAPPA, ROLLOUTS = 1631.2, 1437.0, 2, 2048
"""From Table 2, and S = 3. R is not printed; it is 128 prompts of 16 rollouts."""

STAR_S = 1830.0 / 9
"""Without peer-to-peer a version took 1830 s to reach nine machines: the learner sends each its own copy."""

LEARNER_PRICE = 4 * 3.06
CARDS, CARD_PRICE, CARD_RATE = 40, 0.35, 0.27
SPREAD = 0.35
"""Deviation of the logarithm of a price; that of a rate is half of it."""


@dataclass(frozen=True)
class Card:
    price: float
    rate: float


@dataclass(frozen=True)
class Ablation:
    """USD per training step, the learner's included, and numbers of machines."""

    full: float
    no_p2p: float
    no_cost: float
    machines: int
    machines_no_p2p: int


def ablation(seed: int) -> Ablation:
    """Return the ablation of one pool."""
    rng = random.Random(seed)
    cards = [
        Card(CARD_PRICE * rng.lognormvariate(0, SPREAD), CARD_RATE * rng.lognormvariate(0, SPREAD / 2))
        for _ in range(CARDS)
    ]
    by_rho = sorted(cards, key=lambda card: card.price / card.rate)
    chosen, blind = _enough(by_rho), _enough(rng.sample(cards, CARDS))
    star = {count: per_step(by_rho[:count], STAR_S * count) for count in (len(chosen), len(chosen) + 1)}
    best = min(star, key=lambda count: star[count])
    return Ablation(
        full=per_step(chosen, BROADCAST_S),
        no_p2p=star[best],
        no_cost=per_step(blind, BROADCAST_S),
        machines=len(chosen),
        machines_no_p2p=best,
    )


def per_step(cards: Sequence[Card], broadcast_s: float) -> float:
    """Return the USD of a step, with the wait that equation (1) predicts."""
    timings = _timings(broadcast_s)
    period_s = TRAIN_S + wait_s(timings, KAPPA, math.fsum(card.rate for card in cards))
    return (LEARNER_PRICE + math.fsum(card.price for card in cards)) * period_s / 3600


def _enough(cards: Sequence[Card]) -> Sequence[Card]:
    target, rate = mu_target(_timings(BROADCAST_S), KAPPA), 0.0
    for count, card in enumerate(cards, start=1):
        rate += card.rate
        if rate >= target:
            return cards[:count]
    return cards


def _timings(broadcast_s: float) -> Timings:
    return Timings(train_s=TRAIN_S, rollouts=ROLLOUTS, broadcast_s=broadcast_s)
