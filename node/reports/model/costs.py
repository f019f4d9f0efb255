"""What a run cost, by what it made and when: rows by version, by start of the learner and by day, as values.

What always holds: every row counts everybody, the learner included, so the rows of a table add up to what the report
says of the run; money is by currency, in millionths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.accounting.claims import JOULES_PER_KWH, per_thousand_tokens


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A rented machine to hold peers against: what an hour of it costs, and how many tokens a second it generates."""

    name: str
    per_hour: float
    tokens_per_s: float

    @property
    def per_1000_tokens(self) -> float:
        return self.per_hour / 3600 / self.tokens_per_s * 1000


@dataclass(frozen=True, kw_only=True)
class CostTerms:
    """What costs are held against, in `currency`: what a kWh costs, and a reference, each None where nobody said."""

    currency: str = ""
    per_kwh: float | None = None
    reference: Reference | None = None


NO_TERMS = CostTerms()


@dataclass(frozen=True, kw_only=True)
class Account:
    """What fell between `began_s` and `ended_s`, in seconds since the run began. `costs` are those of rollout peers and
    of the learner, `learners` of them the learner's. `joules` are those that are believed; None where nobody told any.
    """

    name: str
    began_s: float
    ended_s: float
    active_ms: int
    standby_ms: int
    costs: Mapping[str, int]
    learners: Mapping[str, int]
    joules: int | None
    bytes_up: int
    bytes_down: int
    tokens: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened and nobody was there."""
        sums = (self.active_ms, self.standby_ms, self.joules, self.bytes_up, self.bytes_down, self.tokens)
        return not any(sums) and not any(self.costs.values())

    @property
    def cents_per_1000_tokens(self) -> Mapping[str, float | None]:
        """By currency, in hundredths of it; None while nothing was admitted."""
        return cents_by_currency(self.costs, self.tokens)


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """Three times the same run. `versions`: while each was the newest, and what came before the first, by name;
    `runs`: starts of the learner; `days`: in UTC, those on which anything happened. All in order of time.
    """

    versions: tuple[Account, ...] = field(default=())
    runs: tuple[Account, ...] = field(default=())
    days: tuple[Account, ...] = field(default=())

    @property
    def lasted_s(self) -> float:
        """From the beginning of the first row to the end of the last: what the starts last together."""
        return self.runs[-1].ended_s - self.runs[0].began_s if self.runs else 0.0

    @property
    def kinds(self) -> Mapping[str, tuple[Account, ...]]:
        """By what a row of each is, from the coarsest."""
        return {"run": self.runs, "day": self.days, "version": self.versions}


NO_ACCOUNTS = Accounts()


def cents_per_thousand(micros: int, tokens: int) -> float | None:
    """Hundredths of a currency unit for 1000 tokens; None when there are no tokens to spread it over."""
    whole = per_thousand_tokens(micros, tokens)
    return None if whole is None else 100 * whole


def cents_by_currency(costs: Mapping[str, int], tokens: int) -> dict[str, float | None]:
    """The same, of amounts in millionths by currency."""
    return {currency: cents_per_thousand(micros, tokens) for currency, micros in costs.items()}


def kwh_of(joules: float | None) -> float | None:
    """None where they are not known."""
    return None if joules is None else joules / JOULES_PER_KWH


def money_for(joules: float | None, per_kwh: float | None) -> float | None:
    """What joules cost, in whole units of the currency of `per_kwh`; None where either is not known."""
    return None if joules is None or per_kwh is None else joules / JOULES_PER_KWH * per_kwh
