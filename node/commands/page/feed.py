"""Keep a page's parts up to date: follow the events, and read the report again at a measured pace.

Reading a ledger takes longer the longer the run is, so the next reading waits as much longer.

Invariants:

- Reading and rendering together take at most about one fortieth of a core, however large the run is.
- A ledger that cannot be read for a moment leaves the parts as they were.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from node.commands.page.board import Board
from node.commands.page.event_tail import EventTail
from node.commands.page.live_run import LiveRun
from node.commands.page.machine_load import Load, LoadMeter
from node.commands.page.parts import invite, learner_page, node_page, orders, samples
from node.commands.page.parts.samples import Wanted
from node.reports.html.charts.markup import Fragment
from node.reports.model.report import OwnReport, Role, SwarmReport
from node.reports.readers.place_report import read_report
from node.runtime.errors import NodeError
from node.state.locate import StateLocation
from node.state.status_file import NodeStatus, standing_of
from node.ui.live_view import ViewState
from node.web.terms import PageTerms

LOOK_S = 0.5
"""Seconds between two looks at the log. With the way to the screen, news is there within a second."""

LOAD_S = 2.0
"""Seconds between two measurements of the machine."""

LEAST_PAUSE_S = 5.0
PAUSE_OF_COST = 40.0
"""Pause after reading the report: at least LEAST_PAUSE_S seconds, and this many times the processor's seconds that the
reading took."""


@dataclass(kw_only=True, eq=False)
class Feed:
    """The parts of one run's page. `board` has everything, `public` what everybody may read."""

    terms: PageTerms
    place: StateLocation
    board: Board = field(default_factory=Board)
    public: Board = field(default_factory=Board)
    report: SwarmReport | OwnReport | None = None
    load: Load = field(default_factory=Load)

    def __post_init__(self) -> None:
        config, is_learner = self.place.config, self.place.is_learner
        view = ViewState(role=Role.LEARNER if is_learner else Role.ROLLOUT, title=self.terms.title)
        if config is not None:
            view.batch, view.steps, view.staleness = config.swarm_rollouts, config.learn.steps, config.learn.staleness
        self.live = LiveRun(view=view)
        self.meter = LoadMeter(self.terms.pid)
        self._tail = EventTail(path=self.place.state / "events.jsonl")
        for board, is_public in ((self.board, False), (self.public, True)):
            for key in self.keys(is_public=is_public):
                board.put(key, learner_page.empty(key).text)

    def keys(self, *, is_public: bool) -> list[str]:
        """Return the parts of the page, in order."""
        return learner_page.visible_keys(is_public=is_public) if self.place.is_learner else list(node_page.ORDER)

    async def run(self) -> None:
        """Keep the parts up to date until cancelled."""
        self._catch_up()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._read_again)
            if not self.place.is_learner:
                nursery.start_soon(self._measure)

    def end(self) -> None:
        """Show that the run's program has ended."""
        self.live.is_over = True
        self._catch_up()

    # Events

    def _catch_up(self) -> None:
        while logged := self._tail.read():
            self.live.take(logged)
        self.live.tick(time.time())
        self._put(self._live_parts())

    async def _follow(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            self._catch_up()

    def _live_parts(self) -> dict[str, Fragment]:
        if self.place.is_learner:
            report = self.report if isinstance(self.report, SwarmReport) else None
            return learner_page.live_parts(self.live, report)
        return node_page.live_parts(self.live, self.load, self.status)

    @property
    def status(self) -> NodeStatus | None:
        """What the running program says of itself."""
        return None if self.live.is_over else standing_of(self.place.state)

    async def _measure(self) -> None:
        while True:
            self.load = await trio.to_thread.run_sync(self.meter.measure)
            self._put({"orders": orders.node_orders(self.status)})
            await trio.sleep(LOAD_S)

    # The report

    async def _read_again(self) -> None:
        while True:
            began = time.thread_time()
            cost = await trio.to_thread.run_sync(self._read)
            self._render_slow()
            cost += time.thread_time() - began
            await trio.sleep(max(LEAST_PAUSE_S, PAUSE_OF_COST * cost))

    def _read(self) -> float:
        """Read the report, on a thread; return the seconds of the processor that it took."""
        began = time.thread_time()
        with suppress(NodeError):  # no ledger yet, or one that is written just now
            self.report = read_report(self.place, with_history=True)
        return time.thread_time() - began

    def _render_slow(self) -> None:
        report = self.report
        if isinstance(report, SwarmReport):
            self._put(learner_page.slow_parts(report, is_public=False), boards=(self.board,))
            self._put(learner_page.slow_parts(report, is_public=True), boards=(self.public,))
            self._put({"orders": orders.learner_orders(self.live.view, self.place.config, report)})
            if (shown := invite.part(self._invite())) is not None:
                self._put({"invite": shown})
            if not self.board.html("samples").startswith("<section"):
                self._put({"samples": samples.part(self.place.state, Wanted())})
            self._put(self._live_parts())
        elif isinstance(report, OwnReport):
            self._put(node_page.slow_parts(report))

    def _invite(self) -> str:
        with suppress(OSError, UnicodeDecodeError):
            return (Path(self.place.state) / "invite").read_text("ascii").strip()
        return ""

    def _put(self, parts: dict[str, Fragment], boards: tuple[Board, ...] = ()) -> None:
        for board in boards or (self.board, self.public):
            wanted = set(self.keys(is_public=board is self.public))
            for key, part in parts.items():
                if key in wanted:
                    board.put(key, part.text)
