"""Define what a report shows of a run's costs by start of the learner, by day and by version. Pure.

Invariants:

- Every value is defined once, for tables, pages, JSON and CSV.
- Columns without any value are left out of tables.
- The line below adds up the whole run, even if only the latest rows are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.box import Box
from rich.console import Group, RenderableType

from node.reports.model.costs import Account, kwh_of, money_for
from node.reports.model.report import SwarmReport
from node.reports.text.columns import Column, Section, chosen, drawn_sections
from node.reports.text.peer_columns import amounts_of, cents_of, has_prices, only_currency
from node.reports.text.tables import Strip
from node.runtime import formatting as words
from protocol.accounting.claims import MICROS

ACCOUNTS_LISTED = 12
"""Rows of each kind in a terminal, the latest; the JSON and CSV forms have all."""

HOUR_MS = 3_600_000

SHOWN = (
    "lasted hours_active hours_standby costs learner_costs kwh electricity tokens cents_per_1000_tokens bytes_up"
    " bytes_down"
)
ONLY_TABLES = {"lasted"}


def account_section(report: SwarmReport, title: str) -> Section[Account]:
    """Return the columns of an account for people; columns in which every value is nothing are left out."""
    told = {
        "hours_standby": any(peer.standby_s > 0 for peer in report.peers),
        **dict.fromkeys(("costs", "cents_per_1000_tokens"), has_prices(report)),
        "learner_costs": any(report.learner_costs.values()),
        "kwh": report.joules is not None,
        "electricity": report.joules is not None and report.terms.per_kwh is not None,
    }
    (section,) = chosen(account_columns(report), {title: SHOWN}, (key for key, is_told in told.items() if not is_told))
    return section


def account_columns(report: SwarmReport) -> tuple[Column[Account], ...]:
    """Return all columns of an account, in the order of JSON and CSV. CSV has a row for each currency."""
    currency, per_kwh = only_currency(report), report.terms.per_kwh
    unit = "" if currency is None else f", {currency}"

    def money(amounts: Mapping[str, int]) -> str:
        asked = {name: micros for name, micros in amounts.items() if micros or len(amounts) == 1}
        return amounts_of(asked, currency) or words.NOTHING

    return (
        *_plain("name", "began_s", "ended_s"),
        Column(
            key="lasted", value=lambda row: row.ended_s - row.began_s, heading="lasted", show=words.short_duration,
            total=lambda r: words.duration(r.accounts.lasted_s),
        ),
        _hours("active", "hours\nactive"),
        _hours("standby", "hours on\nstandby"),
        Column(
            key="costs", value=lambda row: whole(row.costs), heading=f"cost{unit}",
            write=lambda row: money(row.costs), total=lambda r: money(r.costs),
            spread=lambda found: {"currency": next(iter(found), None), "cost": _only(found)},
        ),
        Column(
            key="costs_micros", value=lambda row: row.costs, spread=lambda found: {"cost_micros": _only(found)}
        ),
        Column(
            key="learner_costs", value=lambda row: whole(row.learners), heading="of it the\nlearner's",
            write=lambda row: money(row.learners),
            total=lambda r: money({name: micros for name, micros in r.learner_costs.items() if micros}),
            spread=lambda found: {"learner_cost": _only(found)},
        ),
        Column(
            key="kwh", value=lambda row: kwh_of(row.joules), heading="kWh",
            write=lambda row: words.kwh(row.joules), total=lambda r: words.kwh(r.joules),
        ),
        *_plain("joules"),
        Column(
            key="electricity", value=lambda row: money_for(row.joules, per_kwh),
            heading=f"electricity,\n{report.terms.currency}", show=lambda paid: words.money(paid, ""),
            total=lambda r: words.money(money_for(r.joules, per_kwh), ""),
        ),
        _counted("bytes_up", "chunks\nup", words.size),
        _counted("bytes_down", "chunks\ndown", words.size),
        _counted("tokens", "tokens\nadmitted", words.count),
        Column(
            key="cents_per_1000_tokens", heading="cents per\n1k tokens",
            write=lambda row: cents_of(row.costs, row.tokens, currency),
            total=lambda r: cents_of(r.costs, r.tokens, currency),
            spread=lambda found: {"cents_per_1000_tokens": _only(found)},
        ),
    )  # fmt: skip


def whole(micros: Mapping[str, int]) -> dict[str, float]:
    """Return amounts by currency, in whole units of it."""
    return {currency: amount / MICROS for currency, amount in micros.items()}


def _only(found: Mapping[Any, Any]) -> Any:
    return next(iter(found.values()), None)


def _plain(*keys: str) -> tuple[Column[Account], ...]:
    return tuple(Column(key=key) for key in keys)


def _hours(which: str, heading: str) -> Column[Account]:
    return Column(
        key=f"hours_{which}",
        value=lambda row: getattr(row, f"{which}_ms") / HOUR_MS,
        heading=heading,
        show=words.in_hours,
        total=lambda report: words.hours(sum(getattr(peer, f"{which}_s") for peer in report.peers)),
    )


def _counted(key: str, heading: str, show: Callable[[int], str]) -> Column[Account]:
    return Column(key=key, heading=heading, show=show, total=lambda report: show(getattr(report, key)))


def account_tables(report: SwarmReport, *, width: int, box: Box) -> RenderableType:
    """Return the accounts of each kind as tables of at most `width` columns."""
    return Group(*(part for kind in report.accounts.kinds for part in _account_table(report, kind, width, box)))


def _account_table(report: SwarmReport, kind: str, width: int, box: Box) -> Iterator[RenderableType]:
    rows = report.accounts.kinds[kind]
    if len(rows) < 2:  # it would repeat the line of all
        return
    shown = rows[-ACCOUNTS_LISTED:]
    section = account_section(report, latest(f"Cost by {kind}", len(shown), len(rows)))
    names = Strip(heading=kind, cells=[row.name for row in shown])
    yield from drawn_sections([section], shown, [("total", report)], names, width=width, box=box)


def latest(title: str, shown: int, number: int) -> str:
    """Return a title that says how many of all rows are shown."""
    return title if shown == number else f"{title}, the last {shown} of {number:,}"
