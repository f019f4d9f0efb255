"""What work costs: prices as peers state them, claims as they sign them.

Money is counted in millionths of one unit of the swarm's currency (`micros`), as integers, so that sums are exact. A
claim is believed as far as the lease's own timing bears it out; that judgement is the learner's.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from protocol.core.codec import Message, Seconds
from protocol.core.limits import MAX_MICROS_PER_HOUR

MICROS = 1_000_000
CURRENCY = "USD"


class Price(Message, frozen=True, kw_only=True):
    """What a peer asks for an hour of its time while active: millionths of `currency` per hour; zero is a gift."""

    micros_per_hour: Annotated[int, Meta(ge=0, le=MAX_MICROS_PER_HOUR)] = 0
    currency: Annotated[str, Meta(min_length=3, max_length=3, pattern=r"^[A-Z]*\Z")] = CURRENCY


class CostClaim(Message, frozen=True, kw_only=True):
    """What one completion took: wall seconds of the engine, this completion's share of its batch."""

    engine_s: Seconds


def cost_micros(seconds: float, price: Price) -> int:
    """Cost of `seconds` at `price`, in millionths of its currency, rounded to the nearest."""
    return round(seconds * price.micros_per_hour / 3600)


def per_thousand_tokens(micros: int, tokens: int) -> float | None:
    """Cost in whole currency units per 1000 tokens; None when there are no tokens to spread it over."""
    return micros / MICROS / tokens * 1000 if tokens else None
