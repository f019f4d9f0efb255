"""Keep a page's parts up to date: follow the events, and read the report again at a measured pace.

Reading a ledger takes longer the longer the run is, so the next reading waits as much longer.

Invariants:

- Reading and rendering together take at most about one fortieth of a core, however large the run is.
- A ledger that cannot be read for a moment leaves the parts as they were.
- What takes long is read and rendered on a thread, so that no browser waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import trio

from node.commands.page.board import Board
from node.commands.page.event_tail import EventTail
from node.commands.page.live_run import LiveRun
from node.commands.page.parts import invite, learner_page, node_page, orders, peers, samples
from node.config.invite_text import INVITE_FILE
from node.energy.machine_load import Load, follow_load
from node.reports.html.charts.markup import Fragment
from node.reports.model.report import OwnReport, Role, SwarmReport
from node.reports.readers.place_report import pause_after, read_report
from node.runtime.errors import NodeError
from node.state.locate import StateLocation
from node.state.owner_orders import OwnerRequests
from node.state.status_file import NodeStatus, standing_of
from node.ui.live_view import ViewState
from node.web.terms import PageTerms

LOOK_S = 0.5
"""Seconds between two looks at the log. With the way to the screen, news is there within a second."""

LEAST_PAUSE_S = 5.0
"""Seconds between two readings of a report that costs little. Others wait longer (`pause_after`)."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A report, the parts made of it for each board, and the processor's seconds that both took."""

    report: SwarmReport | OwnReport | None
    parts: tuple[dict[str, Fragment], ...]
    cost_s: float


@dataclass(kw_only=True, eq=False)
class Feed:
    """The parts of one run's page. `board` has everything, `public` what everybody may read. `clock` returns the time
    in seconds since 1970."""

    terms: PageTerms
    place: StateLocation
    board: Board = field(default_factory=Board)
    public: Board = field(default_factory=Board)
    report: SwarmReport | OwnReport | None = None
    load: Load = field(default_factory=Load)
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        config, is_learner = self.place.config, self.place.is_learner
        view = ViewState(role=Role.LEARNER if is_learner else Role.ROLLOUT, title=self.terms.title)
        if config is not None:
            view.batch, view.steps, view.staleness = config.swarm_rollouts, config.learn.steps, config.learn.staleness
        self.live = LiveRun(view=view, began_at=self.terms.began)
        self._samples = samples.NewestSamples(self.place.state)
        self._tail = EventTail(path=self.place.state / "events.jsonl")
        for board in self._boards:
            for key in self.keys(is_public=board is self.public):
                board.put(key, learner_page.empty(key).text)

    @property
    def _boards(self) -> tuple[Board, ...]:
        return (self.board, self.public) if self.terms.public else (self.board,)

    def keys(self, *, is_public: bool) -> list[str]:
        """Return the parts of the page, in order."""
        return learner_page.visible_keys(is_public=is_public) if self.place.is_learner else list(node_page.ORDER)

    async def run(self) -> None:
        """Keep the parts up to date until cancelled."""
        self.catch_up()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._read_again)
            if not self.place.is_learner:
                nursery.start_soon(follow_load, self.terms.pid, self._take_load)

    def end(self) -> None:
        """Show that the run's program has ended."""
        self.live.is_over = True
        self.catch_up()

    # Events

    def catch_up(self) -> None:
        """Take what the log has, and render the parts that change with events."""
        while (logged := self._tail.read()) is not None:
            self.live.take(logged)
        self.live.tick(self.clock())
        self._put(self._live_parts())

    async def _follow(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            self.catch_up()

    def _live_parts(self) -> dict[str, Fragment]:
        if not self.place.is_learner:
            status = self.status
            is_paused = bool(OwnerRequests(self.place.state).paused_by)
            parts = node_page.live_parts(self.live, self.load, status)
            return {**parts, "orders": orders.node_orders(status, is_paused=is_paused)}
        report = self.report if isinstance(self.report, SwarmReport) else None
        parts = learner_page.live_parts(self.live, report)
        if report is not None:
            parts["orders"] = orders.learner_orders(self.live.view, self.place.config)
        return parts

    @property
    def status(self) -> NodeStatus | None:
        """What the running program says of itself."""
        return None if self.live.is_over else standing_of(self.place.state)

    def _take_load(self, load: Load) -> None:
        self.load = load

    # The report

    async def _read_again(self) -> None:
        while True:
            reading = await trio.to_thread.run_sync(self._read)
            if reading.report is not None:
                self.report = reading.report
                for board, parts in zip(self._boards, reading.parts, strict=True):
                    self._put(parts, boards=(board,))
                self._put(self._live_parts())
            await trio.sleep(pause_after(reading.cost_s, LEAST_PAUSE_S))

    def _read(self) -> Reading:
        """Read the report, and render what is made of it; on a thread."""
        began = time.thread_time()
        report: SwarmReport | OwnReport | None = None
        parts: tuple[dict[str, Fragment], ...] = ()
        with suppress(NodeError):  # no ledger yet, or one that is written just now
            report = read_report(self.place, with_history=True)
        if isinstance(report, SwarmReport):
            if report.staleness is not None:  # the operator may have changed it since the start
                report = replace(report, staleness=self.live.view.staleness)
            common = learner_page.slow_parts(report)
            parts = tuple(
                {**common, "peers": peers.part(report, is_public=board is self.public)} for board in self._boards
            )
            parts[0].update(self._of_files())
        elif isinstance(report, OwnReport):
            parts = (node_page.slow_parts(report),) * len(self._boards)
        return Reading(report=report, parts=parts, cost_s=time.thread_time() - began)

    def _of_files(self) -> dict[str, Fragment]:
        """Return the parts that are made of other files than the ledger."""
        found = {"invite": invite.part(self._invite()), "samples": self._samples.part()}
        return {key: part for key, part in found.items() if part is not None}

    def _invite(self) -> str:
        with suppress(OSError, UnicodeDecodeError):
            return (self.place.state / INVITE_FILE).read_text("ascii").strip()
        return ""

    def _put(self, parts: dict[str, Fragment], boards: tuple[Board, ...] = ()) -> None:
        for board in boards or self._boards:
            wanted = set(self.keys(is_public=board is self.public))
            for key, part in parts.items():
                if key in wanted:
                    board.put(key, part.text)
