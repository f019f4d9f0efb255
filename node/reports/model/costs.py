"""Hold the costs of a run, by result and time: rows by version, by start of the learner and by day.

Invariants:

- Every row counts all peers and the learner, so the rows of a table add up to the report's totals.
- Money is kept by currency, in millionths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.accounting.claims import JOULES_PER_KWH, per_thousand_tokens


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A rented machine to compare peers with: its price per hour, and the tokens that it generates per second."""

    name: str
    per_hour: float
    tokens_per_s: float

    @property
    def per_1000_tokens(self) -> float:
        return self.per_hour / 3600 / self.tokens_per_s * 1000


@dataclass(frozen=True, kw_only=True)
class CostTerms:
    """The prices that costs are compared with, in `currency`: of a kWh, and of a reference; each None if not given."""

    currency: str = ""
    per_kwh: float | None = None
    reference: Reference | None = None


NO_TERMS = CostTerms()


@dataclass(frozen=True, kw_only=True)
class Account:
    """The costs and the work between `began_s` and `ended_s`, in seconds since the run began. `costs`: of rollout peers
    and the learner. `learners`: the learner's part of it. `joules`: plausible joules; None if none were reported.
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
        """Whether nothing happened and no peer was present."""
        sums = (self.active_ms, self.standby_ms, self.joules, self.bytes_up, self.bytes_down, self.tokens)
        return not any(sums) and not any(self.costs.values())

    @property
    def cents_per_1000_tokens(self) -> Mapping[str, float | None]:
        """By currency, in hundredths of it; None while nothing was admitted."""
        return cents_by_currency(self.costs, self.tokens)


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """The same run in three ways. `versions`: the time in which each was the newest, and the time before the first.
    `runs`: starts of the learner. `days`: in UTC, those on which anything happened. All are in order of time.
    """

    versions: tuple[Account, ...] = field(default=())
    runs: tuple[Account, ...] = field(default=())
    days: tuple[Account, ...] = field(default=())

    @property
    def lasted_s(self) -> float:
        """Seconds from the beginning of the first row to the end of the last: all starts together."""
        return self.runs[-1].ended_s - self.runs[0].began_s if self.runs else 0.0

    @property
    def kinds(self) -> Mapping[str, tuple[Account, ...]]:
        """The rows by kind, the coarsest first."""
        return {"run": self.runs, "day": self.days, "version": self.versions}


NO_ACCOUNTS = Accounts()


def cents_per_thousand(micros: int, tokens: int) -> float | None:
    """Return hundredths of a currency unit for 1000 tokens; None if there are no tokens."""
    whole = per_thousand_tokens(micros, tokens)
    return None if whole is None else 100 * whole


def cents_by_currency(costs: Mapping[str, int], tokens: int) -> dict[str, float | None]:
    """Return the same for amounts in millionths, by currency."""
    return {currency: cents_per_thousand(micros, tokens) for currency, micros in costs.items()}


def kwh_of(joules: float | None) -> float | None:
    """Return joules in kWh; None if they are not known."""
    return None if joules is None else joules / JOULES_PER_KWH


def money_for(joules: float | None, per_kwh: float | None) -> float | None:
    """Return what joules cost, in whole units of the currency of `per_kwh`; None if either is not known."""
    return None if joules is None or per_kwh is None else joules / JOULES_PER_KWH * per_kwh
