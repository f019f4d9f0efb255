"""Tables of what a run cost: by start of the learner, by day, by version.

Pure. What always holds: columns of what nobody told or asked for are left out; the line below adds up the whole run,
also where only the latest rows are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.box import Box
from rich.console import Group, RenderableType
from rich.padding import Padding

from node.reports.model.costs import Account, CostTerms, cents_per_thousand, money_for
from node.reports.model.report import Role, SwarmReport
from node.reports.text.peer_columns import Column, Section, Sheet, added, only_currency, packed
from node.runtime import formatting as words

ACCOUNTS_LISTED = 12
"""Rows of each kind in a terminal, the latest; the JSON and CSV forms have all."""

KINDS = ("run", "day", "version")
"""Of accounts, from the coarsest: what a row of each is."""


def account_columns(report: SwarmReport) -> tuple[Column[Account], ...]:
    """What a report tells of its accounts; columns in which all is nothing are left out."""
    currency = only_currency(report)
    unit = "" if currency is None else f", {currency}"

    def money(amounts: Mapping[str, int]) -> str:
        asked = [(name, micros) for name, micros in amounts.items() if micros or len(amounts) == 1]
        return "\n".join(words.money_of(m, name if currency is None else "") for name, m in asked) or words.NOTHING

    def cents(costs: Mapping[str, int], tokens: int) -> str:
        asked = [(name, cents_per_thousand(micros, tokens)) for name, micros in costs.items()]
        return "\n".join(words.cents(c, name if currency is None else "") for name, c in asked) or words.NOTHING

    learners = {peer.price.currency: peer.cost_micros for peer in report.peers if peer.role is Role.LEARNER}
    columns: list[Column[Account]] = [
        Column(
            heading="lasted",
            cell=lambda row: words.duration(row.ended_s - row.began_s),
            total=lambda r: words.duration(r.accounts.lasted_s),
            number=lambda row: row.ended_s - row.began_s,
        ),
        Column(
            heading="hours\nactive",
            cell=lambda row: words.hours(row.active_ms / 1000),
            total=added(lambda p: p.active_s, words.hours),
            number=lambda row: row.active_ms / 1000,
        ),
    ]
    if any(peer.standby_s > 0 for peer in report.peers):
        standby: Column[Account] = Column(
            heading="hours\nstanding by",
            cell=lambda row: words.hours(row.standby_ms / 1000),
            total=added(lambda p: p.standby_s, words.hours),
            number=lambda row: row.standby_ms / 1000,
        )
        columns.append(standby)
    columns.append(Column(heading=f"cost{unit}", cell=lambda row: money(row.costs), total=lambda r: money(r.costs)))
    if any(learners.values()):
        columns.append(
            Column(
                heading="of it the\nlearner's",
                cell=lambda row: money(row.learners),
                total=lambda _: money({name: micros for name, micros in learners.items() if micros}),
            )
        )
    if report.joules is not None:
        columns.append(_kwh_of_accounts())
        columns += _electricity_of_accounts(report.terms)
    columns += [
        Column(
            heading="tokens\nadmitted",
            cell=lambda row: words.count(row.tokens),
            total=lambda r: words.count(r.tokens),
            number=lambda row: row.tokens,
        ),
        Column(
            heading="cents per\n1k tokens",
            cell=lambda row: cents(row.costs, row.tokens),
            total=lambda r: cents(r.costs, r.tokens),
        ),
        Column(
            heading="bytes\nup",
            cell=lambda row: words.size(row.bytes_up),
            total=lambda r: words.size(r.bytes_up),
            number=lambda row: row.bytes_up,
        ),
        Column(
            heading="bytes\ndown",
            cell=lambda row: words.size(row.bytes_down),
            total=lambda r: words.size(r.bytes_down),
            number=lambda row: row.bytes_down,
        ),
    ]
    return tuple(columns)


def _kwh_of_accounts() -> Column[Account]:
    return Column(
        heading="kWh",
        cell=lambda row: words.kwh(row.joules),
        total=lambda r: words.kwh(r.joules),
        number=lambda row: row.joules,
    )


def _electricity_of_accounts(terms: CostTerms) -> list[Column[Account]]:
    if terms.per_kwh is None:
        return []
    return [
        Column(
            heading=f"electricity,\n{terms.currency}",
            cell=lambda row: words.money(money_for(row.joules, terms.per_kwh), ""),
            total=lambda r: words.money(money_for(r.joules, terms.per_kwh), ""),
            number=lambda row: money_for(row.joules, terms.per_kwh),
        )
    ]


def accounts(report: SwarmReport, kind: str) -> tuple[Account, ...]:
    """The rows of a kind of KINDS."""
    return {"run": report.accounts.runs, "day": report.accounts.days, "version": report.accounts.versions}[kind]


def account_tables(report: SwarmReport, *, width: int, box: Box) -> RenderableType:
    """What the run cost by start of the learner, by day and by version, in tables of at most `width` columns."""
    return Group(*(part for kind in KINDS for part in _account_table(report, kind, width, box)))


def _account_table(report: SwarmReport, kind: str, width: int, box: Box) -> Iterator[RenderableType]:
    rows = accounts(report, kind)
    if len(rows) < 2:  # it would say what the line of all says
        return
    shown = rows[-ACCOUNTS_LISTED:]
    latest = f", the last {len(shown)} of {len(rows):,}" if len(shown) < len(rows) else ""
    sheet = Sheet(
        rows=shown,
        whole=report,
        names=Column(heading=kind, cell=lambda row: row.name, total=lambda _: "together", left=True),
        box=box,
    )
    section = Section(title=f"Cost by {kind}{latest}", columns=account_columns(report))
    yield from (Padding(sheet.table(part), (0, 0, 1, 1)) for part in packed([section], width - 1, sheet))
