"""Honest peers under the tests that ban, for a thousand days of theirs.

What always holds: the tests are those that run; the peers are as bad as an honest one may be: of every margin as many
are beyond as its rate allows, each by itself, and what it may have chosen is worth what chance makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from learner.verification.choosing import CONTROLS, Choice, Worth, heard_choice, seen
from learner.verification.confidence import Confidence, after
from learner.verification.sequential import Audited, Counted, History, Margin, Measure, bands_of, is_convicted
from learner.verification.share import audit_share

GROUPS_A_DAY = 2000
"""Groups that a peer delivers in a day: one in 43 s."""

TOKENS = 8 * 512
"""Of a group: eight completions of 512 tokens."""

WITHHELD_A_DAY = 20
"""Groups that it had to give back, in one day."""

LOOKED_AT_A_DAY = 20
"""Groups that it delivered, and of which is drawn as well what another version makes of their seeds."""

CHANGED = 0.3
"""Of completions: worth something else with the other version. Those of an engine that rounds otherwise may all be."""

COMPLETIONS = 8
"""Of a group; half of them are right."""

CLOSE = 1 / 16
"""Of its draws, at each of the smaller leads: as many as any policy had that was measured, and more."""

DAYS = 10
"""Of one peer."""


@dataclass(frozen=True, kw_only=True)
class Lives:
    """What became of honest peers in so many `peer_days`: `audits` were made, of which `failed` failed, `choices`
    groups were drawn, and `banned` peers were banned."""

    peer_days: int
    audits: int
    failed: int
    choices: int
    banned: int


def _group(dice: np.random.Generator) -> list[Worth]:
    return [Worth(tokens=TOKENS // COMPLETIONS, reward=float(one)) for one in dice.integers(2, size=COMPLETIONS)]


def _beside(dice: np.random.Generator) -> list[Worth]:
    """A group of which two versions were drawn, and what its peer's own engine made is worth what chance says."""
    here, there, said = (dice.integers(2, size=COMPLETIONS) for _ in range(3))
    there = np.where(dice.random(COMPLETIONS) < CHANGED, there, here)
    return [
        Worth(tokens=TOKENS // COMPLETIONS, reward=float(own), gain=float(one - other))
        for own, one, other in zip(said, here, there, strict=True)
    ]


def _audit(dice: np.random.Generator, margins: Sequence[Margin]) -> Audited:
    clearest, *close = bands_of(margins)
    drawn = dice.multinomial(TOKENS, [1 - len(close) * CLOSE, *(CLOSE for _ in close)]).tolist()
    trials = dict.fromkeys(margins, TOKENS) | dict(zip([clearest, *close], drawn, strict=True))
    trials |= {margin: 1 for margin in margins if margin.measure is Measure.MEAN}
    counts = tuple(
        Counted(above=int(dice.binomial(trials[margin], margin.rate)), trials=trials[margin]) for margin in margins
    )
    return Audited(tokens=TOKENS, counts=counts)


def lives(margins: Sequence[Margin], *, peer_days: int, seed: int) -> Lives:
    """Live them."""
    dice = np.random.default_rng(seed)
    audits = failed = choices = banned = 0
    for _ in range(max(1, peer_days // DAYS)):
        known, history = Confidence(), History()
        is_banned = False
        left = GROUPS_A_DAY * DAYS
        while left > 0:
            left -= int(dice.geometric(audit_share(known.passed)))  # groups until the next that is audited
            known, finding = after(known, _audit(dice, margins), margins)
            audits, failed = audits + 1, failed + (not finding.passed)
            is_banned = is_banned or finding.convicted
        chosen = [(Choice.WITHHELD, _group)] * WITHHELD_A_DAY + [(Choice.DELIVERED, _beside)] * LOOKED_AT_A_DAY
        for choice, group in chosen * DAYS:
            ours = [one for _ in range(CONTROLS[choice]) for one in group(dice)]
            if (found := seen(choice, group(dice), ours, withheld=WITHHELD_A_DAY / GROUPS_A_DAY)) is not None:
                history = heard_choice(history, found)
            choices += 1
            is_banned = is_banned or is_convicted(history)
        banned += is_banned
    return Lives(peer_days=peer_days, audits=audits, failed=failed, choices=choices, banned=banned)
