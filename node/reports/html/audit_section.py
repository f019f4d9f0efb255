"""What audits found of a peer: how much was looked at, what was found, and what follows for it.

Pure. What always holds: a peer that nobody audited has no such section; what is said of a ban is what the ledger holds.
"""

from __future__ import annotations

from node.reports.html.charts.markup import Fragment, strangers, tag
from node.reports.html.components import Tile, tiles
from node.reports.model.audits import ban_in_words
from node.reports.model.history import PeerHistory
from node.reports.model.report import PeerReport
from node.runtime import formatting as words


def audits(peer: PeerReport, history: PeerHistory) -> list[Fragment]:
    """The section on the audits of `peer`, empty while there are none."""
    del history
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
