"""Make the tables of the page about costs, a peer's audits, and banned peers. Pure.

Invariants:

- Cells of costs are those of the report in a terminal, and the line below them adds up the whole run.
- A peer that was never audited has no section of audits; a run without audits has none of bans.
- The text about a ban is what the ledger holds of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from node.reports.html.charts.data_table import table
from node.reports.html.charts.markup import Fragment, strangers, tag
from node.reports.html.components import REASON_CHARS, Tile, known_as, link_to, section, tiles
from node.reports.model.audits import BannedBy, ban_in_words
from node.reports.model.report import PeerReport, SwarmReport
from node.reports.text.cost_table import account_section, latest
from node.reports.text.peer_columns import has_prices
from node.runtime import formatting as words
from protocol.core.ids import PeerId

ACCOUNTS_SHOWN = 60
"""Rows of each kind, the latest: two months of days. The JSON and CSV forms have all."""


def cost_section(report: SwarmReport) -> Fragment | None:
    """Return the tables; None before any peer came."""
    if not report.peers:
        return None
    costs = (
        "The costs of peers and the learner, spread over the time in which they were present."
        if has_prices(report)
        else "Nothing costs anything, because nobody has set [price] per_hour."
    )
    said = (
        f"{costs} Tokens count when their records came. Each table adds up to the whole run. A run is a start of the "
        "learner; a version lasts from its publication to that of the next one; days are those in UTC on which "
        "anything happened."
    )
    tables = [_table(report, kind) for kind, rows in report.accounts.kinds.items() if rows]
    return section("costs", "Cost by start, day and version", tag("p", said), tables)


def _table(report: SwarmReport, kind: str) -> Fragment:
    rows = report.accounts.kinds[kind]
    shown = rows[-ACCOUNTS_SHOWN:]
    told = account_section(report, latest(f"Cost by {kind}", len(shown), len(rows)))
    return table(
        f"{told.title}, the newest first",
        [kind, *(column.title for column in told.columns)],
        [(row.name, *(column.cell(row) for column in told.columns)) for row in reversed(shown)],
        foot=["total", *(column.total(report) for column in told.columns)],
        kind="accounts",
    )


def audits(peer: PeerReport) -> list[Fragment]:
    """Return the section on the audits of `peer`, empty while there are none."""
    if (found := peer.audits) is None:
        return []
    shown = [
        Tile(name="trust level", value=found.standing.value),
        Tile(name="groups audited", value=words.count(found.audits)),
        Tile(name="groups that failed", value=words.count(found.failed)),
        Tile(name="tokens regenerated", value=words.count(found.tokens)),
        Tile(name="largest gap", value=f"{words.figure(found.worst)} nats"),
        Tile(name="odds against honest work, to 1", value=rare)
        if (rare := words.rarity(found.odds)) != words.NOTHING
        else Tile(name="evidence against it", value="none"),
        Tile(name="rollouts trained on without audit", value=words.count(found.unseen)),
    ]
    parts = [tag("h3", "Audits"), tiles(shown, kind="small")]
    if found.banned:
        at = words.duration(found.banned_at_s or 0.0)
        said = ban_in_words(f"After {at} it", found, judged=peer.judged, trained=peer.trained or 0)
        parts.append(tag("p", strangers(said)))
    return parts


BANS_SHOWN = 500
"""Bans that are listed, the latest, at 700 bytes each; the JSON form has all."""

BY = {
    BannedBy.AUDITS: "audits",
    BannedBy.SELECTION: "test for selective delivery",
    BannedBy.OPERATOR: "operator",
}


def ban_tiles(report: SwarmReport) -> Iterator[Tile]:
    """Yield how many peers were banned, and how many are in quarantine."""
    if report.banned or report.num_quarantined or any(peer.audits is not None for peer in report.peers):
        quarantined = f"{report.num_quarantined:,} in quarantine" if report.num_quarantined else "none in quarantine"
        yield Tile(name="peers banned", value=words.count(len(report.banned)), more=quarantined)


def ban_section(report: SwarmReport, pages: Collection[PeerId]) -> Fragment | None:
    """Return who was banned when, by what, why, and what it cost. `pages`: the peers with a page of their own."""
    banned = report.banned
    if not banned:
        return None
    trained = sum(peer.trained or 0 for peer in banned)
    peers, rollouts = len(report.rollout_peers), words.counted(report.trained, "rollout")
    said = (
        f"{len(banned):,} of {words.counted(peers, 'rollout peer')} {words.were(len(banned))} banned. "
        f"{trained:,} of the {rollouts} that {words.were(report.trained)} trained on {words.were(trained)} theirs."
    )
    last = "" if len(banned) <= BANS_SHOWN else f"the last {BANS_SHOWN} of {len(banned):,}, "
    headings = ["peer", "time since the start", "reason", "banned by", "rollouts trained on", "rollouts judged", "cost"]
    rows = [_ban_row(peer, is_linked=peer.peer in pages) for peer in reversed(banned[-BANS_SHOWN:])]
    caption = f"Bans, {last}the newest first"
    return section("bans", "Bans", tag("p", said), table(caption, headings, rows, kind="bans"))


def _ban_row(peer: PeerReport, *, is_linked: bool) -> list[Fragment | str]:
    found = peer.audits
    assert found is not None
    assert found.banned_by is not None
    return [
        link_to(peer.peer, known_as(peer)) if is_linked else known_as(peer),
        words.duration(max(0.0, found.banned_at_s or 0.0)),
        strangers(words.plain_name(found.banned, REASON_CHARS)),
        BY[found.banned_by],
        words.count(peer.trained),
        words.count(peer.judged),
        words.money(peer.cost, peer.price.currency),
    ]
