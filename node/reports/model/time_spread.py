"""Spread amounts over stretches of time: how much had accumulated by a moment, and how much fell between two.

Pure, and the one place that spreads costs, hours, joules and bytes over time, for curves and for tables.

Invariants:

- An amount is spread evenly over its stretch.
- An amount without a length counts at its moment; at a cut, it belongs to what comes after.
- The divided parts add up exactly to the total.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter, le, lt

SHORTEST_S = 0.001
"""Seconds. Ledgers have milliseconds, so a shorter stretch counts at its moment: higher rates would leave nothing of
the other amounts in a sum of doubles."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """An `amount` that is spread from `began_s` until `ended_s`."""

    began_s: float
    ended_s: float
    amount: float


def accumulated(pieces: Iterable[Piece], moments: Sequence[float], *, before: bool = False) -> list[float]:
    """Return what had accumulated by each of `moments`, which are in order; it never falls. `before`: without amounts
    at that very moment.
    """
    changes: list[tuple[float, float, float]] = []  # when, change of the rate, amount at once
    for piece in pieces:
        if (seconds := piece.ended_s - piece.began_s) >= SHORTEST_S:
            per_s = piece.amount / seconds
            changes += [(piece.began_s, per_s, 0.0), (piece.ended_s, -per_s, 0.0)]
        else:
            changes.append((piece.ended_s, 0.0, piece.amount))
    changes.sort(key=itemgetter(0))
    found: list[float] = []
    at_s, rate, amount, place, highest = 0.0, 0.0, 0.0, 0, 0.0
    is_reached = lt if before else le
    for moment in moments:
        while place < len(changes) and is_reached(changes[place][0], moment):
            when, change, at_once = changes[place]
            amount += rate * (when - at_s) + at_once
            at_s, rate, place = when, rate + change, place + 1
        amount, at_s = amount + rate * (moment - at_s), moment
        highest = max(highest, amount)
        found.append(highest)
    return found


def divided(total: int, pieces: Sequence[Piece], cuts: Sequence[float]) -> list[int]:
    """Divide `total`, which is spread like `pieces`, into the parts before, between and after `cuts`, which are in
    order.

    If the pieces add up to nothing, all of it falls on the beginning of the first piece, or before all cuts.
    """
    whole = sum(piece.amount for piece in pieces)
    if whole <= 0:
        began_s = min((piece.began_s for piece in pieces), default=min(cuts, default=0.0) - 1)
        pieces, whole = [Piece(began_s=began_s, ended_s=began_s, amount=1.0)], 1.0
    upto = [min(total, round(total * amount / whole)) for amount in accumulated(pieces, cuts, before=True)]
    return [end - begin for begin, end in zip([0, *upto], [*upto, total], strict=True)]
