"""Sections of the page that are tables: what the run cost, what audits found of a peer, and which peers were banned.

Pure. Invariants:
- Cells of costs are those of a terminal's report, and the line below them adds up the whole run.
- A peer that nobody audited has no section of audits; a run in which nobody was audited has none of bans.
- What is said of a ban is what the ledger holds of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from node.reports.html.charts.data_table import table
from node.reports.html.charts.markup import Fragment, strangers, tag
from node.reports.html.components import REASON_CHARS, Tile, known_as, link_to, section, tiles
from node.reports.model.audits import BannedBy, ban_in_words
from node.reports.model.report import PeerReport, SwarmReport
from node.reports.text.cost_table import account_section, latest
from node.runtime import formatting as words
from protocol.core.ids import PeerId

ACCOUNTS_SHOWN = 60
"""Of each kind, the latest: two months of days. The JSON and CSV forms have all."""


def cost_section(report: SwarmReport) -> Fragment | None:
    """The tables; nothing before anybody came."""
    if not report.peers:
        return None
    said = (
        "What peers and the learner cost, spread over the time that they were here; tokens count when their records "
        "came. Each table adds up to the whole run. A run is a start of the learner; a version lasts from its "
        "publication to that of the next one; days are those in UTC on which anything happened."
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
        foot=["together", *(column.total(report) for column in told.columns)],
        kind="accounts",
    )


def audits(peer: PeerReport) -> list[Fragment]:
    """The section on the audits of `peer`, empty while there are none."""
    if (found := peer.audits) is None:
        return []
    shown = [
        Tile(name="standing", value=found.standing.value),
        Tile(name="groups audited", value=words.count(found.audits)),
        Tile(name="of these failed", value=words.count(found.failed)),
        Tile(name="tokens drawn again", value=words.count(found.tokens)),
        Tile(name="largest gap", value=f"{words.figure(found.worst)} nats"),
        Tile(name="an honest peer looks so once in", value=rare)
        if (rare := words.rarity(found.odds)) != words.NOTHING
        else Tile(name="audits say against it", value="nothing"),
        Tile(name="rollouts trained on unseen", value=words.count(found.unseen)),
    ]
    parts = [tag("h3", "Audits"), tiles(shown, kind="small")]
    if found.banned:
        at = words.duration(found.banned_at_s or 0.0)
        said = ban_in_words(f"After {at} it", found, judged=peer.judged, trained=peer.trained or 0)
        parts.append(tag("p", strangers(said)))
    return parts


BANS_SHOWN = 500
"""The latest, at 700 bytes each; the JSON form has all."""

BY = {
    BannedBy.AUDITS: "its audits",
    BannedBy.CHOOSING: "what it chose",
    BannedBy.OPERATOR: "the operator",
}


def ban_tiles(report: SwarmReport) -> Iterator[Tile]:
    """How many were banned, and how many are in quarantine."""
    if report.banned or report.num_quarantined or any(peer.audits is not None for peer in report.peers):
        quarantined = f"{report.num_quarantined:,} in quarantine" if report.num_quarantined else "nobody in quarantine"
        yield Tile(name="peers banned", value=words.count(len(report.banned)), more=quarantined)


def ban_section(report: SwarmReport, pages: Collection[PeerId]) -> Fragment | None:
    """Who, when, by what, why, and what it cost; `pages` are the peers with a part of their own."""
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
    headings = ["peer", "when, since the start", "why", "by", "trained on", "of its rollouts", "cost"]
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
