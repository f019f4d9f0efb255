"""Who was on when, as a strip below a picture: a row per peer, a bar for each stretch of time, a tick per new plan.

What always holds: it is made of the plans alone, so a run without any has none; at most MAX_ROWS rows are drawn, of
those who were on for longest, in the order in which they came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.reports.model.report import SwarmReport
from node.runtime import formatting as words
from protocol.core.ids import PeerId, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_ROWS = 10
"""As many names fit below each other in the strip."""

NAME_CHARS = 12

BAR = 0.62
"""Of a row's height."""


def stretches(report: SwarmReport) -> dict[PeerId, list[tuple[float, float]]]:
    """From when to when each peer was on, in seconds, joined where one plan follows another; who came first first."""
    found: dict[PeerId, list[tuple[float, float]]] = {}
    if not report.plans:
        return found
    ends = [*(plan.at_s for plan in report.plans[1:]), report.wall_s]
    for plan, end_s in zip(report.plans, ends, strict=True):
        for peer in plan.active:
            spans = found.setdefault(peer, [])
            if spans and spans[-1][1] == plan.at_s:
                spans[-1] = (spans[-1][0], end_s)
            else:
                spans.append((plan.at_s, end_s))
    return found


def draw_turns(axes: Axes, report: SwarmReport, *, color: str, ink: str) -> None:
    """Draw the strip into `axes`, whose time axis is set."""
    on = stretches(report)
    longest = sorted(on, key=lambda peer: -sum(end_s - begin_s for begin_s, end_s in on[peer]))[:MAX_ROWS]
    rows = [peer for peer in on if peer in longest]
    names = {peer.peer: peer.name for peer in report.peers}
    for row, peer in enumerate(rows):
        axes.broken_barh(
            [(begin_s, end_s - begin_s) for begin_s, end_s in on[peer]], (row - BAR / 2, BAR), color=color, linewidth=0
        )
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(
        range(len(rows)), [words.plain_name(names.get(peer, ""), NAME_CHARS) or short(peer) for peer in rows]
    )
    axes.tick_params(labelsize=9, colors=ink, length=0)
    for plan in report.plans:
        axes.axvline(plan.at_s, color="#BBBBBB", linewidth=0.8, zorder=0.5)
    hidden = len(on) - len(rows)
    axes.set_ylabel("on" if not hidden else f"on (+{hidden})", fontsize=10, color=ink)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
