"""Make the part of a page about published versions, and how far each has come through the swarm. Pure."""

from __future__ import annotations

from collections import Counter

from node.commands.page.parts.learner_head import READING
from node.reports.html.charts.data_table import table
from node.reports.html.charts.markup import Fragment, tag
from node.reports.html.components import section
from node.reports.model.report import SwarmReport
from node.runtime import formatting as words
from node.ui.live_view import ViewState

VERSIONS_LISTED = 12


def part(view: ViewState, report: SwarmReport | None) -> Fragment:
    """Return the newest versions: when each was published, what had to be sent, and how many nodes generate with it."""
    if report is None:
        return section("versions", "Versions", tag("p", READING))
    if not (versions := report.versions[-VERSIONS_LISTED:]):
        return section("versions", "Versions", tag("p", "No version is published yet."))
    installed = Counter(peer.installed for peer in view.present if peer.installed)
    rows = [
        (
            str(one.version),
            words.count(one.version.version),
            words.duration(max(0.0, one.at_s)),
            words.size(one.total_bytes),
            words.size(one.new_bytes),
            words.count(installed[str(one.version)]) if installed else words.NOTHING,
        )
        for one in reversed(versions)
    ]
    headings = ["version", "training step", "published, since the start", "size", "new since the one before", "nodes"]
    caption = f"The newest of {words.counted(len(report.versions), 'version')}, and the nodes that generate with each"
    return section("versions", "Versions", table(caption, headings, rows))
