"""Define what a report shows of each peer: every value once, for tables, pages, JSON and CSV. Pure.

Invariants:

- The order of the columns is that of JSON and CSV; SECTIONS has the order of tables.
- Columns without any value are left out of tables, but never of JSON and CSV.
- If there are many peers, the most important ones have a row in a terminal, and another row adds up the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rich.box import Box
from rich.console import Group, RenderableType
from rich.text import Text

from node.reports.model.costs import CostTerms, cents_per_thousand, kwh_of, money_for
from node.reports.model.report import OwnReport, PeerReport, Role, SwarmReport
from node.reports.model.verdict_meanings import REJECTIONS
from node.reports.text.columns import Column, Section, attribute, chosen, drawn_sections
from node.reports.text.tables import Strip
from node.runtime import formatting as words
from node.runtime.formatting import NAME_CHARS
from protocol.accounting.claims import EnergySource
from protocol.core.ids import short

ROOMY = 100
"""Width from which names may have their full length."""

NARROW_NAME_CHARS = 10

MOST_TRAINED = 20
LATEST_BANNED = 5
"""Rollout peers that have a row: those with the most trained rollouts, and those that were banned last. More would be
pages of rows in each table; the other forms have all."""

SECTIONS = {
    "Work": "role admitted rejected admitted_per_s tokens share scored.groups scored.tokens",
    "Cost and traffic": (
        "hours_active hours_standby price_per_hour cost cents_per_1000_tokens bytes_up bytes_down kwh electricity"
        " share_of_reference bytes_relayed"
    ),
    "Leases": (
        "leases.issued leases.in_time leases.late leases.expired leases.returned leases.recalled leases.lost"
        " leases.open"
    ),
    "Reputation": (
        "reputation.availability reputation.timeliness reputation.honesty reputation.soundness reputation.service"
        " reputation.score reputation.band"
    ),
    "Audits": (
        "audits.standing audits.audits audits.failed audits.tokens audits.worst audits.odds audits.unseen"
    ),
}  # fmt: skip

OWN_SECTIONS = {title: SECTIONS[title] for title in ("Work", "Cost and traffic")}
"""Sections of a node's own report, from its receipts; the rest only the learner knows."""

ONLY_LEARNERS = {"share", "bytes_relayed"}

ONLY_TABLES = {"audits.odds"}
"""Keys that JSON and CSV do not have: programs have the evidence itself."""


def sections(report: SwarmReport | OwnReport) -> tuple[Section[PeerReport], ...]:
    """Return a report's columns about peers, by subject. If there is only one currency, it is in the headings."""
    if isinstance(report, OwnReport):
        return chosen(peer_columns(report), OWN_SECTIONS, ONLY_LEARNERS | _untold(report))
    return chosen(peer_columns(report), SECTIONS, _untold(report))


def _untold(report: SwarmReport | OwnReport) -> set[str]:
    """Return the keys for which no peer has a value."""
    peers, terms = report.peers, report.terms
    is_metered = any(peer.joules is not None or peer.joules_disbelieved for peer in peers)
    told = {
        **dict.fromkeys(("scored.groups", "scored.tokens"), any(peer.scored is not None for peer in peers)),
        "hours_standby": any(peer.standby_s > 0 for peer in peers),
        "leases.recalled": any(peer.leases.recalled for peer in peers),
        "kwh": is_metered,
        "electricity": is_metered and terms.per_kwh is not None,
        "share_of_reference": terms.reference is not None,
        **dict.fromkeys(("price_per_hour", "cost", "cents_per_1000_tokens"), has_prices(report)),
        **dict.fromkeys(SECTIONS["Audits"].split(), any(peer.audits for peer in peers)),
    }
    return {key for key, is_told in told.items() if not is_told}


def has_prices(report: SwarmReport | OwnReport) -> bool:
    """Return whether anybody asks for money, or did."""
    return any(peer.price.micros_per_hour for peer in report.peers)


def peer_columns(report: SwarmReport | OwnReport) -> tuple[Column[PeerReport], ...]:
    """Return everything about a peer, for programs and for people, in the order for programs."""
    money, energy = _money_columns(only_currency(report), report.terms), _energy_columns(report.terms)
    return (*WHO, *LEASES, *WORK, *TIME, *money, *energy, *SEEN, *AUDITS, *REPUTATION, *REACH, *SCORED)


def only_currency(report: SwarmReport | OwnReport) -> str | None:
    """Return the only currency in which peers ask for money; None if there are several."""
    peers = report.peers
    found = {peer.price.currency for peer in peers if peer.price.micros_per_hour}
    found = found or {peer.price.currency for peer in peers[:1]}
    return found.pop() if len(found) == 1 else None


def _generates(peer: PeerReport) -> bool:
    """Return whether it generates. The learner and most teachers do not: a dash says so better than a zero."""
    return peer.generates


def _is_leased(peer: PeerReport) -> bool:
    return peer.role is Role.ROLLOUT


def _everybody(peer: PeerReport) -> bool:
    return True


def _plain(*keys: str) -> tuple[Column[PeerReport], ...]:
    """Return columns for programs alone."""
    return tuple(Column(key=key) for key in keys)


def _summed(
    key: str,
    heading: str,
    show: Callable[[Any], str],
    *,
    applies: Callable[[PeerReport], bool] = _generates,
    **more: Any,
) -> Column[PeerReport]:
    """Return a column that is added up over all peers; by default only peers that generate have a value."""
    column: Column[PeerReport] = Column(key=key, heading=heading, show=show, applies=applies, **more)
    return replace(column, total=lambda report: show(sum(column.of(peer) or 0 for peer in report.peers)))


def _of_rollouts(key: str, heading: str, show: Callable[[Any], str], **more: Any) -> Column[PeerReport]:
    return Column(key=key, heading=heading, show=show, applies=_generates, **more)


WHO: tuple[Column[PeerReport], ...] = (
    *_plain("peer", "name"),
    Column(key="role", heading="role", write=lambda peer: peer.does, left=True),
    *_plain("engine", "machine"),
)
LEASES = tuple(
    _summed(f"leases.{fate}", heading, words.count, applies=_is_leased)
    for fate, heading in {
        "issued": "leases\nissued",
        "open": "open",
        "delivered": "",
        "in_time": "in time",
        "late": "late",
        "expired": "expired",
        "returned": "returned",
        "lost": "lost",
        "recalled": "recalled",
        "recalled_rollouts": "",
    }.items()
)
WORK: tuple[Column[PeerReport], ...] = (
    _summed("admitted", "rollouts\nadmitted", words.count),
    _summed("rejected", "rollouts\nrejected", words.count),
    Column(
        key="verdicts", spread=lambda found: {f"rejected_{rule.value}": found.get(rule.value, 0) for rule in REJECTIONS}
    ),
    _of_rollouts("admitted_per_s", "admitted\nper s", words.rate),
    _summed("tokens", "tokens\nadmitted", words.count),
    *_plain("trained", "dropped"),
    _of_rollouts("share", "share of\nbatches", words.share),
    _summed("bytes_up", "chunks\nup", words.size, applies=_everybody),
    _summed("bytes_down", "chunks\ndown", words.size, applies=_everybody),
    _summed("bytes_relayed", "bytes\nrelayed", words.size),
)
TIME: tuple[Column[PeerReport], ...] = (
    _summed("hours_active", "hours\nactive", words.in_hours, applies=_everybody, rank=lambda peer: peer.active_s),
    _summed("hours_standby", "hours on\nstandby", words.in_hours, applies=_is_leased, rank=lambda peer: peer.standby_s),
    *_plain("engine_s"),
)
SCORED = tuple(
    _summed(f"scored.{what}", heading, words.count, applies=_everybody)
    for what, heading in {"groups": "groups\nscored", "tokens": "tokens\nscored", "refused": ""}.items()
)
SEEN = _plain("first_seen_ms", "last_seen_ms")


def _money_columns(currency: str | None, terms: CostTerms) -> tuple[Column[PeerReport], ...]:
    """Return the columns about money. `currency`: the only one in use; None if every amount must name its own."""
    unit = "" if currency is None else f", {currency}"

    def named(key: str, heading: str, show: Callable[[float | None, str], str], **more: Any) -> Column[PeerReport]:
        return Column(
            key=key,
            heading=heading,
            write=lambda peer: show(attribute(peer, key), peer.price.currency if currency is None else ""),
            **more,
        )

    nothing = {currency or "": 0}
    return (
        named("price_per_hour", f"price per\nhour{unit}", words.money),
        Column(key="currency", value=lambda peer: peer.price.currency),
        named("cost", f"cost{unit}", words.money, total=lambda r: amounts_of(r.costs or nothing, currency)),
        *_plain("cost_micros", "cost_per_1000_tokens"),
        named(
            "cents_per_1000_tokens", "cents per\n1k tokens", words.cents, applies=_generates,
            total=lambda r: cents_of(r.costs or nothing, r.tokens, currency),
        ),
        _of_rollouts(
            "share_of_reference", "cost vs\nreference", words.share,
            value=lambda peer: peer.against(terms.reference, terms.currency),
        ),
    )  # fmt: skip


def amounts_of(micros: Mapping[str, int], currency: str | None) -> str:
    """Return amounts by currency, a line each; a line names its currency unless it is the only `currency`."""
    return "\n".join(words.money_of(amount, name if currency is None else "") for name, amount in micros.items())


def cents_of(micros: Mapping[str, int], tokens: int, currency: str | None) -> str:
    """Return the same in cents per 1000 tokens; a dash while there are no tokens."""
    each = ((name, cents_per_thousand(amount, tokens)) for name, amount in micros.items())
    told = [words.cents(cents, name if currency is None else "") for name, cents in each if cents is not None]
    return "\n".join(told) or words.NOTHING


def _energy_columns(terms: CostTerms) -> tuple[Column[PeerReport], ...]:
    return (
        Column(
            key="kwh",
            value=lambda peer: kwh_of(peer.joules),
            heading="kWh",
            write=lambda peer: f"{words.kwh(peer.joules)}{' (?)' if peer.joules_disbelieved else ''}",
            total=lambda report: words.kwh(report.joules),
        ),
        *_plain("joules"),
        Column(
            key="energy",
            spread=lambda found: {f"joules_{source.value}": found.get(source.value) for source in EnergySource},
        ),
        *_plain("joules_disbelieved"),
        Column(
            key="electricity",
            value=lambda peer: money_for(peer.joules, terms.per_kwh),
            heading=f"electricity,\n{terms.currency}",
            show=lambda paid: words.money(paid, ""),
            total=lambda report: words.money(money_for(report.joules, terms.per_kwh), ""),
        ),
    )


def _known(group: str, rows: Mapping[str, tuple[str, str, Callable[[Any], str]]]) -> Iterator[Column[PeerReport]]:
    """Yield columns of an object that some peers lack: by name the header of CSV, the heading, and how to show it."""
    for name, (header, heading, show) in rows.items():
        yield Column(
            key=f"{group}.{name}", header=header, heading=heading, show=show, left=name in ("standing", "band")
        )


def _value(found: Any) -> str:
    return str(found.value)


def _score(found: float) -> str:
    return f"{found:.2f}"


AUDITS = tuple(
    _known(
        "audits",
        {
            "standing": ("standing", "trust level", _value),
            "audits": ("audits", "groups\naudited", words.count),
            "failed": ("audits_failed", "failed", words.count),
            "tokens": ("", "tokens\naudited", words.count),
            "worst": ("", "largest\ngap, nats", words.figure),
            "evidence": ("", "", str),
            "odds": ("", "evidence,\nodds to 1", words.rarity),
            "banned": ("", "", str),
            "banned_by": ("", "", str),
            "banned_at_s": ("", "", str),
            "unseen": ("", "trained\nunaudited", words.count),
        },
    )
)
REPUTATION = tuple(
    _known(
        "reputation",
        {
            "availability": ("availability", "availa-\nbility", _score),
            "timeliness": ("timeliness", "timeli-\nness", _score),
            "honesty": ("honesty", "honesty", _score),
            "score": ("score", "score", _score),
            "soundness": ("soundness", "sound-\nness", _score),
            "service": ("service", "service", _score),
            "band": ("band", "band", _value),
            "strikes": ("", "", str),
        },
    )
)


REACH: tuple[Column[PeerReport], ...] = (
    Column(key="reach.kind", header="reach", value=lambda peer: attribute(peer, "reach.kind")),
    Column(key="reach.verdict", header="", heading="reachability", left=True),
    Column(key="reach.why", header=""),
    Column(key="reach.since_s", header=""),
    Column(key="reach.learner", header="", heading="to\nlearner", show=lambda said: said or words.NOTHING, left=True),
    *(
        Column(key=f"reach.{way}", header=f"met_{way}", heading=heading, show=words.count, applies=_generates)
        for way, heading in {
            "dialled": "dialled",
            "dialled_back": "dialled\nback",
            "punched": "punched",
            "over_circuit": "over a\ncircuit",
        }.items()
    ),
    Column(
        key="reach.bytes_carried",
        header="bytes_carried",
        heading="bytes over\ncircuits",
        show=words.size,
        applies=_generates,
    ),
)
"""How a peer is reached, and how many neighbours it connected to in which way. They have a table of their own."""


def reach_columns(report: SwarmReport) -> tuple[Column[PeerReport], ...]:
    """Return the columns of REACH that people read; bytes over circuits only if there were any."""
    untold = set() if report.bytes_carried else {"reach.bytes_carried"}
    return tuple(column for column in REACH if column.heading and column.key not in untold)


def known_as(peer: PeerReport, limit: int = NAME_CHARS) -> str:
    """Return a peer's name as far as it fits, and the end of its id."""
    return f"{words.plain_name(peer.name, limit) or peer.does} {short(peer.peer)}"


def listed(report: SwarmReport | OwnReport, *, everyone: bool = False) -> tuple[PeerReport, ...]:
    """Return the peers that have a row in a terminal, in the report's order: all, if `everyone` or if they are few.
    Otherwise the learners, MOST_TRAINED rollout peers, as many teachers, and the LATEST_BANNED."""
    if everyone or isinstance(report, OwnReport) or len(report.rollout_peers) <= MOST_TRAINED + LATEST_BANNED:
        return report.peers
    trained = sorted(report.rollout_peers, key=lambda peer: -(peer.trained or 0))[:MOST_TRAINED]
    shown = {peer.peer for peer in (*trained, *_most_scored(report), *report.banned[-LATEST_BANNED:])}
    return tuple(peer for peer in report.peers if peer.role is Role.LEARNER or peer.peer in shown)


def _most_scored(report: SwarmReport) -> list[PeerReport]:
    """Return the teachers that scored most tokens, MOST_TRAINED at most."""
    scored = [(peer.scored.tokens, peer) for peer in report.peers if peer.scored is not None]
    return [peer for _, peer in sorted(scored, key=lambda one: -one[0])[:MOST_TRAINED]]


def left_out(report: SwarmReport, *, everyone: bool = False) -> str:
    """Return which peers have a row, and where the others are; "" if all have one."""
    others = len(report.peers) - len(listed(report, everyone=everyone))
    if not others:
        return ""
    taught = f", the {len(teachers)} teachers that scored most" if (teachers := _most_scored(report)) else ""
    banned = f", and the {min(LATEST_BANNED, len(report.banned))} that were banned last" if report.banned else ""
    return (
        f"Of {len(report.rollout_peers):,} rollout peers, these tables show the {MOST_TRAINED} with the most trained "
        f"rollouts{taught}{banned}. The other {others:,} are added up in one row; --all, --html, --csv and --json have "
        "a row for each."
    )


def tables(report: SwarmReport | OwnReport, *, width: int, box: Box, everyone: bool = False) -> RenderableType:
    """Return all sections of `report` as tables of at most `width` columns, however many that takes. Each peer has a
    row if `everyone`, else those that are `listed`."""
    peers = listed(report, everyone=everyone)
    sums = list[tuple[str, SwarmReport]]()
    if isinstance(report, SwarmReport):
        shown = {peer.peer for peer in peers}
        rest = tuple(peer for peer in report.peers if peer.peer not in shown)
        sums += [(f"{len(rest):,} others", replace(report, peers=rest))] if rest else []
        sums += [("total", report)] if len(report.peers) > 1 else []
    limit = NAME_CHARS if width >= ROOMY else NARROW_NAME_CHARS
    names = [Text(known_as(peer, limit), style="bold" if peer.role is Role.LEARNER else "") for peer in peers]
    strip = Strip(heading="peer", cells=names)
    return Group(*drawn_sections(sections(report), peers, sums, strip, width=width, box=box))
