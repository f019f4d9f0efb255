"""Simulate honest peers under the tests that ban, for a thousand peer-days.

Invariants:

- The tests are those of the product.
- The peers are as bad as an honest one may be: for every margin, tokens exceed it at the allowed rate, independently;
  and what selective delivery could have gained is only chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from learner.trust.audit_history import AuditHistory, after, audit_share
from learner.trust.ban_evidence import Audited, Counted, History, Margin, Measure, bands_of, is_convicted, wagered
from learner.trust.selection_test import CONTROLS, CompletionValue, DeliveryOutcome, VersionGain, seen

GROUPS_A_DAY = 2000
"""Groups that a peer delivers in a day: one in 43 s."""

TOKENS = 8 * 512
"""Tokens of a group: eight completions of 512 tokens."""

WITHHELD_A_DAY = 20
"""Groups that a peer has to return in one day, which counts as withholding them."""

LOOKED_AT_A_DAY = 20
"""Delivered groups in one day for which another version's completions from their seeds are generated as well."""

COMPLETIONS = 16
"""Completions of a group that is checked for selective delivery."""

CUT_OFF = 512
"""Tokens at which a completion is cut off, with a reward of 0; half of them are. The share RIGHT of the others is
right."""
RIGHT = 0.8

CHANGED = 0.02
ROUNDED = 0.01
"""Shares of tokens that differ: with the other version, and with an engine that rounds differently. The text after such
a token is another one."""

CLOSE = 1 / 16
"""Share of the draws at each of the smaller leads: at least as many as any measured policy had."""

DAYS = 10
"""Days of one peer."""


@dataclass(frozen=True, kw_only=True)
class Lives:
    """The fate of honest peers in `peer_days`: `audits` made, how many `failed`, `choices` groups checked for selective
    delivery, and peers `banned`."""

    peer_days: int
    audits: int
    failed: int
    choices: int
    banned: int


class _Ended(NamedTuple):
    """The lengths and rewards of completions."""

    tokens: np.ndarray[Any, Any]
    rewards: np.ndarray[Any, Any]

    @classmethod
    def drawn(cls, dice: np.random.Generator, begun: np.ndarray[Any, Any]) -> _Ended:
        """Return completions that continue after `begun` tokens."""
        tokens = np.minimum(begun + dice.geometric(math.log(2) / CUT_OFF, COMPLETIONS), CUT_OFF)
        return cls(tokens, ((tokens < CUT_OFF) & (dice.random(COMPLETIONS) < RIGHT)).astype(float))

    def parted(self, dice: np.random.Generator, rate: float) -> _Ended:
        """Return the same completions where one token in 1 / `rate` differs."""
        at = dice.geometric(rate, COMPLETIONS)
        other = _Ended.drawn(dice, np.minimum(at, CUT_OFF - 1))
        return _Ended(*(np.where(at < self.tokens, a, b) for a, b in zip(other, self, strict=True)))


def _group(dice: np.random.Generator, *, theirs: bool) -> list[CompletionValue]:
    """Return a withheld group, or one compared with it: the learner generates both."""
    made = _Ended.drawn(dice, np.zeros(COMPLETIONS, np.int64))
    return [CompletionValue(tokens=int(tokens), reward=float(reward)) for tokens, reward in zip(*made, strict=True)]


def _beside(dice: np.random.Generator, *, theirs: bool) -> list[CompletionValue]:
    """Return a group that two versions generated, from the peer's engine with its rounding, or from ours."""
    here = _Ended.drawn(dice, np.zeros(COMPLETIONS, np.int64))
    there, said = here.parted(dice, CHANGED), here.parted(dice, ROUNDED) if theirs else here
    gains = [
        VersionGain(tokens=int(tokens), value=float(gain))
        for tokens, gain in zip(here.tokens, here.rewards - there.rewards, strict=True)
    ]
    return [
        CompletionValue(tokens=int(tokens), reward=float(reward), gains=gain)
        for tokens, reward, gain in zip(*said, gains, strict=True)
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
    """Simulate the peers' days; return their fate."""
    dice = np.random.default_rng(seed)
    audits = failed = choices = banned = 0
    for _ in range(max(1, peer_days // DAYS)):
        known, history = AuditHistory(), History()
        is_banned = False
        left = GROUPS_A_DAY * DAYS
        while left > 0:
            left -= int(dice.geometric(audit_share(known.passed)))  # groups until the next that is audited
            known, finding = after(known, _audit(dice, margins), margins)
            audits, failed = audits + 1, failed + (not finding.passed)
            is_banned = is_banned or finding.convicted
        chosen = [(DeliveryOutcome.WITHHELD, _group)] * WITHHELD_A_DAY + [
            (DeliveryOutcome.DELIVERED, _beside)
        ] * LOOKED_AT_A_DAY
        for choice, group in chosen * DAYS:
            ours = [one for _ in range(CONTROLS[choice]) for one in group(dice, theirs=False)]
            if (
                found := seen(choice, group(dice, theirs=True), ours, withheld=WITHHELD_A_DAY / GROUPS_A_DAY)
            ) is not None:
                history = wagered(history, found.log_ratios)
            choices += 1
            is_banned = is_banned or is_convicted(history)
        banned += is_banned
    return Lives(peer_days=peer_days, audits=audits, failed=failed, choices=choices, banned=banned)
