"""Make the part of a page about published versions, and how far each has come through the swarm. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from node.commands.page.parts.learner_head import READING
from node.reports.html.charts.data_table import table
from node.reports.html.charts.markup import Fragment, tag
from node.reports.html.components import section
from node.reports.model.report import SwarmReport
from node.runtime import formatting as words
from node.ui.live_view import ViewState
from protocol.core.ids import PolicyVersion

VERSIONS_LISTED = 12


def part(view: ViewState, report: SwarmReport | None) -> Fragment:
    """Return the newest versions: when each was published, what had to be sent, and how many nodes generate with it."""
    if report is None:
        return section("versions", "Versions", tag("p", READING))
    if not (versions := report.versions[-VERSIONS_LISTED:]):
        return section("versions", "Versions", tag("p", "No version is published yet."))
    installed = Counter(peer.installed for peer in view.present if peer.installed)
    newer = _newer(installed, versions[-1].version)
    rows = [(name, name.rpartition(".")[2], *[words.NOTHING] * 3, words.count(installed[name])) for name in newer]
    rows += [
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
    rows = rows[:VERSIONS_LISTED]
    headings = ["version", "training step", "published, since the start", "size", "new since the one before", "nodes"]
    caption = f"The newest of {words.counted(len(report.versions), 'version')}, and the nodes that generate with each"
    older = sum(installed.values()) - sum(installed[row[0]] for row in rows)
    said = tag("p", f"{words.counted(older, 'node')} with older ones.", class_="soft") if older else None
    return section("versions", "Versions", table(caption, headings, rows), said)


def _newer(installed: Iterable[str], newest: PolicyVersion) -> list[str]:
    """Return the versions that nodes have and the last reading of the ledger had not, the newest first."""
    found = []
    for name in installed:
        with suppress(ValueError, TypeError):  # a line of the log that the learner did not write
            version = PolicyVersion(*map(int, name.split(".")))
            if version > newest:
                found.append(version)
    return [str(version) for version in sorted(found, reverse=True)]
