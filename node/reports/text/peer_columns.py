"""Tables that fit, of peers and whatever else has rows: columns gathered into as few tables as a width allows.

Pure. What always holds: a column is as wide as its widest cell and is never squeezed; sections of columns share a table
while they fit side by side, and only a section that does not fit on its own goes on in a next table, below the same
names, with as many columns in each as there may be of both. Of many peers those that matter most have a row, and
another adds up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from rich.box import Box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.reports.model.audits import PeerAudits
from node.reports.model.costs import cents_per_thousand, money_for
from node.reports.model.report import OwnReport, PeerReport, Role, SwarmReport
from node.reports.text.column_packing import packed_in
from node.runtime import formatting as words
from node.runtime.formatting import NAME_CHARS
from protocol.accounting.claims import JOULES_PER_KWH
from protocol.core.ids import short

GAP = 2
"""Blank characters between columns, and one at the left edge."""

ROOMY = 100
"""From this width on names may have their full length."""

NARROW_NAME_CHARS = 10

MOST_TRAINED = 20
LATEST_BANNED = 5
"""Rollout peers that have a row: whose rollouts were trained on most, and who was banned last. More would be pages of
rows, in each table; the other forms have all."""


Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Column(Generic[Row]):
    """What one column shows of a row, and of all together. Headings have one line or two.

    `number` is what the cell writes out, by which rows are put in order; None where the cell is text, or not known.
    """

    heading: str
    cell: Callable[[Row], str]
    total: Callable[[SwarmReport], str] = lambda _: ""
    left: bool = False
    number: Callable[[Row], float | None] = lambda _: None

    @property
    def title(self) -> str:
        """The heading on one line."""
        return self.heading.replace("-\n", "").replace("\n", " ")


@dataclass(frozen=True, kw_only=True)
class Section(Generic[Row]):
    """Columns about one subject."""

    title: str
    columns: tuple[Column[Row], ...]


def sections(report: SwarmReport | OwnReport) -> tuple[Section[PeerReport], ...]:
    """What a report tells of its peers, by subject. Currency stands in the headings when there is only one."""
    peers = report.peers
    cost = (*_cost_columns(only_currency(report)), *_energy_columns(report))
    if any(peer.standby_s > 0 for peer in peers):
        cost = (cost[0], STANDBY, *cost[1:])
    leases = (*LEASES[:-2], RECALLED, *LEASES[-2:]) if any(peer.leases.recalled for peer in peers) else LEASES
    if isinstance(report, OwnReport):
        return (Section(title="Work", columns=WORK[:-1]), Section(title="Cost and traffic", columns=cost))
    return (
        Section(title="Work", columns=WORK),
        Section(title="Cost and traffic", columns=(*cost, RELAYED)),
        Section(title="Leases", columns=leases),
        Section(title="Reputation", columns=REPUTATION),
        *((Section(title="Audits", columns=AUDITS),) if any(peer.audits for peer in peers) else ()),
    )


def only_currency(report: SwarmReport | OwnReport) -> str | None:
    """The one in which anybody asks for money; None where there are several."""
    peers = report.peers
    found = {peer.price.currency for peer in peers if peer.price.micros_per_hour} or {peers[0].price.currency}
    return found.pop() if len(found) == 1 else None


def _energy_columns(report: SwarmReport | OwnReport) -> tuple[Column[PeerReport], ...]:
    """Joules where anybody tells any, what they cost where that is known, and the reference where there is one."""
    terms, columns = report.terms, list[Column[PeerReport]]()
    if any(peer.joules is not None or peer.joules_disbelieved for peer in report.peers):
        columns.append(
            Column(
                heading="kWh",
                cell=lambda p: f"{words.kwh(p.joules)}{' (?)' if p.joules_disbelieved else ''}",
                total=lambda r: words.kwh(r.joules),
                number=lambda p: None if p.joules is None else p.joules / JOULES_PER_KWH,
            )
        )
        if terms.per_kwh is not None:
            columns.append(
                Column(
                    heading=f"electricity,\n{terms.currency}",
                    cell=lambda p: words.money(money_for(p.joules, terms.per_kwh), ""),
                    total=lambda r: words.money(money_for(r.joules, terms.per_kwh), ""),
                    number=lambda p: money_for(p.joules, terms.per_kwh),
                )
            )
    if (reference := terms.reference) is not None:
        columns.append(
            Column(
                heading="of the\nreference",
                cell=_of_rollouts(lambda p: words.share(p.against(reference, terms.currency))),
                number=_rollouts_only(lambda p: p.against(reference, terms.currency)),
            )
        )
    return tuple(columns)


def _of_rollouts(show: Callable[[PeerReport], str]) -> Callable[[PeerReport], str]:
    """The learner generates nothing: a dash says so better than a zero."""
    return lambda peer: show(peer) if peer.role is Role.ROLLOUT else words.NOTHING


def _rollouts_only(number: Callable[[PeerReport], float | None]) -> Callable[[PeerReport], float | None]:
    return lambda peer: number(peer) if peer.role is Role.ROLLOUT else None


def added(number: Callable[[PeerReport], float], show: Callable[[Any], str]) -> Callable[[SwarmReport], str]:
    return lambda report: show(sum(number(peer) for peer in report.peers))


def _counted(heading: str, number: Callable[[PeerReport], int]) -> Column[PeerReport]:
    """A count of what rollout peers did, added up."""
    cell = _of_rollouts(lambda peer: words.count(number(peer)))
    return Column(heading=heading, cell=cell, total=added(number, words.count), number=_rollouts_only(number))


def _moved(way: str, number: Callable[[PeerReport], int]) -> Column[PeerReport]:
    cell, total = (lambda p: words.size(number(p))), added(number, words.size)
    return Column(heading=f"bytes\n{way}", cell=cell, total=total, number=number)


def _scored(heading: str, which: str) -> Column[PeerReport]:
    def number(peer: PeerReport) -> float | None:
        return None if peer.reputation is None else float(getattr(peer.reputation, which))

    def cell(peer: PeerReport) -> str:
        return words.NOTHING if (score := number(peer)) is None else f"{score:.2f}"

    return Column(heading=heading, cell=cell, number=number)


WORK: tuple[Column[PeerReport], ...] = (
    Column(heading="role", cell=lambda p: p.role.value, left=True),
    _counted("rollouts\nadmitted", lambda p: p.admitted),
    _counted("rollouts\nrejected", lambda p: p.rejected),
    Column(
        heading="admitted\nper s",
        cell=_of_rollouts(lambda p: words.rate(p.admitted_per_s)),
        number=lambda p: p.admitted_per_s,
    ),
    _counted("tokens\nadmitted", lambda p: p.tokens),
    Column(
        heading="share of\nbatches",
        cell=_of_rollouts(lambda p: words.share(p.share)),
        number=_rollouts_only(lambda p: p.share),
    ),
)
RELAYED: Column[PeerReport] = Column(
    heading="bytes\nrelayed",
    cell=_of_rollouts(lambda p: words.size(p.bytes_relayed or 0)),
    total=added(lambda p: p.bytes_relayed or 0, words.size),
    number=_rollouts_only(lambda p: p.bytes_relayed),
)
STANDBY: Column[PeerReport] = Column(
    heading="hours\nstanding by",
    cell=_of_rollouts(lambda p: words.hours(p.standby_s)),
    total=added(lambda p: p.standby_s, words.hours),
    number=_rollouts_only(lambda p: p.standby_s),
)
LEASES = (
    _counted("leases\nissued", lambda p: p.leases.issued),
    _counted("in time", lambda p: p.leases.in_time),
    _counted("late", lambda p: p.leases.late),
    _counted("expired", lambda p: p.leases.expired),
    _counted("returned", lambda p: p.leases.returned),
    _counted("lost", lambda p: p.leases.lost),
    _counted("open", lambda p: p.leases.open),
)
RECALLED = _counted("recalled", lambda p: p.leases.recalled)
REPUTATION: tuple[Column[PeerReport], ...] = (
    _scored("availa-\nbility", "availability"),
    _scored("timeli-\nness", "timeliness"),
    _scored("honesty", "honesty"),
    _scored("sound-\nness", "soundness"),
    _scored("service", "service"),
    _scored("score", "score"),
    Column(
        heading="band",
        cell=lambda p: words.NOTHING if p.reputation is None else p.reputation.band.value,
        left=True,
    ),
)


def _audited(heading: str, number: Callable[[PeerAudits], float], show: Callable[[Any], str]) -> Column[PeerReport]:
    def known(peer: PeerReport) -> float | None:
        return None if peer.audits is None else number(peer.audits)

    return Column(
        heading=heading,
        cell=lambda peer: words.NOTHING if peer.audits is None else show(number(peer.audits)),
        number=known,
    )


AUDITS: tuple[Column[PeerReport], ...] = (
    Column(
        heading="standing",
        cell=lambda p: words.NOTHING if p.audits is None else p.audits.standing.value,
        left=True,
    ),
    _audited("groups\naudited", lambda a: a.audits, words.count),
    _audited("failed", lambda a: a.failed, words.count),
    _audited("tokens\naudited", lambda a: a.tokens, words.count),
    _audited("worst\ngap, nats", lambda a: a.worst, words.figure),
    _audited("honest once\nin so many", lambda a: a.odds, words.rarity),
    _audited("trained\nunseen", lambda a: a.unseen, words.count),
)


def _cost_columns(currency: str | None) -> tuple[Column[PeerReport], ...]:
    """`currency` is the only one in use, or None: then every amount names its own."""
    unit = "" if currency is None else f", {currency}"

    def money(amount: Callable[[PeerReport], float | None]) -> Callable[[PeerReport], str]:
        return lambda peer: words.money(amount(peer), peer.price.currency if currency is None else "")

    def in_all(report: SwarmReport) -> str:
        amounts = report.costs.items() or [(currency or "", 0)]
        return "\n".join(words.money_of(micros, name if currency is None else "") for name, micros in amounts)

    def cents_in_all(report: SwarmReport) -> str:
        amounts = report.costs.items() or [(currency or "", 0)]
        each = [(name, cents_per_thousand(micros, report.tokens)) for name, micros in amounts]
        return "\n".join(words.cents(c, name if currency is None else "") for name, c in each if c is not None) or "-"

    return (
        Column(
            heading="hours\nactive",
            cell=lambda p: words.hours(p.active_s),
            total=added(lambda p: p.active_s, words.hours),
            number=lambda p: p.active_s,
        ),
        Column(
            heading=f"price per\nhour{unit}",
            cell=money(lambda p: p.price_per_hour),
            number=lambda p: p.price_per_hour,
        ),
        Column(
            heading=f"cost{unit}",
            cell=money(lambda p: p.cost),
            total=in_all,
            number=lambda p: p.cost,
        ),
        Column(
            heading="cents per\n1k tokens",
            cell=_of_rollouts(
                lambda p: words.cents(p.cents_per_1000_tokens, p.price.currency if currency is None else "")
            ),
            total=cents_in_all,
            number=_rollouts_only(lambda p: p.cents_per_1000_tokens),
        ),
        _moved("up", lambda p: p.bytes_up),
        _moved("down", lambda p: p.bytes_down),
    )


def known_as(peer: PeerReport, limit: int = NAME_CHARS) -> str:
    """A peer's name as far as it fits, and the end of its id."""
    return f"{words.plain_name(peer.name, limit) or peer.role.value} {short(peer.peer)}"


def listed(report: SwarmReport | OwnReport, *, everyone: bool = False) -> tuple[PeerReport, ...]:
    """The peers that have a row in a terminal, in the order of the report: learners, and of more rollout peers than
    MOST_TRAINED and LATEST_BANNED together those; or `everyone`."""
    if everyone or isinstance(report, OwnReport) or len(report.rollout_peers) <= MOST_TRAINED + LATEST_BANNED:
        return report.peers
    trained = sorted(report.rollout_peers, key=lambda peer: -(peer.trained or 0))[:MOST_TRAINED]
    shown = {peer.peer for peer in (*trained, *report.banned[-LATEST_BANNED:])}
    return tuple(peer for peer in report.peers if peer.role is Role.LEARNER or peer.peer in shown)


def left_out(report: SwarmReport, *, everyone: bool = False) -> str:
    """Which peers have a row, and where the others are; "" where all have one."""
    others = len(report.peers) - len(listed(report, everyone=everyone))
    if not others:
        return ""
    banned = f", and the {min(LATEST_BANNED, len(report.banned))} that were banned last" if report.banned else ""
    return (
        f"Of {len(report.rollout_peers):,} rollout peers these tables have the {MOST_TRAINED} whose rollouts were "
        f"trained on most{banned}. The other {others:,} are added up; --all, --html, --csv and --json have a row for "
        "each."
    )


def tables(report: SwarmReport | OwnReport, *, width: int, box: Box, everyone: bool = False) -> RenderableType:
    """All sections of `report` in tables of at most `width` columns, however many that takes; a row for `everyone`,
    or for those that are `listed`."""
    peers = listed(report, everyone=everyone)
    whole = report if isinstance(report, SwarmReport) and len(report.peers) > 1 else None
    others = _others(report, peers) if isinstance(report, SwarmReport) and len(peers) < len(report.peers) else None
    limit = NAME_CHARS if width >= ROOMY else NARROW_NAME_CHARS
    names: Column[PeerReport] = Column(
        heading="peer",
        cell=lambda peer: known_as(peer, limit),
        total=lambda summed: "together" if summed is whole else f"{len(summed.peers):,} others",
        left=True,
    )
    sheet = Sheet(
        rows=peers, whole=whole, others=others, names=names, box=box, is_bold=lambda peer: peer.role is Role.LEARNER
    )
    return Group(
        *(Padding(sheet.table(section), (0, 0, 1, 1)) for section in packed(sections(report), width - 1, sheet))
    )


def _others(report: SwarmReport, peers: Sequence[PeerReport]) -> SwarmReport:
    """The report of those who have no row."""
    rows = {peer.peer for peer in peers}
    return replace(report, peers=tuple(peer for peer in report.peers if peer.peer not in rows))


@dataclass(frozen=True, kw_only=True)
class Sheet(Generic[Row]):
    """Rows, the lines that add up those left out and all, the first column, how rules are drawn, and which rows stand
    out."""

    rows: Sequence[Row]
    whole: SwarmReport | None
    names: Column[Row]
    box: Box
    is_bold: Callable[[Row], bool] = lambda _: False
    others: SwarmReport | None = None

    @property
    def sums(self) -> list[SwarmReport]:
        """What a line adds up."""
        return [one for one in (self.others, self.whole) if one is not None]

    def width(self, columns: Sequence[Column[Row]]) -> int:
        """Characters that `columns` take beside the names."""
        return self._width(self.names) + sum(GAP + self._width(column) for column in columns)

    def _width(self, column: Column[Row]) -> int:
        cells = [column.heading, *(column.cell(row) for row in self.rows), *map(column.total, self.sums)]
        return max(cell_len(line) for cell in cells for line in cell.split("\n"))

    def table(self, section: Section[Row]) -> RenderableType:
        table = Table(box=self.box, padding=(0, GAP - 1, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
        for column in (self.names, *section.columns):
            table.add_column(
                _on_two_lines(column.heading),
                justify="left" if column.left else "right",
                no_wrap=True,
                min_width=self._width(column),
            )
        for row in self.rows:
            name = Text(self.names.cell(row), style="bold" if self.is_bold(row) else "")
            table.add_row(name, *(Text(column.cell(row)) for column in section.columns))
        for summed in self.sums:
            if any(totals := [column.total(summed) for column in section.columns]):
                table.add_row(*(Text(total, style="dim") for total in (self.names.total(summed), *totals)))
        return Group(Text(section.title, style="bold"), table)


def _on_two_lines(heading: str) -> str:
    """Headings stand on the line below them, whether they have one line or two."""
    return heading if "\n" in heading else f"\n{heading}"


def packed(parts: Sequence[Section[Row]], width: int, sheet: Sheet[Row]) -> Iterator[Section[Row]]:
    """The sections as they stand in tables of at most `width` columns."""
    parts = [part for part in parts if part.columns]
    widths = [[sheet.width([column]) - sheet.width([]) for column in part.columns] for part in parts]
    for pieces in packed_in(widths, width - sheet.width([])):
        first, *others = (parts[one.section].title for one in pieces)
        columns = (column for one in pieces for column in parts[one.section].columns[one.begin : one.end])
        yield Section(title=", ".join([first, *map(str.lower, others)]), columns=tuple(columns))
