"""Who was banned: a table on the page, and a figure at its top.

Pure. What always holds: what is said of a ban is what the ledger holds of it; a run in which nobody was looked at has
neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from node.reports.html.charts.markup import Fragment, strangers, tag
from node.reports.html.components import Tile, known_as, link_to, section, table
from node.reports.model.audits import BannedBy
from node.reports.model.report import PeerReport, SwarmReport
from node.runtime import formatting as words
from protocol.core.ids import PeerId

BANS_SHOWN = 500
"""The latest, at 700 bytes each; the JSON form has all."""

REASON_CHARS = 512

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
    rows = [_row(peer, is_linked=peer.peer in pages) for peer in reversed(banned[-BANS_SHOWN:])]
    caption = f"Bans, {last}the newest first"
    return section("bans", "Bans", tag("p", said), table(caption, headings, rows, kind="bans"))


def _row(peer: PeerReport, *, is_linked: bool) -> list[Fragment | str]:
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
