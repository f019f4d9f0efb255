"""Serve the page of a run whose day passes as fast as a browser shows it, for the page's benchmark.

A program that is told what every page's program is told (`node.web.terms`). When a browser asks for `/next`, the next
seconds of the day are written to the log, and every part of the page changes.

Invariants:

- The page, its application and its events are those of a learner. Only the pace is not.
- Parts of the report alternate between two readings of the ledger. One of them is renewed each hour of the day.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.live.hour_of_run import LedgerWriter, LogWriter, events_at, peer_of
from node.commands.page.access import Access
from node.commands.page.app import PageApp
from node.commands.page.feed import Feed
from node.commands.page.parts import learner_page, peers
from node.reports import swarm_report
from node.reports.model.report import SwarmReport
from node.state.locate import StateLocation
from node.web.terms import MAX_TERMS_BYTES, PageTerms

DAY_S, HOUR_S = 86_400, 3600
PEERS = 20

RENDER_S = 30
"""Seconds of the day between two changes of the page."""

FIRST_STEPS, STEPS_AN_HOUR = 1800, 60
"""Training steps in the ledger when the day begins, so many that curves have all their points, and those that each hour
adds, so that readings differ."""

NEXT = "/next"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A report, and the parts of the page that are made of it."""

    report: SwarmReport
    parts: dict[str, str]


@dataclass(kw_only=True, eq=False)
class Day:
    """The day of the run in `state`. `steps`: training steps in its ledger."""

    feed: Feed
    state: Path
    steps: int = 0
    began: float = field(default_factory=lambda: time.time() - DAY_S)
    second: int = 0
    _readings: list[Reading] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.feed.clock = lambda: self.began + self.second
        self._peers = [peer_of(place) for place in range(PEERS)]
        self._log = LogWriter(self.state / "events.jsonl")
        began_ms = round(1000 * (time.time() - FIRST_STEPS))
        self._ledger = LedgerWriter(self.state / "ledger.sqlite", began_ms, self._peers)
        self._train(FIRST_STEPS)
        self._readings = [self._read(), self._read()]

    def go_on(self) -> None:
        """Let the next seconds pass, and change every part of the page."""
        for second in range(self.second, self.second + RENDER_S):
            self._log.write(self.began + second, events_at(second, self._peers))
        self.second += RENDER_S
        place = self.second // RENDER_S % 2
        if self.second % HOUR_S == 0:
            self._readings[place] = self._read()
        shown = self._readings[place]
        self.feed.report = shown.report
        self.feed.catch_up()
        for key, html in shown.parts.items():
            self.feed.board.put(key, html)

    def _train(self, steps: int) -> None:
        for step in range(self.steps, self.steps + steps):
            self._ledger.write(step)
        self.steps += steps

    def _read(self) -> Reading:
        self._train(STEPS_AN_HOUR)
        report = swarm_report(self.state / "ledger.sqlite", with_history=True)
        return Reading(report=report, parts=dict(_parts(report)))


def _parts(report: SwarmReport) -> Iterator[tuple[str, str]]:
    for key, part in {**learner_page.slow_parts(report), "peers": peers.part(report, is_public=False)}.items():
        yield key, part.text


def main() -> int:
    """Serve the page until the standard input ends."""
    terms = msgspec.json.decode(sys.stdin.buffer.readline(MAX_TERMS_BYTES), type=PageTerms)
    trio.run(_run, terms)
    return 0


async def _run(terms: PageTerms) -> None:
    state = Path(terms.state)
    day = Day(feed=Feed(terms=terms, place=StateLocation(state=state, is_learner=True)), state=state)
    feed = day.feed
    app: Any = _paced(PageApp(feed=feed, access=Access(token=terms.token)).build(), day)
    config = Config()
    config.bind, config.errorlog, config.loglevel = [f"fd://{terms.socket}"], "-", "WARNING"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_end, nursery.cancel_scope)
        await serve(app, config)


def _paced(app: ASGIApp, day: Day) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != NEXT:
            await app(scope, receive, send)
            return
        day.go_on()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return answer


async def _until_end(scope: trio.CancelScope) -> None:
    async with trio.lowlevel.FdStream(sys.stdin.fileno()) as told:
        async for _ in told:
            pass
    scope.cancel()


if __name__ == "__main__":
    sys.exit(main())
